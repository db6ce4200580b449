"""The command palette: a searchable list of actions, settings, runs and guides. Enter does the chosen one.

Textual's own palette (8.2) ends the application if keys come faster than it opens and closes: a page key before its
list is drawn, Enter and a click at once, or a letter before Escape."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from textual.events import Key

from tui_trainer.errors import ConfigError
from tui_trainer.lines.guides import guides, sections
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import SearchDialog
from tui_trainer.ui.keymap import PLACES, TITLES, Action, key_sign
from tui_trainer.ui.search import match
from tui_trainer.ui.spans import Line, Role, both_ends_line, fit, paragraph

if TYPE_CHECKING:
    from tui_trainer.config.toml_files import Profile
    from tui_trainer.runs.folder import RunFolder

_NAME_CELLS = 44
# These actions act on what the user sees on their own page, so they are useless from another page.
MOVES = ("up", "down", "page_up", "page_down", "first", "last")
_UNLISTED = (*MOVES, "clear", "cancel")
_READING = "runs for the palette"
# Arguments of the `tui-trainer` command that does the same as an action.
_COMMANDS: Final = {
    "app.start": "train {settings}", "hardware.look_again": "diagnose", "hardware.try_out": "diagnose --try",
    "config.edit": "plan {settings}", "config.preview": "preview {settings}", "config.rehearse": "rehearse {settings}",
    "config.tune": "tune {settings}", "config.sizes": "tune --effective {settings}",
    "config.switches": "bench train {settings}", "checklist.again": "check {settings}",
    "checklist.measure_all": "check --measure all {settings}", "train.save": "ask {run} save",
    "train.evaluate": "ask {run} evaluate", "train.stop": "stop {run}", "train.doctor": "doctor {run}",
    "train.try_model": "generate {run}", "train.more": "report {run}", "runs.open": "attach {run}",
    "runs.resume": "resume {run}", "runs.stop": "stop {run}", "runs.delete": "delete {run}",
    "runs.more": "evaluate {run}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """An entry of the palette, found by its `name`, its `help` and the words of `text`. All texts are safe to show.

    `show` previews the entry while it is chosen. If `is_elsewhere`, the entry is listed only for a search. `refusal`
    says why the command is not possible now."""

    name: str
    help: str
    do: Callable[[], object]
    note: str = ""
    show: Callable[[], object] | None = None
    is_elsewhere: bool = False
    text: str = ""
    refusal: str = ""


Hit = tuple[Command, Sequence[int]]
"""A command, and the positions of the letters of its name that matched."""


def matching_commands(commands: Iterable[Command], letters: str) -> list[Hit]:
    """Return the commands that match, the best first. Without letters, return those that are not `elsewhere`."""
    if not letters.strip():
        return [(command, ()) for command in commands if not command.is_elsewhere]
    hits = [(hit, command) for command in commands
            if (hit := match(letters, command.name, f"{command.help} {command.text}"))]  # fmt: skip
    hits.sort(key=lambda pair: pair[0].rank)
    return [(command, hit.places) for hit, command in hits]


class Palette(SearchDialog[Hit]):
    keys: Sequence[tuple[str, str]] = (("enter", "select"), ("up down", "choose"), ("escape", "close"))

    def __init__(self, heading: str, commands: Sequence[Command], back: Callable[[], object] | None = None) -> None:
        """Create the palette. `back` is called if the user closes it without choosing a command."""
        super().__init__()
        self.heading, self._commands, self._back = heading, commands, back
        self.list.show(matching_commands(commands, ""))

    def list_matches(self) -> None:
        self.list.show(matching_commands(self._commands, self.field.value), self.list.place)

    def click_row(self, is_double_click: bool) -> None:
        self.accept_input()

    @property
    def chosen(self) -> Command | None:
        """The chosen command; None if no command matches."""
        return self.list.chosen[0] if self.list.chosen else None

    def add(self, commands: Sequence[Command]) -> None:
        """Add commands that became known after the palette was opened, such as runs on a slow disk."""
        self._commands = [*self._commands, *commands]
        if self.field.value and not self.is_closed:
            self.list_matches()
            self.choose(self.list.place)

    def row(self, row: Hit, width: int) -> Line:
        command, positions = row
        role: Role = "dim" if command.refusal else "text"
        name: Line = [(letter, "accent" if index in positions else role) for index, letter in enumerate(command.name)]
        gap = " " * max(min(_NAME_CELLS, (width + 1) // 2) - cell_len(command.name), 2)
        help_spans: Line = [(gap, "text"), (command.refusal or command.help, "dim")]
        line: Line = [(f"{self._mark_of(command)} ", "text"), *name, *help_spans]
        left_cells = width - cell_len(command.note) - 2
        return both_ends_line(fit(line, left_cells, self.glyphs.ellipsis), [(f" {command.note} ", "key")], width)

    def _mark_of(self, command: Command) -> str:
        return ""

    def about(self, width: int, _: int) -> list[Line]:
        note = f" Not possible now: {self.chosen.refusal}." if self.chosen and self.chosen.refusal else ""
        return paragraph(self.chosen.help + note, width) if self.chosen else []

    def on_choice(self) -> None:
        if self.chosen and self.chosen.show:
            self.chosen.show()

    def accept_input(self) -> None:
        # Letters typed before the field was mounted have not been searched for yet.
        self.list_matches()
        if command := self.chosen:
            self._back = None
            self.close()
            command.do()

    def close(self) -> None:
        super().close()
        if self._back is not None:
            callback, self._back = self._back, None
            callback()


class MarkingPalette(Palette):
    """A palette in which Space marks up to `most` commands. Enter passes their names to `take_names`.

    If the user has not changed the marks, Enter passes the name of the chosen command instead.
    """

    keys = (("enter", "draw"), ("space", "mark"), ("up down", "choose"), ("escape", "close"))

    def __init__(
        self, heading: str, commands: Sequence[Command], marked: Sequence[str], most: int,
        take_names: Callable[[list[str]], object],
    ) -> None:  # fmt: skip
        super().__init__(heading, commands)
        self._marked, self._before, self._most, self._take_names = list(marked), list(marked), most, take_names

    def about(self, width: int, _: int) -> list[Line]:
        # The help of a curve is its newest value, which its row already shows.
        hint = f"Space marks up to {self._most} curves, Enter draws the marked curves. Type to search by name."
        return paragraph(hint, width, "dim")

    def _mark_of(self, command: Command) -> str:
        return self.glyphs.changed if command.name in self._marked else " "

    def click_row(self, is_double_click: bool) -> None:
        if is_double_click and self.chosen:
            self._marked = [self.chosen.name]
            self.accept_input()
        elif self.chosen:
            self._toggle(self.chosen.name)

    def take_key(self, event: Key) -> bool:
        if event.key != "space" or self.chosen is None:
            return super().take_key(event)
        self._toggle(self.chosen.name)
        return True

    def _toggle(self, name: str) -> None:
        if name in self._marked:
            self._marked.remove(name)
        else:
            # Beyond the limit, the mark that was set first is removed.
            self._marked = [*self._marked, name][-self._most :]
        self.redraw()

    def accept_input(self) -> None:
        self.list_matches()
        names = self._marked
        if self.chosen and (names == self._before or not names):
            names = [self.chosen.name]
        if names:
            self.close()
            self._take_names(names)


def _command(app: Any, action: Action, refusal: str | None = None) -> Command:
    """Return the palette's entry for an action. For an action of another page, the entry first opens that page."""
    key_signs = " ".join(key_sign(key, ascii_only=app.bench.glyphs.ascii) for key in action.keys)
    do = partial(app.call_next, app.perform_action, action.id)
    if action.place not in ("app", app.page.place):
        do = partial(app.do_on_page, action.place, partial(app.perform_action, action.id))
    name = f"{TITLES[action.place]}: {action.label}"
    is_elsewhere = refusal is not None
    return Command(name, action.help, do, key_signs or "no key", is_elsewhere=is_elsewhere, refusal=refusal or "")


