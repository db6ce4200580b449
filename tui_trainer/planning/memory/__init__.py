"""Memory of a run by part, before anything is loaded."""
