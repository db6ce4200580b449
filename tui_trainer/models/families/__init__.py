"""What each family of models computes, layer by layer, from the fields of its config.json."""
