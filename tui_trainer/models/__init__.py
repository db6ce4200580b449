"""The models that a run starts from: folders, shapes, tokenizers, a catalogue. Functions import torch themselves."""
