"""Facts about this machine: frozen data, in which None means "not reported" and never zero."""
