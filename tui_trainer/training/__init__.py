"""The training loop and everything in a run that computes with torch."""
