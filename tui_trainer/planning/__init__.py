"""What will happen: every derived number with its reason, before anything is loaded. No torch in this room."""
