"""Which kind a file is: the one that knows most of its keys, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui_trainer.errors import ConfigError
from tui_trainer.importing import all_kinds
from tui_trainer.importing.contract import Kind
from tui_trainer.importing.conversion import Conversion, convert
from tui_trainer.safe_text import one_line

_SHOWN_KEYS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognised:
    """The kind, and the reason as the end of a sentence."""

    kind: Kind
    reason: str


def recognise(raw: Mapping[str, Any], where: str) -> Recognised:
    """The kind of a file with these keys. Raises ConfigError with all kinds where that is not clear."""
    scores = {kind.name: _score(kind, spread(kind, raw)) for kind in all_kinds().values()}
    best = max(scores.values())
    names = [name for name, score in scores.items() if score == best]
    if best[0] == 0:
        keys = ", ".join(one_line(key, 40) for key in list(raw)[:_SHOWN_KEYS])
        raise ConfigError(f"has no key that is known ({keys})", where=where, hint=_all_kinds())
    kind = all_kinds()[names[0]]
    if len(names) == 1:
        return Recognised(kind=kind, reason=_reason(kind, spread(kind, raw)))
    if all(_values(all_kinds()[name], raw) == _values(kind, raw) for name in names):
        others = ", ".join(names[1:])
        return Recognised(kind=kind, reason=f"{others} would read it alike")
    reason = f"could be {', '.join(names)}, which read it differently"
    raise ConfigError(reason, where=where, hint=_all_kinds())


def spread(kind: Kind, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as the kind knows them: those of a table get its name and a dot where it has no rule of its own.

    Raises ConfigError where two of them would have one name.
    """
    tables = {name.rpartition(".")[0] for name in kind.names()}
    found: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and value and key in tables and not kind.knows(key):
            inside = {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            inside = {key: value}
        if twice := inside.keys() & found.keys():
            raise ConfigError(f"the key {one_line(min(twice), 60)!r} stands there twice", hint="leave one of them out")
        found |= inside
    return found


def _score(kind: Kind, given: Mapping[str, Any]) -> tuple[int, int]:
    return len(kind.names() & given.keys()), len(kind.telltale & given.keys())


def _values(kind: Kind, raw: Mapping[str, Any]) -> dict[str, Any]:
    done: Conversion = convert(kind, spread(kind, raw))
    return done.values


def _reason(kind: Kind, given: Mapping[str, Any]) -> str:
    known, _ = _score(kind, given)
    keys = sorted(kind.telltale & given.keys(), key=list(given).index)[:_SHOWN_KEYS]
    return f"it knows {known} of {len(given)} keys" + (f", {', '.join(keys)} among them" if keys else "")


def _all_kinds() -> str:
    return "name the kind with --as: " + ", ".join(all_kinds())