def actions_here(app: Any) -> list[Command]:
    """Return entries for the actions that are possible now. The actions of the footer come first."""
    actions = sorted(app.offered_actions, key=lambda action: action.footer_rank or 100)
    return [_command(app, action) for action in actions]


def all_commands(app: Any) -> list[Command]:
    """Return all entries: actions of this page and of others, settings, recipes, sections of guides, and themes."""
    entries = [(action, refusal) for action in app.page_actions if (refusal := app.refusal(action))]
    other_places = [place for place in PLACES[1:] if place != app.page.place]
    entries += [(action, "") for place in other_places for action in app.keymap.actions_on(place)]
    actions = [_command(app, action, refusal) for action, refusal in entries if action.name not in _UNLISTED]
    themes = [replace(theme, name=f"Theme: {theme.name}", is_elsewhere=True) for theme in theme_commands(app)]
    guide_pages = [replace(section, is_elsewhere=True) for section in guide_commands(app)]
    return [*actions_here(app), *_more_here(app), *actions, *_of_the_config(app), *guide_pages, *themes]


def _more_here(app: Any) -> list[Command]:
    """Return entries for the items of the menu `more`, if this page shows a run."""
    menu = next((action for action in app.offered_actions if action.id in ("runs.more", "train.more")), None)
    if menu is None:
        return []
    note = f"Acts on the {'selected ' * (menu.place == 'runs')}run."
    return [
        Command(f"{TITLES[menu.place]}: {label}", note, partial(app.call_next, do), " ".join([*menu.keys[:1], key]))
        for key, label, do in app.page.more_answers()
    ]


