"""Measurements on this machine, in fresh processes: training and trained models, with and without one change."""
