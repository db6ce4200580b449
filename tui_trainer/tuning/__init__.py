"""Tuning methods, which decide which weights train. Each file is a method, and is imported by its name."""

from importlib import import_module

from tui_trainer.config.sections import TuningSection
from tui_trainer.tuning.full import Method


def find_method(name: str) -> Method:
    """Import and return the tuning method `name`, one of the choices of `tuning.method`."""
    method: Method = import_module(f"{__name__}.{name}").METHOD
    return method


def method_of(tuning: TuningSection) -> Method:
    """Return the method that these settings select: by `tuning.trainable_layers` if it is set, else `tuning.method`."""
    return find_method("freeze_layers" if tuning.trainable_layers else tuning.method)
