"""Each function that is a diagnosis is found by being here; its docstring says why, its name is that of the function."""
