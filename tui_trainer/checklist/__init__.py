"""Is it ready, and is it fast: every tip as a check of this machine and this config."""
