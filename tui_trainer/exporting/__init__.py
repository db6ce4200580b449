"""Use the trained model of a run: export, evaluation, prediction, conversation and publishing."""
