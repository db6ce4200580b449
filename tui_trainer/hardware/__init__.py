"""What this machine has: frozen facts. `None` means "not reported", never zero."""
