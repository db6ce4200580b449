"""One file, one screen: `x.py` has the keys, `x_view.py` computes the picture."""
