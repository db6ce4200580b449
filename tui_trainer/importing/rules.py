"""What a row of an importer's table says of a key of the file: our key, or why it has none.

A table is a mapping. Its keys are the other tool's names: several with blanks between them where one row is about all
of them, with `*` in them for all names of a pattern, which count where there is no row of the name itself. A row is a
rule. A text is the key of our setting, `training.*` the one of the same name in [training]; None takes a row of an
earlier table back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any


class Why(StrEnum):
    """Why a key of the file has no line in ours; what needs a decision comes first.

    The first three are refused: without the key, the rest could be another run. The others change nothing learnt.
    """

    REFUSED = "cannot be trained here"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "is not known"
    NOT_SUPPORTED = "not supported"
    AS_ASKED = "as asked"
    AUTOMATIC = "automatic here"
    ALWAYS = "always so here"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Left:
    """The key has no line in ours, whatever its value."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Off:
    """Something that tui-trainer does not have: no loss where the file has it off."""

    reason: str
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class Same:
    """These values are what tui-trainer does anyway; others are not supported, or refused where they change the run."""

    values: tuple[Any, ...]
    reason: str
    otherwise: str = ""
    """The reason for all other values, where it is another."""
    why: Why = Why.NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class To:
    """The key is one of our settings. `values` translates spellings, or says which of them need no line.

    `convert` is asked for every other value; it raises ValueError with what is wrong with one. With `otherwise`, no
    other value is taken.
    """

    key: str
    reason: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    otherwise: Left | Off | None = None


Rule = To | Left | Off | Same
Table = Mapping[str, Rule | str | None]

Refused = partial(Off, why=Why.REFUSED)
Automatic = partial(Left, Why.AUTOMATIC)
Always = partial(Left, Why.ALWAYS)
NotNeeded = partial(Left, Why.NOT_NEEDED)
NotSupported = partial(Left, Why.NOT_SUPPORTED)

REFUSALS = (Why.REFUSED, Why.DOES_NOT_FIT, Why.UNKNOWN)


def merge(*tables: Table) -> dict[str, Rule]:
    """One rule for each name; a later table wins."""
    rules: dict[str, Rule] = {}
    for names, rule in (row for table in tables for row in table.items()):
        for name in names.split():
            if rule is None:
                del rules[name]
            else:
                rules[name] = To(rule.replace("*", name)) if isinstance(rule, str) else rule
    return rules


def under(prefix: str, table: Table) -> dict[str, Rule]:
    """The same names inside a table of the file."""
    return {f"{prefix}.{name}": rule for name, rule in merge(table).items()}
