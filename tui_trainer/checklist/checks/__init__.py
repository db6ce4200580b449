"""One file is one check: it ends with CHECK."""
