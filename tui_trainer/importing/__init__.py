"""Conversion of other tools' configs to ours. Each file of `importers/` is for one tool."""
