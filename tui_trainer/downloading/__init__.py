"""Downloads from the Hugging Face Hub and installations, each after a confirmation by the user."""
