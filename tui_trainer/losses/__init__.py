"""Losses of a batch, each as a sum and a count. Tasks import them inside functions only, because they load torch."""
