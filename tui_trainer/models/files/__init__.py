"""The files of a model: weights, their headers and fingerprints, and their location in the hub's cache."""
