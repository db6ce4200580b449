"""What a run starts from: model folders, their shapes, and a catalogue of well-known ones. No torch in this room."""
