"""Parts that several tasks share. Importing them imports no torch."""
