"""Paths as users write them, and names on the Hugging Face Hub."""