def _of_the_config(app: Any) -> list[Command]:
    if app.bench.document is None:
        return []
    from tui_trainer.config.explain import groups
    from tui_trainer.config.toml_files import all_profiles

    recipes: dict[str, Profile] = {}
    # The list of recipes on Config reports a recipe that cannot be read.
    with suppress(ConfigError):
        recipes = all_profiles("recipes")
    settings = [setting for _, _, members in groups() for setting in members]
    rows = [(f"Setting: {setting.key}", setting.help, partial(app.show_setting, setting.key)) for setting in settings]
    rows += [(f"Recipe: {name}", one_line(recipe.summary), partial(app.show_recipe, name))
             for name, recipe in recipes.items()]  # fmt: skip
    return [Command(*row, is_elsewhere=True) for row in rows]


def guide_commands(app: Any) -> list[Command]:
    """Return an entry for each section of each guide. Its search words are the whole text of the section."""
    commands = []
    for name, title in guides().items():
        for section in sections(name):
            subject = title.partition(":")[0]
            heading = f"{subject}: {section.title}" if section.title else subject
            # The first section has no title, and gets the description of the guide.
            paragraphs = (" ".join(part.split()) for part in section.text.split("\n\n") if part[:1].isalpha())
            intro = next(paragraphs, title) if section.title else title
            commands.append(Command(f"Guide: {heading}", intro, partial(app.read_guide, section), text=section.text))
    return commands


def theme_commands(app: Any, *, shows: bool = False) -> list[Command]:
    """Return an entry for each theme, the terminal's own colours first. With `shows`, a chosen theme is previewed."""
    commands = []
    for name, theme in sorted(app.available_themes.items(), key=lambda pair: (not pair[1].ansi, pair[0])):
        apply = partial(setattr, app, "theme", name)
        help_text = "the terminal's own colours" if theme.ansi else "dark" if theme.dark else "light"
        note = "now" if name == app.theme else ""
        commands.append(Command(name, help_text, apply, note, show=apply if shows else None))
    return commands


def copy_command_entries(app: Any) -> list[Command]:
    """Return entries that copy command lines: that of the open dialog, or else those of this page's actions."""
    from tui_trainer.measure.config_process import config_options

    bench, page, lines = app.bench, app.page, dict[str, str]()
    if app.dialog and (arguments := app.dialog.command_words):
        lines[arguments[0]] = shlex.join(arguments)
    loaded_config = bench.document and bench.document.loaded
    for line in (_COMMANDS.get(action.id, "") for action in ([] if lines else app.offered_actions)):
        if "{run}" in line:
            folder = page.folder if page.place == "runs" else bench.run.folder
            lines[line.replace(" {run}", "")] = line.format(run=shlex.quote(str(folder.root)))
        elif line and (loaded_config or "{" not in line):
            settings = shlex.join(config_options(loaded_config, bench.chosen_gpu)) if loaded_config else ""
            lines[line.replace(" {settings}", "")] = line.format(settings=settings)
    return [Command(name, f"$ tui-trainer {one_line(line)}", partial(_copy, app, line)) for name, line in lines.items()]


def _copy(app: Any, line: str) -> None:
    app.copy_to_clipboard(f"tui-trainer {line}")
    app.bench.show_notice(f"copied (OSC 52): $ tui-trainer {one_line(line)}", "good")


def add_runs(app: Any, palette: Palette) -> None:
    """Add an entry for each run to the palette. Runs are listed in the background, because a disk may be slow."""
    from tui_trainer.runs.registry import known_runs

    def add(runs: list[RunFolder]) -> None:
        palette.add([
            Command(f"Run: {one_line(folder.name)}", one_line(str(folder.root.parent)),
                    partial(app.bench.attach_to, folder), is_elsewhere=True)
            for folder in reversed(runs)
        ])  # fmt: skip

    app.bench.background.run_work(_READING, known_runs, add, _READING)
