"""Which key does what: the registry's keys, changed by the user's own `keys.toml`.

`~/.config/tui-trainer/keys.toml` gives other keys to actions by their id:

    "config.undo" = "z"
    "train.stop" = ["X", "ctrl+x"]
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import ACTIONS, Action, Place

_LIMIT_BYTES = 100_000


class Keymap:
    """The actions with the keys that they really have. `problems` says what could not be taken from the user's file."""

    def __init__(self, own: dict[str, tuple[str, ...]] | None = None, problems: list[str] | None = None) -> None:
        self.problems = list(problems or [])
        own = own or {}
        self.actions = [replace(action, keys=own.get(action.id, action.keys)) for action in ACTIONS]
        self._by_key: dict[tuple[Place, str], Action] = {}
        for action in self.actions:
            for key in action.keys:
                first = self._by_key.setdefault((action.place, key), action)
                if first is not action:
                    self.problems.append(f"the key {key} belongs to {first.id} already; {action.id} does not get it")

    def find(self, place: Place, key: str, character: str | None) -> Action | None:
        """The action for a key press on a page; what the page has goes before what is everywhere."""
        for where in (place, "app"):
            for name in (character, key):
                if name and (found := self._by_key.get((where, name))):
                    return found
        return None

    def of(self, place: Place) -> list[Action]:
        """The actions of one page."""
        return [action for action in self.actions if action.place == place]


def keys_file() -> Path:
    """Where the user's own keys are written."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return home / "tui-trainer" / "keys.toml"


def load_keymap() -> Keymap:
    """The registry with the user's changes; a file that cannot be understood changes nothing and is told."""
    try:
        path = keys_file()
        if not path.is_file():
            return Keymap()
        raw = path.read_bytes()[:_LIMIT_BYTES]
        values = tomllib.loads(raw.decode())
    except (OSError, RuntimeError, ValueError, RecursionError) as error:
        return Keymap(problems=[f"keys.toml cannot be read: {one_line(str(error), 120)}"])
    own: dict[str, tuple[str, ...]] = {}
    problems = []
    known = {action.id for action in ACTIONS}
    for name, keys in _flat(values).items():
        listed = [keys] if isinstance(keys, str) else keys
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"keys.toml: there is no action {one_line(name, 40)}{meant}")
        elif not isinstance(listed, list) or not listed or not all(isinstance(key, str) and key for key in listed):
            problems.append(f"keys.toml: {name} must be a key or a list of keys")
        else:
            own[name] = tuple(listed)
    return Keymap(own, problems)


def _flat(values: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
