"""What an edit is, what a change is, and a step that can be undone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel

S = TypeVar("S", bound=BaseModel)


class Preset(Enum):
    """Instead of a value: what the presets give, although the file or the command line says otherwise."""

    VALUE = "preset"


PRESET: Final = Preset.VALUE
Patch = Mapping[str, Any]
"""Settings by dotted key with their new values."""
# Own values by key; PRESET takes one away.
Edits = Mapping[str, Any]


def with_changes(section: S, patch: Patch) -> S:
    """A config with some values changed, of which nothing is checked."""
    for key, value in patch.items():
        name, _, rest = key.partition(".")
        new = with_changes(getattr(section, name), {rest: value}) if rest else value
        section = section.model_copy(update={name: new})
    return section


def settings_words(patch: Patch) -> str:
    """`data.group_by_length = true, training.learning_rate = 0.0003`."""
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in patch.items())


def settings_count(count: int) -> str:
    """Return `1 setting` or `2 settings`."""
    return f"{count} setting{'' if count == 1 else 's'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One setting whose value differs between two states."""

    key: str
    old: Any
    new: Any

    def words(self, arrow: str) -> str:
        """Return `training.seed: 1 -> 2`, with the given arrow."""
        return f"{self.key}: {json.dumps(self.old)} {arrow} {json.dumps(self.new)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipePreview:
    """What another recipe would change, and the user's own values that stay although it says otherwise (`new`)."""

    changes: tuple[Change, ...]
    stays: tuple[Change, ...]


def same(one: Any, other: Any) -> bool:
    """Equal and alike: `true` is not 1, but 1.0 is."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """All edits before and after it: a config has fewer than a hundred."""

    label: str
    before: Edits
    after: Edits
