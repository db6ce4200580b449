"""All actions with their keys, changed by the user's own `keys.toml`.

`~/.config/tui-trainer/keys.toml` gives other keys to actions by their id:

    "config.undo" = "z"
    "train.stop" = ["X", "ctrl+x"]
"""

import os
import re
import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol, cast, runtime_checkable

from textual.app import App
from textual.binding import Binding
from textual.events import Event, Key
from textual.keys import Keys

from tui_trainer.files.local_paths import expand_home
from tui_trainer.runs.json_fields import dotted_keys
from tui_trainer.terminal.safe_text import one_line

PageName = Literal["app", "hardware", "config", "checklist", "train", "runs"]
PLACES: Final[tuple[PageName, ...]] = ("app", "hardware", "config", "checklist", "train", "runs")
TITLES: Final[dict[PageName, str]] = {place: "Everywhere" if place == "app" else place.title() for place in PLACES}
SIGNS: Final[dict[str, str]] = {
    "up": "\u2191", "down": "\u2193", "left": "\u2190", "right": "\u2192", "enter": "Enter", "escape": "Esc",
    "space": "Space", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home", "end": "End", "tab": "Tab",
    "shift+tab": "Shift+Tab", "backspace": "Backspace", "delete": "Del",
}  # fmt: skip
_ASCII_SIGNS: Final = {"up": "Up", "down": "Down", "left": "Left", "right": "Right"}

