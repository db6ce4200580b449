"""The optimizers, learning rate schedules and tuning methods that a config can name, one row each, without torch."""
