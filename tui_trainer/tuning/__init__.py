"""Which weights are trainable. One file is one method: it is found by its name, and no list is kept by hand."""

from importlib import import_module

from tui_trainer.config.sections import TuningSection
from tui_trainer.tuning.full import Method


def find_method(name: str) -> Method:
    """The tuning method of that name, one of those that `tuning.method` takes."""
    method: Method = import_module(f"{__name__}.{name}").METHOD
    return method


def method_of(tuning: TuningSection) -> Method:
    """The one by which these settings are trained: with `tuning.trainable_layers` that of some layers."""
    return find_method("some_layers" if tuning.trainable_layers else tuning.method)
