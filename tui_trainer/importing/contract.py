"""What a kind of foreign config is, and what can become of its keys.

A kind is mostly two tables: `rules`, one line for each key, and `together`, the keys that mean something only beside
each other. Its file in `kinds/` holds nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tui_trainer.importing.conversion import Conversion


class Why(StrEnum):
    """Why a key of the file has no line in ours; what needs a decision comes first.

    REFUSED: it decides what is learnt or which weights are trained, so without it the rest would be another run.
    """

    REFUSED = "cannot be trained here"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "not known"
    NOT_SUPPORTED = "not supported"
    NOT_YET = "not yet"
    AUTOMATIC = "automatic here"
    ALWAYS = "always so here"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """One of our settings and the keys of the file that it comes from; none where the kind itself implies it."""

    sources: Mapping[str, Any]
    key: str
    value: Any
    reason: str = ""
    product: bool = False
    """Whether the value is the product of the sources."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A key of the file without a line in ours."""

    key: str
    value: Any
    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class To:
    """The key is one of our settings. `values` translates spellings, `leave` says which values need no line.

    `convert` is asked for every other value; it raises ValueError with what is wrong with one. With `otherwise`, no
    other value is taken.
    """

    key: str
    reason: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)
    leave: Mapping[Any, Left] = field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    otherwise: Left | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """The key has no line in ours, whatever its value."""

    why: Why
    reason: str


@dataclass(frozen=True, slots=True)
class Off:
    """Something that tui-trainer does not have: no loss where the file has it off."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that makes it another kind of training, which tui-trainer does not have: refused unless it is off."""

    reason: str


@dataclass(frozen=True, slots=True)
class Same:
    """These values are what tui-trainer does anyway; others are not supported."""

    values: tuple[Any, ...]
    reason: str
    otherwise: str


Rule = To | Left | Off | Refused | Same


@dataclass(frozen=True, slots=True)
class Together:
    """Keys that are read beside each other; `act` takes those that it understands, the rest have rules."""

    names: tuple[str, ...]
    act: Callable[[Conversion], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One tool's config.

    `telltale` are keys that speak for it where others know as many keys of a file. Keys inside a table are named with
    dots where the table has no rule of its own. `families` are rules for all keys of a pattern, such as `wandb_*`.
    Where a file could be of several kinds and means the same in each, the one with the lowest `rank` is named.
    """

    name: str
    title: str
    rank: int
    telltale: frozenset[str]
    rules: Mapping[str, Rule]
    together: tuple[Together, ...] = ()
    families: Mapping[str, Rule] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Our settings with the values that the tool takes where a file does not say them, as far as ours differ."""

    def rule(self, name: str) -> Rule | None:
        """What becomes of one key; None: the key is not known."""
        if name in self.rules:
            return self.rules[name]
        return next((rule for pattern, rule in self.families.items() if fnmatchcase(name, pattern)), None)

    def names(self) -> set[str]:
        """All keys that are known by name."""
        return {*self.rules, *(name for group in self.together for name in group.names)}

    def knows(self, name: str) -> bool:
        return name in self.names() or self.rule(name) is not None
