"""Texts and conversations into tokens, by the model's own tokenizer and chat template."""
