"""Advice on settings. Each rule checks a config before its run, diagnoses a run, and proposes settings."""
