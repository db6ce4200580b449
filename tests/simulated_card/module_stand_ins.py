"""Libraries that are not installed, or cannot run here, under their own names."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType


def modules_named(*names: str) -> dict[str, ModuleType]:
    """Empty ones, which answer those who look for a library without importing it."""
    found = {name: ModuleType(name) for name in names}
    for name, module in found.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return found


@contextmanager
def imported_as(modules: dict[str, ModuleType]) -> Iterator[None]:
    """`import` finds these. One by one: `patch.dict` would forget what else was imported meanwhile."""
    before = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.update(modules)
    for name, real in before.items():
        if real is not None:
            _rebind(real, modules[name])
    try:
        yield
    finally:
        for name, real in before.items():
            sys.modules.pop(name, None)
            if real is not None:
                sys.modules[name] = real
        for name, stand_in in modules.items():
            with suppress(ImportError):
                _rebind(stand_in, importlib.import_module(name))


def _rebind(old: ModuleType, new: ModuleType) -> None:
    """In modules that have the one under a name of their own (transformers and peft have bitsandbytes as `bnb`)."""
    for module in [module for module in sys.modules.values() if isinstance(module, ModuleType)]:
        for name in [name for name, value in vars(module).items() if value is old]:
            setattr(module, name, new)
