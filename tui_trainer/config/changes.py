"""Types for edits of a config: patches, changes, and steps that can be undone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel

S = TypeVar("S", bound=BaseModel)


class Preset(Enum):
    """PRESET, which in a patch or in edits resets a setting: its value of the file or command line is removed."""

    VALUE = "preset"


PRESET: Final = Preset.VALUE
Patch = Mapping[str, Any]
"""Settings by dotted key with their new values."""
# Values that the user edited, by dotted key. PRESET removes a value of the config file or the command line.
Edits = Mapping[str, Any]


def with_changes(section: S, patch: Patch) -> S:
    """Return a copy of a config or section with the values of the patch, which are not validated."""
    for key, value in patch.items():
        name, _, inner_key = key.partition(".")
        new_value = with_changes(getattr(section, name), {inner_key: value}) if inner_key else value
        section = section.model_copy(update={name: new_value})
    return section


def settings_words(patch: Patch) -> str:
    """Return a patch as text: `data.group_by_length = true, training.learning_rate = 0.0003`."""
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in patch.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A setting whose value differs between two states of a config."""

    key: str
    old: Any
    new: Any

    def words(self, arrow: str) -> str:
        """Return the change as text: `training.seed: 1 -> 2`."""
        return f"{self.key}: {json.dumps(self.old)} {arrow} {json.dumps(self.new)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipePreview:
    """The changes that another recipe would make, and the user's values that stay instead of the recipe's (`new`)."""

    changes: tuple[Change, ...]
    kept_changes: tuple[Change, ...]


def is_same_value(value: Any, other: Any) -> bool:
    """Return whether two values of a setting are equal. 1.0 equals 1, but True does not."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoStep:
    """A step that can be undone: all edits before and after it. `label` is empty for settings changed one by one."""

    label: str
    before: Edits
    after: Edits
