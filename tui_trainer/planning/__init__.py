"""Plan a run: derive every figure with its reason before anything is loaded. This package imports no torch."""
