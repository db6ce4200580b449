"""Other tools' configs in our words. One file of `kinds/` is one kind, found by its name; no list is kept by hand."""

from __future__ import annotations

import pkgutil
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from tui_trainer.errors import ConfigError
from tui_trainer.importing import kinds
from tui_trainer.importing.contract import Kind


@cache
def all_kinds() -> dict[str, Kind]:
    """Every kind by name, the plainest first."""
    found: list[Kind] = [
        import_module(f"{kinds.__name__}.{module.name}").KIND for module in pkgutil.iter_modules(kinds.__path__)
    ]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.rank)}


def find_kind(name: str) -> Kind:
    """The kind of that name. Raises ConfigError with the nearest name, or all of them."""
    if name not in all_kinds():
        near = get_close_matches(name, all_kinds(), n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(all_kinds())
        raise ConfigError(f"there is no kind of config {name[:60]!r}", hint=hint, where="--as")
    return all_kinds()[name]
