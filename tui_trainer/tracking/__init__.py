"""Trackers of experiments: what a run has written into its journal, handed on to TensorBoard and others."""
