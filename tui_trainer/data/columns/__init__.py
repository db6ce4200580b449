"""The meaning of a table's columns: texts, labels, pairs, tags, conversations."""
