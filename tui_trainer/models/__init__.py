"""The models that a run starts from: folders, shapes, tokenizers, a catalogue. torch is imported inside of
functions."""
