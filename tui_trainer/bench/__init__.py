"""What a trained model, and training itself, take on this machine: tables that are measured here."""
