"""Export formats: one file is one."""
