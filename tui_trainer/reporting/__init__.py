"""Reports of a run as Markdown and HTML, and the facts for reports and model cards."""
