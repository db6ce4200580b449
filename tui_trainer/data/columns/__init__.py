"""What the columns of a table mean: texts, labels, pairs, tags, conversations."""
