"""Starting and executing runs. Front ends call this room, and never training."""
