"""Which importer reads a file: the one that knows most of its keys, and says so. Importers are found by their files."""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from tui_trainer.errors import ConfigError, name_hint
from tui_trainer.importing import importers
from tui_trainer.importing.conversion import Conversion, Importer
from tui_trainer.safe_text import one_line

_SHOWN_KEYS = 3


@cache
def all_importers() -> dict[str, Importer]:
    """Every importer by name, the plainest first."""
    found: list[Importer] = [
        import_module(f"{importers.__name__}.{module.name}").IMPORTER
        for module in pkgutil.iter_modules(importers.__path__)
    ]
    return {importer.name: importer for importer in sorted(found, key=lambda importer: importer.rank)}


def find_importer(name: str) -> Importer:
    """The importer of that name. Raises ConfigError with the nearest name, or all of them."""
    if name not in all_importers():
        hint = name_hint(name, all_importers())
        raise ConfigError(f"there is no kind of config {name[:60]!r}", hint=hint, where="--as")
    return all_importers()[name]


def detect(raw: Mapping[str, Any], where: str) -> tuple[Importer, str]:
    """The importer of a file with these keys, and the reason as the end of a sentence.

    Raises ConfigError with all importers where that is not clear.
    """
    if isinstance(raw.get("architectures"), list) and "model_type" in raw:
        hint = "name its folder: tui-trainer --model FOLDER"
        raise ConfigError("is the config.json of a model, and says nothing about training", where=where, hint=hint)
    given = {importer.name: spread(importer, raw) for importer in all_importers().values()}
    scores = {name: _score(all_importers()[name], keys) for name, keys in given.items()}
    best = max(scores.values())
    first, *others = (all_importers()[name] for name, score in scores.items() if score == best)
    all_kinds = "name the kind with --as: " + ", ".join(all_importers())
    if best[0] == 0:
        keys = ", ".join(one_line(key, 40) for key in list(raw)[:_SHOWN_KEYS])
        raise ConfigError(f"has no key that is known ({keys})", where=where, hint=all_kinds)
    if not others:
        own = ", ".join(first.spoken_for(given[first.name])[:_SHOWN_KEYS])
        reason = f"it knows {best[0]} of {len(given[first.name])} keys"
        return first, reason + (f", {own} among them" if own else "")
    values = Conversion(first, given[first.name]).values
    names = ", ".join(other.name for other in others)
    if all(Conversion(other, given[other.name]).values == values for other in others):
        return first, f"{names} would read it alike"
    raise ConfigError(f"could be {first.name}, {names}, which read it differently", where=where, hint=all_kinds)


def spread(importer: Importer, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as the importer knows them: those of a table get its name and a dot where no row names the table.

    Raises ConfigError where two of them would have one name.
    """
    tables = {name.rpartition(".")[0] for name in importer.names}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and value and key in tables and key not in importer.names:
            inside = spread(importer, {f"{key}.{name}": inner for name, inner in value.items()})
        else:
            inside = {key: value}
        if twice := inside.keys() & found.keys():
            raise ConfigError(f"the key {one_line(min(twice), 60)!r} stands there twice", hint="leave one of them out")
        found |= inside
    return found


def _score(importer: Importer, given: Mapping[str, Any]) -> tuple[int, int]:
    return len(importer.names & given.keys()), len(importer.spoken_for(given))
