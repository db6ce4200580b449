"""Libraries that are not installed, or cannot run here, under their own names."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator
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
    """Let `import` find these modules, one by one: `patch.dict` would forget what else was imported meanwhile."""
    before = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.update(modules)
    _rebind([(real, modules[name]) for name, real in before.items() if real is not None])
    try:
        yield
    finally:
        installed = []
        for name, real in before.items():
            sys.modules.pop(name, None)
            if real is not None:
                sys.modules[name] = real
        for name, stand_in in modules.items():
            with suppress(ImportError):
                installed.append((stand_in, importlib.import_module(name)))
        _rebind(installed)


def _rebind(replacements: Iterable[tuple[ModuleType, ModuleType]]) -> None:
    """Replace modules that other modules hold under names of their own: transformers and peft have bitsandbytes as
    `bnb`. One pass for all replacements, because there are thousands of modules."""
    new = {id(old): new for old, new in replacements}
    for module in [module for module in sys.modules.values() if isinstance(module, ModuleType)] if new else ():
        for name in [name for name, value in vars(module).items() if id(value) in new]:
            setattr(module, name, new[id(vars(module)[name])])
