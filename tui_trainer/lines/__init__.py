"""Output without screens: plans, events, the checklist, the doctor and the machine, as lines or JSON."""
