"""Paths as people write them, and names on the Hugging Face Hub."""
