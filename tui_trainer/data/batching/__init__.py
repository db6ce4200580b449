"""Batches of a step from rows of tokens: order, packing, padding."""
