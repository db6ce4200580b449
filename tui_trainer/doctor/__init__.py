"""What a run loses its time to, and what goes wrong in it: from its journal alone, while it lives and afterwards."""
