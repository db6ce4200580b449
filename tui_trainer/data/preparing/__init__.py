"""Preparation of a source as rows of tokens on disk: split, deduplicated, encoded, cached by content and settings."""
