"""The screens, one file each: `x.py` has the page with its keys, `x_view.py` the functions that compute its lines."""
