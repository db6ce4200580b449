"""What came of a run, written down for people: as Markdown, as one HTML page, and for the model card."""
