"""Experiment trackers: the journal of a run is sent to TensorBoard and others."""
