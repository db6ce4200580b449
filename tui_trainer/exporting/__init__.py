"""What can be done with the model of a run: export, evaluation, prediction, conversation and publishing."""
