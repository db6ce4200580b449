"""One file is one tool whose configs are read."""
