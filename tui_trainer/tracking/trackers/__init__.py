"""Trackers, one per file. Their libraries are imported only inside functions."""
