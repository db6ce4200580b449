"""Advice on settings, one rule each: seen before a run, seen during one, what it changes, and what that gains."""
