"""Reports of a run for people: Markdown, one HTML page, and the facts of model cards."""
