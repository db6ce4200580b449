"""Other tools' configs in our words. One file of `importers/` is one tool."""
