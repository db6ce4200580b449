"""Each Rule is found by being here: one file of rules for each subject."""
