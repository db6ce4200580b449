"""Fine-tuning transformers on a GPU server, from the terminal."""
