"""The models that a run starts from: folders, shapes, tokenizers, and a catalogue of well-known models. Modules of this
room import torch only inside of functions."""
