"""Libraries that are not installed, or cannot run here, under their own names."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
