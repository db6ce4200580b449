"""The files of a model: weights, their headers, their hashes, where the cache of the hub keeps them."""
