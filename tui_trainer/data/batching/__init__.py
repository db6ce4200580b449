"""From rows of tokens to the batches of a step: order, packing, padding."""
