"""The folder of a run, its lock, its journal, the state computed from the journal, and requests to an active run.

The room needs neither torch nor a config, so it also reads folders that were copied from another machine.
"""
