"""Standard input, output and error, and foreign text on its way to them."""
