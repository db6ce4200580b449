"""Is it ready, and is it fast: every tip of the guides as a check of this machine and this config."""
