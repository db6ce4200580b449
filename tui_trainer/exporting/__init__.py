"""Uses of the model of a run: export, evaluation, prediction, conversation and publishing."""
