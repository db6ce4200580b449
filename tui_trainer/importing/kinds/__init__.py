"""One file is one kind of config."""
