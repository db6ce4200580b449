"""From a source to rows of tokens on disk: split, deduplicated, encoded, kept under a key of content and settings."""
