"""One file is one tracker. Its library is imported in functions only."""
