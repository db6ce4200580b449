"""Rows of the batches as a person reads them."""
