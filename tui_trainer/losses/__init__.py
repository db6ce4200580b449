"""Losses of a batch, each as a sum and a count. Tasks import this room inside functions only: it loads torch."""