# Actions of the footer that open a dialog.
_OPENING: Final[dict[str, str]] = {
    "app": "start new", "hardware": "processes", "config": "recipe preview rehearse tune",
    "train": "stop detach doctor try_model export more curves",
    "runs": "resume stop tags compare rename delete export more",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """An action of a page, or with the place `app` of all pages.

    `keys` are Textual's names, or single characters. `footer_rank` is the rank among the key hints, 0 for none.
    """

    place: PageName
    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    footer_rank: int = 0

    @property
    def id(self) -> str:
        return f"{self.place}.{self.name}"

    @property
    def dots(self) -> str:
        """Dots after the label in the footer, if the action opens a dialog; otherwise empty."""
        return "..." if self.name in _OPENING.get(self.place, "").split() else ""


def _action(place: PageName, name: str, keys: str, label: str, help: str, footer: int = 0) -> Action:
    return Action(place=place, name=name, keys=tuple(keys.split()), label=label, help=help, footer_rank=footer)


def _moves(
    place: PageName, up: str, down: str, first: str, last: str, first_label: str = "first", last_label: str = "last"
) -> tuple[Action, ...]:
    return (
        _action(place, "up", "up k", "up", up),
        _action(place, "down", "down j", "down", down),
        _action(place, "page_up", "pageup", "page up", "Move up one page."),
        _action(place, "page_down", "pagedown", "page down", "Move down one page."),
        _action(place, "first", "home g", first_label, first),
        _action(place, "last", "end G", last_label, last),
    )


ACTIONS: Final[tuple[Action, ...]] = (
    _action("app", "go_hardware", "1", "hardware", "Open the Hardware screen: this machine and its problems."),
    _action("app", "go_config", "2", "config", "Open the Config screen: all settings, recipes and a live plan."),
    _action("app", "go_checklist", "3", "checklist", "Open the Checklist screen: is the run ready, and is it fast?"),
    _action("app", "go_train", "4", "train", "Open the Train screen: live progress of the run."),
    _action("app", "go_runs", "5", "runs", "Open the Runs screen: all runs on this machine."),
    _action("app", "next_screen", "tab", "next screen", "Go to the next screen."),
    _action("app", "previous_screen", "shift+tab", "previous screen", "Go to the previous screen."),
    _action("app", "start", "t", "start", "Show the plan of the run, and start it once you confirm.", 5),
    _action("app", "new", "n", "new run", "Start a run on your own data and model: choose them, see the plan.", 35),
    _action("app", "help", "? f1", "help", "Show the keys of this screen, and the guides."),
    _action("app", "palette", ": ctrl+p", "commands", "Search actions, settings, runs, guides ... by name."),
    _action("app", "jump", "f", "jump", "Show a letter on every control; press a letter to activate its control."),
    _action("app", "command", "Y", "copy command", "Copy a command line that does the same as this screen."),
    _action("app", "mouse", "F", "mouse", "Let the mouse select text of your terminal, or click here again."),
    _action("app", "redraw", "ctrl+l", "redraw", "Redraw the whole screen, if another program has written over it."),
    _action("app", "save_screen", "f12", "save screen", "Save this screen as a picture (SVG)."),
    _action("app", "theme", "T", "theme", "Choose a colour theme; the choice is saved."),
    _action("app", "bell", "B", "bell", "Turn on or off a bell for runs that end while another window has the focus."),
    _action("app", "interrupt", "ctrl+c", "copy selection", "Copy the selected text. This key does not stop anything."),
    _action("app", "suspend", "ctrl+z", "suspend", "Suspend to the shell: `bg` continues training, `fg` returns here."),
    _action("app", "quit", "q ctrl+q", "quit", "Quit. If a run is active, you choose what happens to it.", 95),
    #
    *_moves("hardware", "Scroll up.", "Scroll down.", "Go to the top.", "Go to the end.", "to the top", "to the end"),
    _action("hardware", "next_gpu", "space", "next GPU", "Use the next GPU; after the last, choose automatically.", 20),
    _action("hardware", "try_out", "m", "measure", "Benchmark precision, attention, speed, disks (takes seconds).", 15),
    _action("hardware", "processes", "p", "processes", "Show what uses GPUs and CPU; end your own processes.", 12),
    _action("hardware", "download", "d", "download", "Download a model or a data set; you see its size first."),
    _action("hardware", "install", "i", "install", "Install an extra of tui-trainer, or a library that it can use."),
    _action("hardware", "look_again", "r", "refresh", "Read the machine again: GPUs, memory, disks.", 10),
    #
    *_moves("config", "Go to the setting above.", "Go to the setting below.", "Go to the first setting.",
            "Go to the last setting."),
    _action("config", "previous_group", "{", "previous group", "Go to the previous group of settings."),
    _action("config", "next_group", "}", "next group", "Go to the next group of settings."),
    _action("config", "edit", "enter", "edit", "Edit the value in place.", 10),
    _action("config", "toggle", "space", "toggle", "Switch to the next choice, or between true and false."),
    _action("config", "less", "left h", "less", "Decrease: half the batch, the next lower rate, the previous choice."),
    _action("config", "more", "right l", "more", "Increase: twice the batch, the next higher rate, the next choice."),
    _action("config", "undo", "u", "undo", "Undo the last change.", 20),
    _action("config", "redo", "ctrl+r U", "redo", "Redo the change that was undone."),
    _action("config", "reset", "r", "reset", "Reset this setting to the recipe's value."),
    _action("config", "reset_all", "R", "reset all", "Reset all settings to the recipe's values; undo restores them."),
    _action("config", "recipe", "p", "recipes", "Choose a recipe; you see first what it would change.", 30),
    _action("config", "filter", "/", "filter", "Show only settings that match the words you type.", 50),
    _action("config", "clear", "escape", "clear", "Clear the filter."),
    _action("config", "changed_only", "o", "changed", "Show only settings that differ from the recipe, or all.", 60),
    _action("config", "show_all", "+", "all", "Show or hide settings that are rarely changed or not used by this run."),
    _action("config", "next_problem", "!", "next problem", "Go to the next setting with a problem.", 36),
    _action("config", "save", "s", "save", "Save the settings that differ from the recipe to the config file.", 40),
    _action("config", "save_as", "S", "save as", "Save to another file."),
    _action("config", "editor", "e", "open in $EDITOR", "Edit the settings as TOML in your editor."),
    _action("config", "preview", "v", "preview", "Show a batch as the model sees it, with trained tokens marked.", 55),
    _action("config", "rehearse", "w", "rehearse", "Dry run: try the largest batches, an evaluation and a save.", 57),
    _action("config", "tune", "m", "tune", "Measure which settings are fastest here; `a` applies them.", 58),
    _action("config", "sizes", "M", "effective batch", "Find how many rows per step make full use of this machine."),
    _action("config", "switches", "b", "bench settings", "Measure what each speed setting gains here (minutes)."),
    _action("config", "import", "i", "import", "Import a config from another tool; you see the result first."),
    _action("config", "download", "d", "download", "Download the model, or the data set if data.path is selected."),
    _action("config", "copy", "y", "copy", "Copy `key = value` to the clipboard of your terminal."),
    #
    *_moves("checklist", "Go to the check above.", "Go to the check below.", "Go to the first check.",
            "Go to the last check."),
    _action("checklist", "show", "enter", "show", "Show everything that this check found."),
    _action("checklist", "apply", "a", "apply fix", "Apply the fix that this check suggests to the config.", 10),
    _action("checklist", "apply_all", "A", "apply all", "Apply all suggested fixes as one change.", 15),
    _action("checklist", "setting", "c", "open setting", "Go to the setting of this check on Config.", 17),
    _action("checklist", "measure", "m", "measure", "Measure the speed with and without this check's setting.", 25),
    _action("checklist", "measure_all", "M", "measure all", "Measure all checks that have a setting to toggle."),
    _action("checklist", "install", "i", "install", "Install what this check suggests; you see the command first."),
    _action("checklist", "cancel", "escape", "stop measuring", "Stop measuring; results so far are saved.", 5),
    _action("checklist", "undo", "u", "undo", "Undo the last change of the config.", 20),
    _action("checklist", "open_only", "o", "open only", "Show only checks that need attention, or all checks.", 40),
    _action("checklist", "again", "r", "check again", "Run all checks again.", 30),
    #
    _action("train", "pause", "p", "pause", "Pause or resume the run. This does not change the result.", 10),
    _action("train", "save", "s", "save", "Write a checkpoint after this step.", 20),
    _action("train", "evaluate", "E", "evaluate", "Measure the held-out loss after this step.", 30),
    _action("train", "stop", "S", "stop", "Save and stop after this step; you can resume the run later.", 40),
    _action("train", "detach", "&", "detach", "Detach: the run continues in a background process.", 42),
    _action("train", "smoothing", "z", "smoothing", "Change the smoothing of the curve: 0, 0.6, 0.9, 0.98."),
    _action("train", "log_scale", "Z", "log scale", "Switch between a linear and a logarithmic axis.", 60),
    _action("train", "metric", "v", "metric", "Draw the next metric: speed, scores ...", 50),
    _action("train", "curves", "V", "curves", "Choose one or two metrics to draw.", 52),
    _action("train", "zoom_in", "+ =", "zoom in", "Show fewer steps."),
    _action("train", "zoom_out", "-", "zoom out", "Show more steps."),
    _action("train", "zoom_all", "0", "all steps", "Show all steps again."),
    _action("train", "tail", "a", "latest steps", "Show only the latest steps, or all steps again."),
    _action("train", "large", "W", "enlarge", "Enlarge the curve, then events, log, samples; Esc shows all again."),
    _action("train", "cross_left", "left h", "read left", "Move the crosshair to the left, to read off values."),
    _action("train", "cross_right", "right l", "read right", "Move the crosshair to the right, to read off values."),
    _action("train", "clear", "escape", "clear", "Clear the event filter; if there is none, remove the crosshair."),
    _action("train", "doctor", "H", "doctor", "Show where the run loses time, and what to change next time.", 45),
    _action("train", "log", "L", "log", "Show or hide the log: what was written to standard output."),
    _action("train", "table", "C", "scores", "Show the scores per class (confusion matrix) or per kind of tag.", 32),
    _action("train", "freeze", "space", "freeze", "Freeze or unfreeze the display; training continues."),
    _action("train", "filter", "/", "filter events", "Show only events and log lines that contain what you type.", 90),
    _action("train", "up", "up k", "older", "Show older events."),
    _action("train", "down", "down j", "newer", "Show newer events."),
    _action("train", "try_model", "w", "try the model", "Try the latest weights on your own text.", 49),
    _action("train", "export", "x", "export", "Export the model to another format; compare model and export.", 80),
    _action("train", "more", "M", "more", "More actions: evaluate, gate, predict, measure speed, publish.", 47),
    _action("train", "report", "y", "copy report", "Copy the path of the run's report.html."),
    #
    *_moves("runs", "Go to the run above.", "Go to the run below.", "Go to the first run.", "Go to the last run."),
    _action("runs", "open", "enter", "open", "Open the run on the Train screen, whether active or finished.", 10),
    _action("runs", "resume", "p", "resume", "Resume the run from its latest checkpoint, once you confirm.", 20),
    _action("runs", "stop", "S", "stop", "Save and stop an active run, once you confirm.", 20),
    _action("runs", "mark", "space", "mark", "Mark or unmark a run to compare, delete or export.", 30),
    _action("runs", "mark_all", "*", "mark all", "Mark all runs shown, or clear their marks."),
    _action("runs", "metric", "v", "metric", "Draw the next curve: loss, scores, learning rate, speed."),
    _action("runs", "tags", "#", "tags", "Set tags of the run, even while it trains; filter with `#word`.", 55),
    _action("runs", "note", "e", "note", "Write a one-line note on the run."),
    _action("runs", "compare", "C", "compare", "Compare two to six marked runs: curves, scores, settings.", 25),
    _action("runs", "new", "c", "new from config", "Load this run's settings for a new run.", 40),
    _action("runs", "rename", "N", "rename", "Rename the run. It must not be active.", 60),
    _action("runs", "delete", "D", "delete", "Delete the marked runs, or this one; you see the freed space first.", 34),
    _action("runs", "copy", "y", "copy path", "Copy the path of the run's folder."),
    _action("runs", "export", "x", "export", "Export the models of the marked runs, or of this one.", 65),
    _action("runs", "more", "M", "more", "More actions: evaluate, gate, predict, measure speed, publish.", 33),
    _action("runs", "report", "ctrl+y", "copy report", "Copy the path of the run's report.html."),
    _action("runs", "sort", "o", "sort", "Sort by the next column; after the last column, newest runs first again."),
    _action("runs", "reverse", "O", "reverse", "Reverse the sort order."),
    _action("runs", "filter", "/", "filter", "Show only matching runs: words, #tag, model:bert, accuracy>0.8.", 32),
    _action("runs", "clear", "escape", "clear", "Clear the filter; if there is none, clear the marks."),
    _action("runs", "again", "r", "refresh", "Read the list of runs again."),
)  # fmt: skip


CHANGES_RUNS: Final = frozenset(
    "app.start app.new hardware.processes train.pause train.save train.evaluate train.stop train.detach train.export "
    "train.more runs.resume runs.stop runs.tags runs.note runs.rename runs.delete runs.export runs.more".split()
)
"""Actions that start, control or change a run. `attach --view` refuses them."""


def key_sign(key: str, *, ascii_only: bool = False) -> str:
    if ascii_only and key in _ASCII_SIGNS:
        return _ASCII_SIGNS[key]
    if key in SIGNS:
        return SIGNS[key]
    if key.startswith("ctrl+"):
        return f"Ctrl+{key[5:].upper()}"
    return key.upper() if len(key) > 1 else key


def key_of_sign(sign: str) -> str:
    """Return the key that is shown as `sign`. Empty for a palette name, which replaces the sign of a missing key."""
    name = next((key for signs in (SIGNS, _ASCII_SIGNS) for key, other_sign in signs.items() if other_sign == sign), "")
    return name or (sign if len(sign) == 1 else "" if sign.startswith(":") else sign.lower())


_LIMIT_BYTES = 100_000
# Terminals send the same byte for such a key as for another key.
FAILING_KEYS: Final = {
    "ctrl+m": "is Enter", "ctrl+i": "is Tab", "ctrl+h": "is Backspace", "ctrl+j": "is Enter", "ctrl+[": "is Escape",
    "ctrl+left_square_bracket": "is Escape",
}  # fmt: skip
_NAMED_KEYS: Final = frozenset(key.value for key in Keys)


@runtime_checkable
class KeyHandler(Protocol):
    """A screen or a field that handles keys before its bindings do."""

    def take_key(self, event: Key) -> bool:
        """Handle a key. Return False to leave it to the bindings."""


class KeysInOrder(App[None], inherit_bindings=False):
    """An application that passes each key to `take_key` of the screen, and to the bindings if that returns False."""

    async def on_event(self, event: Event) -> None:
        is_done = isinstance(event, Key) and not event.is_forwarded and await self._carry_out(event)
        if not is_done:
            await super().on_event(event)

    async def _carry_out(self, event: Key) -> bool:
        screen = self.screen
        if not isinstance(screen, KeyHandler):
            return False
        self.app_focus = True
        if screen.take_key(event):
            return True
        bound = screen.active_bindings.get(event.key)
        return bound is not None and await self.run_action(bound.binding.action, bound.node)

    def simulate_key(self, key: str) -> None:
        """Send a key event. It contains the character, for example `/`, which dialogs need and Textual leaves out."""
        self.post_message(Key(textual_key(key), key if len(key) == 1 else None))


class Keymap:
    """Actions with the user's keys. `problems` says which entries of the user's file could not be used, and why."""

    def __init__(self, own_keys: dict[str, tuple[str, ...]] | None = None, problems: list[str] | None = None) -> None:
        self.problems = list(problems or [])
        self._by_key: dict[tuple[PageName, str], Action] = {}
        own_keys = own_keys or {}
        keys: dict[str, tuple[str, ...]] = {}
        # The user's keys are assigned first, so that they replace default keys.
        for action in sorted(ACTIONS, key=lambda action: action.id not in own_keys):
            # Textual's names are `ctrl+x` for `Ctrl+X`, and `space` for a blank.
            key_names = dict.fromkeys("space" if key == " " else key if len(key) == 1 else key.strip().lower()
                                      for key in own_keys.get(action.id, action.keys))  # fmt: skip
            keys[action.id] = tuple(key for key in key_names if self._assign(key, action))
            if key_names and not keys[action.id]:
                self.problems.append(f"the action {action.id} has no key; use it from the command palette")
        self.actions = [replace(action, keys=keys[action.id]) for action in ACTIONS]
        self.changed = [entry for entry, preset in zip(self.actions, ACTIONS, strict=True) if entry.keys != preset.keys]

    def _assign(self, key: str, action: Action) -> bool:
        """Assign a key to an action. If that is not possible, note a problem and return False."""
        places = PLACES if action.place == "app" else ("app", action.place)
        other_action = next((self._by_key[place, key] for place in places if (place, key) in self._by_key), None)
        if other_action is None and not (refusal := _refusal(key)):
            self._by_key[action.place, key] = action
            return True
        reason = f"the key {key} is already used by {other_action.id}" if other_action else refusal
        self.problems.append(f"keys.toml: {action.id}: {one_line(reason, 80)}")
        return False

    def find(self, place: PageName, key: str, character: str | None) -> Action | None:
        """Return the action of a key on a page; None if the key has none. The page's own actions take precedence."""
        candidates = [(scope, name) for scope in (place, "app") for name in (character, key) if name]
        return next((self._by_key[name] for name in candidates if name in self._by_key), None)

    def key_of(self, action_id: str, *, ascii_only: bool = False) -> str:
        """Return the sign of an action's key, for messages. An action without a key is named as in the palette."""
        action = next(action for action in self.actions if action.id == action_id)
        return key_sign(action.keys[0], ascii_only=ascii_only) if action.keys else f":{action.label}"

    def actions_on(self, place: PageName) -> list[Action]:
        return [action for action in self.actions if action.place == place]


def _refusal(key: str) -> str:
    """Return why no action can have this key; empty if the key can be used."""
    if reason := FAILING_KEYS.get(key):
        return f"{key} {reason} in terminals"
    if key in _NAMED_KEYS or (len(key) == 1 and key.isprintable()):
        return ""
    return f"{key} is not a key; write the character itself or a name such as ctrl+x, f5, pageup"


def keys_file() -> Path:
    """Return the path of `keys.toml`: in `TUI_TRAINER_HOME` if it exists there, else in the user's settings folder."""
    home = os.environ.get("TUI_TRAINER_HOME")
    if home and (own_file := expand_home(home) / "keys.toml").is_file():
        return own_file
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tui-trainer" / "keys.toml"


def load_keymap() -> Keymap:
    """Return the keymap with the user's keys. If the file cannot be read, the default keys stay, with a problem."""
    try:
        path = keys_file()
        if not path.is_file():
            return Keymap()
        raw = path.read_bytes()[:_LIMIT_BYTES]
        values = tomllib.loads(raw.decode())
    except (OSError, RuntimeError, ValueError, RecursionError) as error:
        return Keymap(problems=[f"could not read keys.toml: {one_line(str(error), 120)}"])
    own_keys: dict[str, tuple[str, ...]] = {}
    problems = []
    action_ids = {action.id for action in ACTIONS}
    for name, keys in dotted_keys(values).items():
        names = [keys] if isinstance(keys, str) else keys
        if name not in action_ids:
            close_names = get_close_matches(name, action_ids, n=1)
            suggestion = f"; did you mean {close_names[0]}?" if close_names else ""
            problems.append(f"keys.toml: unknown action {one_line(name, 40)}{suggestion}")
        elif not isinstance(names, list) or not names or not all(isinstance(key, str) and key for key in names):
            problems.append(f"keys.toml: {name} must be a key or a list of keys")
        else:
            own_keys[name] = tuple(names)
    return Keymap(own_keys, problems)


# Commands in messages of other rooms, and the actions that do the same. A command that is meant for another terminal
# stays in the message, such as `tui-trainer attach` without a name. So does one to be copied: `$ tui-trainer plan`.
_NAME: Final = r"[^\s`;,)]+"
_DONE_HERE: Final = tuple(
    (rf"(?:(?P<what>\w+) with: |(?P<run>run ))?(?:`{command}`|(?<!`)(?<!sync )(?<!\$ ){command}(?![\w-]))", action)
    for command, action in ((f"tui-trainer {words}", action) for words, action in (
        (f"ask {_NAME} (?:pause|resume)", "train.pause"), (f"resume {_NAME}", "runs.resume"),
        (f"stop {_NAME}", "runs.stop"), (f"attach {_NAME}", "runs.open"), ("runs", "app.go_runs"),
        ("preview", "config.preview"), ("rehearse", "config.rehearse"), ("tune --effective", "config.sizes"),
        ("tune", "config.tune"), ("check --measure [a-z -]+", "checklist.measure"),
        (f"check --fix {_NAME}", "checklist.apply"), (f"doctor {_NAME}(?: --fix {_NAME})?", "train.doctor"),
        ("diagnose --try", "hardware.try_out"), ("diagnose", "app.go_hardware"),
        (f"install {_NAME}", "hardware.install"),
        (f"download(?: --data)?(?: {_NAME})?", "config.download"), (f"(?:generate|chat) {_NAME}", "train.try_model"),
        ("evaluate", "runs.more"),
        (f"export {_NAME} --to {_NAME}", "runs.export"), (f"bench {_NAME}", "runs.more"), ("report", "runs.more"),
        ("plan", "app.go_config"), ("guide", "app.help"),
    ))
)  # fmt: skip
active_keymap = Keymap()
"""Keymap of the running application."""


def name_keys_for_commands(text: str) -> str:
    """Return a message with commands replaced by keys: `see tui-trainer preview` becomes `see v on Config`."""
    if "tui-trainer " in text:
        for command, action in _DONE_HERE:
            text = re.sub(command, partial(_key_words, action), text)
    return text


def _key_words(action_id: str, command: re.Match[str]) -> str:
    key, place = active_keymap.key_of(action_id), cast("PageName", action_id.partition(".")[0])
    if verb := command["what"]:
        return f"press {key} to {verb}"
    place_note = f" ({action_id.rpartition('_')[2].removeprefix('app.')})" if place == "app" else f" on {TITLES[place]}"
    return f"{'press ' if command['run'] else ''}{key}{place_note}"


def textual_key(key: str) -> str:
    """Return Textual's name of a key, such as `question_mark` for `?`."""
    # Textual separates keys by commas.
    return "comma" if key == "," else next(iter(Binding.make_bindings([Binding(key, "")]))).key
