"""What several tasks share. Files here are light to import, as tasks are."""
