"""ONE FILE = ONE DIAGNOSIS. Each has a DIAGNOSIS, and is found by being here."""
