"""Experiment trackers: what a run has written to its journal is sent to TensorBoard and others."""
