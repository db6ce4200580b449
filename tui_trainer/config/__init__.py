"""What is asked for: settings, profiles, config files, and where each value came from."""
