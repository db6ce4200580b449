"""Settings, profiles and config files, and the origin of each value."""
