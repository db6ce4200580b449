"""Who runs a run. Front ends ask here; they never touch training."""
