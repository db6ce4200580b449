"""What is done with a run's model afterwards."""
