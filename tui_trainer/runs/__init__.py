"""Where a run lives: its folder, its journal, what the journal adds up to, and the way to ask something of it.

Needs neither torch nor a configuration: a folder that was copied to another machine can be read here.
"""
