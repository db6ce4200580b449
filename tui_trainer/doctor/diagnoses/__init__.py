"""Each function that is a diagnosis is found by being here; its name is that of the function."""
