"""Tuning methods, which decide what weights train: one file for each, imported by the name of the method."""

from importlib import import_module

from tui_trainer.config.sections import TuningSection
from tui_trainer.tuning.full import Method


def find_method(name: str) -> Method:
    """Import the tuning method of this name, one of the choices of `tuning.method`."""
    method: Method = import_module(f"{__name__}.{name}").METHOD
    return method


def method_of(tuning: TuningSection) -> Method:
    """Return the method of these settings; `tuning.trainable_layers` has one of its own."""
    return find_method("freeze_layers" if tuning.trainable_layers else tuning.method)
