"""Each subclass of Rule is found by being here: one file of rules for each subject."""
