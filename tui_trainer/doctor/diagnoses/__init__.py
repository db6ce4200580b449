"""Each function that is a diagnosis is found by being here: its name is the function's, its docstring says why."""
