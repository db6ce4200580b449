"""Measurements on this machine: training and a trained model, each with and without one change, in fresh processes."""
