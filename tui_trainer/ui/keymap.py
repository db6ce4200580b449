"""Which key does what: the registry's keys, changed by the user's own `keys.toml`; and the actions in the palette.

`~/.config/tui-trainer/keys.toml` gives other keys to actions by their id:

    "config.undo" = "z"
    "train.stop" = ["X", "ctrl+x"]
"""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from textual.app import App
from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.events import Event, Key
from textual.keys import Keys
from textual.markup import escape

from tui_trainer.runs.json_fields import dotted_keys
from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import ACTIONS, PLACES, TITLES, Action, Place, key_sign

_LIMIT_BYTES = 100_000
# Terminals send the same byte for them, or act on them themselves.
FAILING_KEYS: Final = {
    "ctrl+m": "is Enter", "ctrl+i": "is Tab", "ctrl+h": "is Backspace", "ctrl+j": "is Enter", "ctrl+[": "is Escape",
    "ctrl+left_square_bracket": "is Escape",
}  # fmt: skip
_NAMED_KEYS: Final = frozenset(key.value for key in Keys)
_LEAST_SCORE = 1e-6


@runtime_checkable
class TakesKeys(Protocol):
    """A screen or a field that is asked before its bindings are."""

    def take_key(self, event: Key) -> bool:
        """Do what the key means; whether it is done with."""


class KeysInOrder(App[None], inherit_bindings=False):
    """An application that carries out each key itself, on a screen of ours; others get theirs from Textual."""

    async def on_event(self, event: Event) -> None:
        is_done = isinstance(event, Key) and not event.is_forwarded and await self._carry_out(event)
        if not is_done:
            await super().on_event(event)

    async def _carry_out(self, event: Key) -> bool:
        screen = self.screen
        if not isinstance(screen, TakesKeys):
            return False
        self.app_focus = True
        if screen.take_key(event):
            return True
        bound = screen.active_bindings.get(event.key)
        return bound is not None and await self.run_action(bound.binding.action, bound.node)


class Keymap:
    """The actions with the keys that they really have. `problems` says what could not be taken from the user's file."""

    def __init__(self, own: dict[str, tuple[str, ...]] | None = None, problems: list[str] | None = None) -> None:
        self.problems = list(problems or [])
        self._by_key: dict[tuple[Place, str], Action] = {}
        own = own or {}
        kept: dict[str, tuple[str, ...]] = {}
        # What the user chose goes before what the registry has.
        for action in sorted(ACTIONS, key=lambda one: one.id not in own):
            wanted = dict.fromkeys(map(_as_reported, own.get(action.id, action.keys)))
            kept[action.id] = tuple(key for key in wanted if self._give(key, action))
            if wanted and not kept[action.id]:
                self.problems.append(f"{action.id} has no key left; the list of commands has it")
        self.actions = [replace(action, keys=kept[action.id]) for action in ACTIONS]
        self.changed = [now for now, before in zip(self.actions, ACTIONS, strict=True) if now.keys != before.keys]

    def _give(self, key: str, action: Action) -> bool:
        places = PLACES if action.place == "app" else ("app", action.place)
        taken = next((found for place in places if (found := self._by_key.get((place, key)))), None)
        if taken is None and not (refusal := _refusal(key)):
            self._by_key[action.place, key] = action
            return True
        why = f"the key {key} belongs to {taken.id} already" if taken else refusal
        self.problems.append(f"{one_line(why, 80)}: {action.id} does not get it")
        return False

    def find(self, place: Place, key: str, character: str | None) -> Action | None:
        """The action for a key press on a page; what the page has goes before what is everywhere."""
        names = [(where, name) for where in (place, "app") for name in (character, key) if name]
        return next((self._by_key[name] for name in names if name in self._by_key), None)

    def of(self, place: Place) -> list[Action]:
        return [action for action in self.actions if action.place == place]


def _as_reported(key: str) -> str:
    """A key as the terminal's library names it: `Ctrl+X` is `ctrl+x`, a blank is `space`."""
    return "space" if key == " " else key if len(key) == 1 else key.strip().lower()


def _refusal(key: str) -> str:
    """Why nobody can have this key; empty when it will do."""
    if why := FAILING_KEYS.get(key):
        return f"{key} {why} in terminals"
    if key in _NAMED_KEYS or (len(key) == 1 and key.isprintable()):
        return ""
    return f"{key} is no key; write the sign itself, or such as ctrl+x, f5, pageup"


def keys_file() -> Path:
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
    for name, keys in dotted_keys(values).items():
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


def textual_key(key: str) -> str:
    """A key of the registry as Textual names it: `?` is `question_mark`."""
    # A comma stands between keys there.
    return "comma" if key == "," else next(iter(Binding.make_bindings([Binding(key, "")]))).key


class ActionCommands(Provider):
    """What can be done now, on this screen and everywhere: see `TrainerApp.offered_actions` and `carry_out`."""

    app: Any

    def _offered(self) -> Iterable[tuple[Action, dict[str, Any]]]:
        """The actions of the footer first: to move is nothing that is looked for here."""
        for action in sorted(self.app.offered_actions, key=lambda one: one.footer or 100):
            keys = " ".join(key_sign(key, ascii_only=self.app.has_class("-ascii")) for key in action.keys)
            help = escape(f"{keys or 'no key'}: {action.help}")
            yield action, {"command": partial(self.app.carry_out, action.id), "help": help}

    async def discover(self) -> Hits:
        for action, more in self._offered():
            yield DiscoveryHit(_name(action), **more)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, more in self._offered():
            # The name counts more than the sentence about it, in which letters far from each other are found by chance.
            score = matcher.match(_name(action)) or _LEAST_SCORE * (query.casefold() in action.help.casefold())
            if score > 0:
                yield Hit(score, matcher.highlight(_name(action)), **more)


def _name(action: Action) -> str:
    return f"{TITLES[action.place]}: {action.label}"
