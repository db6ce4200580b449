"""What a batch costs: losses as a sum and a count. torch lives here; tasks choose a loss inside their functions."""
