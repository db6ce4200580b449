"""Boxes of the Config screen: the recipes with what each would change, what the model would get of the data, and what a
command measures: `tune` looks for the fastest settings, a rehearsal tries what could fail.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from textual.app import App
from textual.events import Key
from textual.widget import Widget

from tui_trainer.config.changes import Change, RecipePreview
from tui_trainer.config.document import ConfigDocument, Fit
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import all_settings, flatten
from tui_trainer.config.save import (
    OverwriteError,
    document_text,
    line_of,
    marked_text,
    without_marks,
    writing,
)
from tui_trainer.config.toml_files import Profile, all_profiles
from tui_trainer.errors import ConfigError, InputError, Problem
from tui_trainer.files.local_paths import at_home, from_the_root
from tui_trainer.launching.drafts import Draft
from tui_trainer.planning.batch_cut import EFFECTIVE
from tui_trainer.tasks import find_task, task_names
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.command_dialogs import OwnProcessDialog
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog, FieldDialog, Row, TextDialog
from tui_trainer.ui.screens.config_view import name_cells, settings_count
from tui_trainer.ui.spans import Glyphs, Line, Role, bar, fit, pad, paragraph, title_rule, wrapped
from tui_trainer.ui.widgets.lists import MARK_CELLS, LineList, preset_cells, shortened, value_cells
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import FITTING, Workbench, fitting_words

# What the config screen does with files: save, save as, the user's own editor, and edits that were never saved.

_DEFAULT_FILE = "tui-trainer.toml"


def save(bench: Workbench, document: ConfigDocument) -> None:
    """To the file it came from; without one a name is asked for."""
    if document.file is None:
        save_as(bench, document)
    else:
        _write(bench, document, document.file, lambda refusal: None)


def save_as(bench: Workbench, document: ConfigDocument) -> None:
    rows: list[Row] = [("Saves the name of the recipe and your changes to it.", "dim"), ""]
    start = str(document.file or from_the_root(_DEFAULT_FILE))

    def write(text: str) -> str | None:
        if not (name := text.strip()):
            return "enter a file name"
        _write(bench, document, at_home(name), dialog.answered)
        return None

    dialog = TextDialog("Save as", rows, start, write)
    bench.app.open(dialog)


def _write(
    bench: Workbench, document: ConfigDocument, path: Path, answer: Callable[[str], None], *, force: bool = False
) -> None:
    """`answer` hears why it was not written; nothing when it was, or a question is on the screen."""

    def work() -> tuple[str, dict[str, Any]] | ConfigError:
        try:
            return write()
        except ConfigError as error:
            return error

    def load_again() -> None:
        document.reload()
        bench.note_change("reloaded; your unsaved edits are kept")

    def written(result: tuple[str, dict[str, Any]] | ConfigError) -> None:
        if isinstance(result, OverwriteError):
            rows = wrapped(one_line(str(result.problems[0])), 70)
            overwrite = partial(_write, bench, document, path, answer, force=True)
            answers: list[Answer] = [("o", "overwrite", overwrite)]
            if path == document.file:
                answers.append(("l", "reload, keep my edits", load_again))
            answer("")
            bench.app.open_next(ChoiceDialog("Overwrite?", rows, answers))
        elif isinstance(result, ConfigError):
            bench.tell(str(result.problems[0]), "bad")
            answer(str(result.problems[0]))
        else:
            answer("")
            bench.old_edits = {}
            document.mark_saved(path, *result)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            bench.note_change(f"saved to {shown}; `tui-trainer {shlex.quote(str(shown))}` opens it again", "good")
        bench.app.draw()

    write = writing(document, path, force=force)
    bench.tell("saving ...", "dim")
    bench.background.do("save", work, written, "save")


class OwnEditor:
    """The settings as TOML in the user's own editor, taken back as one change. A text that is not taken is kept, with
    what is wrong marked in it, until it is taken or discarded."""

    def __init__(self, app: App[Any], bench: Workbench, document: ConfigDocument) -> None:
        self._app, self._bench, self._document = app, bench, document
        self._kept = ""

    def open(self) -> None:
        bench, command = self._bench, os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        before = self._kept or document_text(self._document)
        try:
            after = edit_text_in(self._app, shlex.split(command), before)
        except (OSError, ValueError) as error:
            bench.tell(f"could not run the editor {one_line(command)}: {error}; set EDITOR to another one", "bad")
            return
        if after == before and not self._kept:
            bench.tell("nothing changed in the editor")
            return
        text = without_marks(after)
        try:
            self._document.take(text)
        except ConfigError as error:
            self._refuse(text, error.problems)
        else:
            self._kept = ""
            bench.note_change(f"applied from the editor; {bench.app.key_of('config.undo')} to undo")

    def _refuse(self, text: str, problems: Sequence[Problem]) -> None:
        self._kept = marked_text(text, problems)
        rows: list[Row] = []
        for line, problem in sorted(((line_of(text, one), one) for one in problems), key=itemgetter(0)):
            rows.append((one_line(str(replace(problem, where=f"line {line}"))), "bad"))
            rows += [one_line(text.split("\n")[line - 1], 70), ""]
        rows.append(("No setting was changed. Your text is kept, with the errors marked.", "dim"))
        answers: list[Answer] = [("e", "edit again", self.open), ("d", "discard", self._discard)]
        self._bench.app.ask("The edited text has errors", rows, answers)

    def _discard(self) -> None:
        self._kept = ""
        self._bench.tell("discarded; the settings are unchanged")


def edit_text_in(app: App[Any], command: list[str], text: str) -> str:
    """What the text is when the editor has ended. Raises OSError or ValueError when it cannot be run."""
    if not command:
        raise ValueError("no editor is set")
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]} was not found")
    with tempfile.TemporaryDirectory(prefix="tui-trainer-") as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(text, encoding="utf-8")
        # Repaints while the screens stand back would fill a queue that nobody empties.
        with app.batch_update(), app.suspend():
            # Descriptors 1 and 2 are the log: the editor gets the terminal itself.
            terminal = sys.__stderr__.fileno() if sys.__stderr__ else 2
            process = subprocess.Popen(
                [*command, str(path)], stdin=0, stdout=terminal, stderr=terminal, process_group=0
            )
            code = process.returncode = _in_foreground(process.pid)
        if code:
            raise ValueError(f"it exited with code {code}")
        return path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(path) else text


def _in_foreground(pid: int) -> int:
    """The exit code of a process that has the terminal to itself: its Ctrl+C and Ctrl+Z are not for training."""
    ours = os.getpgrp()
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):  # no terminal of ours to give away
            os.tcsetpgrp(0, pid)
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            # There is no shell that could bring a suspended editor back.
            os.killpg(pid, signal.SIGCONT)
    finally:
        with suppress(OSError):
            os.tcsetpgrp(0, ours)
        signal.signal(signal.SIGTTOU, before)


def offer_draft(bench: Workbench, document: ConfigDocument, draft: Draft) -> None:

    def restore() -> None:
        bench.old_edits = {}
        restored, undo = document.restore(draft.edits), bench.app.key_of("config.undo")
        bench.note_change(f"{restored} edit{'' if restored == 1 else 's'} restored; {undo} to undo")

    def discard() -> None:
        bench.old_edits = {}
        bench.config_changed()
        bench.tell("discarded")

    count, when = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
    subject = f"{count} edits from {when} UTC were" if count > 1 else f"An edit from {when} UTC was"
    rows: list[Row] = [f"{subject} not saved."]
    rows.append(("Recovered from your last session.", "dim"))
    rows += paragraph(f"Changes to {one_line(draft.subject)}.", 70, "dim")
    if draft.digest != document.digest:
        rows.append(("The config file has changed since: review the edits before you save.", "warn"))
    bench.app.ask("Unsaved edits", rows, [("r", "restore", restore), ("d", "discard", discard)])


if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.launching.preview import Preview
    from tui_trainer.measure.config_process import ConfigProcess

PREVIEW: Final = "preview"
_SAMPLES = 16
_MOST_CHARACTERS = 20_000
_BAR_CELLS = 30
# Beside a bar of the curve.
_CURVE_CELLS = 26
_ROLES: Final[dict[str, Role]] = {
    "head": "bold", "text": "text", "trained": "good", "special": "accent", "note": "dim",
}  # fmt: skip
_FITS: Final = "recipes that fit"
Fits = Mapping[str, tuple[str, str]]
"""By the name of a recipe its task, and why it does not go with the user's model and data."""


class TuneDialog(OwnProcessDialog):
    heading, command_of = "Tune", attrgetter("tunings")
    apply_words, patch_words = "apply the fastest", "the results of tune"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if process.result is None:
            return self.so_far(process, width)
        from tui_trainer.measure.tuning import measured_table, notes_of

        lines = self.rows(measured_table(process.result, width), width)
        lines += [line for note in notes_of(process.result) for line in paragraph(note, width, "dim")]
        role: Role = "good" if process.result["patch"] else "text"
        return [*lines, *paragraph(process.result["sentence"], width, role)]


class SizesDialog(OwnProcessDialog):
    """The sizes of a step as a curve of rows a second, and in numbers."""

    heading, command_of = "Effective batch", attrgetter("sizes")
    apply_words, patch_words = "apply the best size", "the results of tune --effective"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if (found := process.result) is None:
            return self.so_far(process, width)
        from tui_trainer.lines.plan_and_events import table_lines
        from tui_trainer.measure.tuning import sizes_table

        lines: list[Line] = []
        measured = [one for one in found["sizes"] if not one["failed"]]
        most = max((one["rows_per_second"] for one in measured), default=0.0)
        for one in measured:
            is_best = one["rows"] == found["patch"].get(EFFECTIVE, found["effective_batch_size"])
            drawn = bar(one["rows_per_second"] / most, max(width - _CURVE_CELLS, _BAR_CELLS // 3), self.glyphs)
            words = f" {one['rows_per_second']:,.1f} rows/s"
            lines.append([(f"{one['rows']:>6} ", "text"), (drawn, "good" if is_best else "accent"), (words, "text")])
        if measured:
            table = sizes_table(found)
            rows = table_lines(table, width, right=table[0])
            lines.append([])
            lines += [[(text, "text")] for text in rows]
            lines.append([])
        return [*lines, *paragraph(found["sentence"], width, "good" if found["patch"] else "text")]


class SwitchesDialog(OwnProcessDialog):
    heading, command_of = "Gain of each training option", attrgetter("switches")

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if process.result is None:
            return self.so_far(process, width)
        from tui_trainer.measure.training import reasons_of, trial_lines

        lines = self.rows(trial_lines(process.result, width), width)
        return [*lines, *(line for text in reasons_of(process.result) for line in paragraph(text, width, "dim"))]


class RehearsalDialog(OwnProcessDialog):
    heading, command_of = "Rehearsal (dry run)", attrgetter("rehearsals")
    apply_words, patch_words = "apply what works", "the results of the rehearsal"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        roles: dict[bool | None, Role] = {True: "good", False: "bad", None: "text"}
        return [line for text in process.lines for line in paragraph(text, width, roles[process.outcomes.get(text)])]


class PreviewDialog(Dialog):
    """Made in the background; closing it gives the work up."""

    heading = "Preview: what the model sees"

    def __init__(self, bench: Workbench, plain: LoadedConfig) -> None:
        super().__init__()
        self._bench, self._plain = bench, plain
        self._preview: Preview | None = None
        self._refusals: tuple[str, ...] = ()
        self._far: tuple[str, float, float | None, str] = ("starting", 0.0, None, "")
        """What is done, how much of it, of how much, in which unit."""
        self._sample, self._shows_numbers = 0, False
        self._drawn: tuple[object, list[Line]] = (None, [])

    def on_mount(self) -> None:
        self._bench.background.do(PREVIEW, self._make, self._made, PREVIEW)

    def _make(self) -> Preview | tuple[str, ...]:
        from tui_trainer.launching.open_run import with_what_suits
        from tui_trainer.launching.preview import make_preview

        try:
            return make_preview(with_what_suits(self._plain), _SAMPLES, self._hear, gpu=self._bench.chosen_gpu)
        except InputError as error:
            return tuple(one_line(str(problem)) for problem in error.problems)

    def by_clock(self) -> object:
        return self._far

    def _hear(self, what: str, done: float, total: float | None, unit: str) -> None:
        self._far = (what, done, total, unit)
        if self.is_closed:
            raise GivenUp

    def _made(self, result: Preview | tuple[str, ...]) -> None:
        if self.is_closed:
            return
        if isinstance(result, tuple):
            self._refusals = result
        else:
            self._preview = result
            plan = self._bench.plan
            if plan is not None and not plan.train_rows.exact:
                # The data is prepared now: the plan and the checks can be exact.
                self._bench.config_changed()
        self._show_from_top()

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._preview is None:
            return (("escape", "close" if self._refusals else "cancel"),)
        if self._shows_numbers:
            return (("a", "samples"), ("up down", "scroll"), ("escape", "close"))
        return (("n", "next"), ("p", "previous"), ("a", "all rows"), ("up down", "scroll"), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        """All lines of what is looked at; the same ones again while nothing changed."""
        if self._preview is None:
            return self._waiting(width, self.glyphs)
        state = (self._sample, self._shows_numbers, width, self.glyphs.ascii)
        if self._drawn[0] != state:
            draw = self._numbers if self._shows_numbers else self._sample_lines
            self._drawn = state, draw(self._preview, width, self.glyphs)
        return self._drawn[1]

    def _show_from_top(self) -> None:
        self.redraw()
        self.query_one("#inside").scroll_home(animate=False)

    def _waiting(self, width: int, glyphs: Glyphs) -> list[Line]:
        if self._refusals:
            return [line for refusal in self._refusals for line in ([], *paragraph(refusal, width, "bad"))][1:]
        what, done, total, unit = self._far
        if not total:
            return [[(f"{one_line(what)} ...", "dim")]]
        words = f" {one_line(what)}, {done:,.0f} of {total:,.0f} {one_line(unit)}"
        return [[(bar(done / total, _BAR_CELLS, glyphs), "accent"), (words, "dim")]]

    def _sample_lines(self, preview: Preview, width: int, glyphs: Glyphs) -> list[Line]:
        from tui_trainer.launching.preview import ASCII_SIGNS, UNICODE_SIGNS, legend, sample_lines

        signs = ASCII_SIGNS if glyphs.ascii else UNICODE_SIGNS
        sample, count = preview.samples[self._sample], len(preview.samples)
        marked = [*sample_lines(sample, self._sample + 1, count, signs, width, _MOST_CHARACTERS), [], legend(signs)]
        return [[(text, _ROLES[mark]) for text, mark in line] for line in marked]

    def _numbers(self, preview: Preview, width: int, glyphs: Glyphs) -> list[Line]:
        """Lines of numbers as they are, with their columns; a longer one in several, the later ones indented."""
        from tui_trainer.launching.preview import ASCII_SIGNS, UNICODE_SIGNS, summary_lines

        lines: list[Line] = []
        for text in summary_lines(preview, ASCII_SIGNS if glyphs.ascii else UNICODE_SIGNS):
            first, *rest = [text] if len(text) <= width else wrapped(text, width - 2)
            lines += [[(row, "text")] for row in (first, *(f"  {row}" for row in rest))]
        return lines

    def press(self, key: str, character: str | None) -> bool:
        if self._preview is None or character not in ("n", "p", "a"):
            return True
        if character == "a":
            self._shows_numbers = not self._shows_numbers
        elif not self._shows_numbers:
            self._sample = (self._sample + (1 if character == "n" else -1)) % len(self._preview.samples)
        self._show_from_top()
        return True


class RecipeChooser:
    """`preview` is what the chosen recipe would change, or None where `error` says why it cannot be taken.

    What of it does not suit the model and the data is found out behind the keys, and so is which recipes do not go with
    them: until then all are shown as they are written, and `waiting` says for what.
    """

    def __init__(self, bench: Workbench, document: ConfigDocument) -> None:
        """Raises ConfigError where a recipe cannot be read."""
        self._bench, self.document, self.keep_own = bench, document, True
        self.changed: Callable[[], None] = lambda: None
        """Called when the answer is there."""
        self.recipes = all_profiles("recipes")
        self.name = document.recipe_name if document.recipe_name in self.recipes else next(iter(self.recipes))
        self.filter = ""
        self.rows: list[str | Profile] = []
        """Recipes that match the filter below the titles of their tasks; those that go with model and data first."""
        self._fits: Fits | None = None
        self.preview: RecipePreview | None = None
        self.error = ""
        self._waits_for: LoadedConfig | None = None
        self.look()
        self.find_fits()

    @property
    def recipe(self) -> Profile:
        return self.recipes[self.name]

    def misfit(self, name: str) -> str:
        """Why a recipe does not go with the user's model and data; empty where it does, or it is not known yet."""
        return (self._fits or {}).get(name, ("", ""))[1]

    def _arrange(self) -> None:
        by_task = {name: list[Profile]() for name in task_names()}
        for recipe in self.recipes.values():
            task = self._task_of(recipe)
            text = f"{recipe.name} {recipe.title} {task} {find_task(task).title}".lower()
            if all(word in text for word in self.filter.lower().split()):
                by_task[task].append(recipe)
        for recipes in by_task.values():
            recipes.sort(key=lambda one: bool(self.misfit(one.name)))
        tasks = sorted(filter(by_task.get, by_task), key=lambda name: bool(self.misfit(by_task[name][0].name)))
        self.rows = []
        for name in tasks:
            self.rows += [find_task(name).title, *by_task[name]]

    def _task_of(self, recipe: Profile) -> str:
        """What it would learn here, or is written for."""
        found = (self._fits or {}).get(recipe.name, ("", ""))[0] or flatten(recipe.values, "", []).get("task.type")
        return found if found in task_names() else str(all_settings()["task.type"].default)

    def choose(self, steps: int) -> None:
        shown = [row.name for row in self.rows if not isinstance(row, str)]
        at = shown.index(self.name) if self.name in shown else -steps
        self.choose_name(shown[(at + steps) % len(shown)] if shown else self.name)

    def choose_name(self, name: str) -> None:
        if name in self.recipes and name != self.name:
            self.name = name
            self.look()

    def narrow(self, text: str) -> None:
        self.filter = text
        self._arrange()
        if not any(row is self.recipe for row in self.rows):
            self.choose(0)

    def look(self) -> None:
        self._waits_for = None
        self._show(self._fit_behind_the_keys)

    def find_fits(self) -> None:
        """What each recipe would learn on top of the user's own values, and whether it can."""
        document, names, keep_own = self.document, tuple(self.recipes), self.keep_own

        def found(fits: Fits) -> None:
            self._fits = fits
            self._arrange()
            self.changed()

        def find() -> Fits:
            from tui_trainer.launching.fitted_presets import misfit
            from tui_trainer.launching.open_run import with_what_suits

            fits = dict.fromkeys(names, ("", "a value of the recipe is not valid for its setting"))
            for name in names:
                try:
                    if plain := document.with_recipe(name, keep_own=keep_own):
                        loaded = with_what_suits(plain)
                        fits[name] = loaded.config.task.type, misfit(loaded)
                except ConfigError as error:
                    fits[name] = "", error.problems[0].message
            return fits

        self._fits = None
        self._arrange()
        self._bench.background.do(_FITS, find, found, _FITS)

    def _show(self, fit: Fit) -> None:
        try:
            self.preview, self.error = self.document.preview_recipe(self.name, keep_own=self.keep_own, fit=fit), ""
        except ConfigError as error:
            self.preview, self.error = None, str(error.problems[0])

    def _fit_behind_the_keys(self, plain: LoadedConfig) -> LoadedConfig:
        def fit() -> LoadedConfig:
            from tui_trainer.launching.open_run import with_what_suits

            return with_what_suits(plain)

        def fitted(found: LoadedConfig) -> None:
            # Of another recipe than the one that is chosen by now it says nothing.
            if self._waits_for is plain:
                self._waits_for = None
                self._show(lambda _: found)
                self.changed()

        self._waits_for = plain
        self._bench.background.do("recipe", fit, fitted, FITTING)
        return plain

    @property
    def waiting(self) -> str:
        """What the preview or the order waits for; empty: for nothing."""
        if self._waits_for:
            return fitting_words(self._waits_for)
        plain = self.document.plain
        return f"finding recipes that fit: {fitting_words(plain)}" if plain and self._fits is None else ""


class RecipeDialog(FieldDialog):
    """Choose a recipe, and see first what it would change. `take` gets the chooser when one is taken."""

    heading = "Choose a recipe"
    AUTO_FOCUS = ""
    CSS = """
    RecipeDialog #box { width: 100%; height: 100%; }
    RecipeDialog LineList { height: 50vh; }
    """

    def __init__(self, chooser: RecipeChooser, take: Callable[[RecipeChooser], None]) -> None:
        super().__init__("")
        self._chooser, self._take = chooser, take
        self.field.placeholder, self.field.display = "name, title or task", False
        chooser.changed = self._changed

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self.is_typing:
            return (("enter", "done"), ("up down", "choose"), ("escape", "all recipes"))
        take = (("enter", "select"), ("up down", "choose"), ("/", "filter"))
        return (
            *take,
            ("space", "drop my values" if self._chooser.keep_own else "keep my values"),
            ("escape", "back"),
        )

    @property
    def is_typing(self) -> bool:
        return self.focused is self.field

    def _changed(self) -> None:
        if self.is_attached:
            self.redraw()

    def redraw(self) -> None:
        for recipes in self.query(LineList):
            # What a filter leaves free shows more of what the recipe would change.
            recipes.styles.max_height = max(len(self._chooser.rows), 1)
        super().redraw()

    def by_clock(self) -> object:
        return self._chooser.waiting

    def inside(self) -> Iterable[Widget]:
        chooser = self._chooser
        yield self.field
        yield LineList(
            lambda place, width: recipe_line(chooser, place, width, self.glyphs),
            lambda: (len(chooser.rows), next((at for at, row in enumerate(chooser.rows) if row is chooser.recipe), 0)),
            # The title of a task is in sight with its first recipe.
            lead=lambda place: place > 0 and isinstance(chooser.rows[place - 1], str),
            is_heading=lambda place: isinstance(chooser.rows[place], str),
            empty=lambda: "no matching recipes",
        )
        yield Pane(lambda w, h: preview_lines(chooser, w, h, self.glyphs))

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        if not isinstance(row := self._chooser.rows[message.place], str):
            self._chooser.choose_name(row.name)
            if message.opens:
                self.app.simulate_key("enter")
        self.redraw()

    def on_input_changed(self) -> None:
        self._chooser.narrow(self.field.value)
        self.redraw()

    def _filter(self, *, types: bool) -> None:
        self.field.display = types or bool(self.field.value)
        self.set_focus(self.field if types else None, scroll_visible=False)
        self.redraw()

    def takes(self, key: str) -> bool:
        return self.is_typing

    def take_key(self, event: Key) -> bool:
        if not self.is_typing:
            return Dialog.take_key(self, event)
        if event.key in ("up", "down"):
            self._chooser.choose(1 if event.key == "down" else -1)
            self.redraw()
            return True
        return super().take_key(event)

    def take(self) -> None:
        self._filter(types=False)

    def close(self) -> None:
        if not self.is_typing:
            super().close()
            return
        self.field.value = ""
        self._filter(types=False)

    def press(self, key: str, character: str | None) -> bool:
        chooser = self._chooser
        if key in ("up", "down", "j", "k"):
            chooser.choose(1 if key in ("down", "j") else -1)
        elif key == "space":
            chooser.keep_own = not chooser.keep_own
            chooser.look()
            chooser.find_fits()
        elif character == "/":
            self._filter(types=True)
        elif key == "enter" and not chooser.error and chooser.recipe in chooser.rows:
            self._take(chooser)
            return False
        return True


def recipe_line(chooser: RecipeChooser, place: int, width: int, glyphs: Glyphs) -> Line:
    one = chooser.rows[place]
    if isinstance(one, str):
        return title_rule(one, width, glyphs)
    cells, why = max(map(len, map(one_line, chooser.recipes))), chooser.misfit(one.name)
    now = "now" if one.name == chooser.document.recipe_name else "   "
    start = f"{glyphs.pointer if one is chooser.recipe else ' '} {one_line(one.name).ljust(cells)}  {now}  "
    rest: Line = [(f"{glyphs.bad} {one_line(why)}", "dim")] if why else [(one_line(one.title), "text")]
    line = fit([(start, "dim" if why else "text"), *rest], width, glyphs.ellipsis)
    return [(text, "cursor") for text, _ in line] if one is chooser.recipe else line


def preview_lines(chooser: RecipeChooser, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The summary of the chosen recipe, and every setting that would change or stay.

    What would change has the most room. Where not all fits, what stays is only named.
    """
    recipe = chooser.recipe
    lines = paragraph(one_line(recipe.summary), width)
    source = paragraph(one_line(f"source: {recipe.source}"), width, "dim") if recipe.source else []
    if why := chooser.misfit(recipe.name):
        lines += paragraph(one_line(f"Does not fit: {why}."), width, "warn")
    if chooser.preview is None:
        return [*lines, [], *paragraph(one_line(f"{glyphs.bad} {chooser.error}"), width, "bad")]
    changes, stays = chooser.preview.changes, chooser.preview.stays
    lines += paragraph(one_line(chooser.waiting), width, "accent") if chooser.waiting else []
    title = f"Changes {settings_count(len(changes))}" if changes else "Changes nothing"
    note = "your own values are kept" if chooser.keep_own else "your own values are dropped"
    lines.append(title_rule(title, width, glyphs, note))
    with_it = f"with {one_line(recipe.name)}"
    changed = _table(("setting", "now", with_it), changes, ("text", "dim", "bold"), width, glyphs) if changes else []
    kept = _kept(chooser, stays, width, glyphs, names_only=False)
    if len(source) + len(lines) + len(changed) + len(kept) <= height:
        return [*lines[:-1], *source, lines[-1], *changed, *kept]
    kept = _kept(chooser, stays, width, glyphs, names_only=True)
    room = max(height - len(lines) - len(kept), 1 + bool(changes))
    if len(changed) > room:
        changed = [*changed[: room - 1], [(f"   {glyphs.ellipsis} and {len(changed) - room + 1} more", "dim")]]
    return [*lines, *changed, *kept]


def _kept(
    chooser: RecipeChooser, stays: Sequence[Change], width: int, glyphs: Glyphs, *, names_only: bool
) -> list[Line]:
    """The user's own values that the recipe would set otherwise, and does not."""
    if not stays:
        return []
    title = f"Keeps {settings_count(len(stays))} that you changed"
    if names_only:
        names = ", ".join(all_settings()[change.key].name for change in stays)
        return [[(f"{title}: {names}", "dim")]]
    head = ("setting", "yours", f"{one_line(chooser.recipe.name)} sets")
    return [title_rule(title, width, glyphs), *_table(head, stays, ("text", "bold", "dim"), width, glyphs)]


def _table(
    head: tuple[str, str, str], changes: Sequence[Change], roles: tuple[Role, Role, Role], width: int, glyphs: Glyphs
) -> list[Line]:
    both = value_cells(width, name_cells()) + preset_cells(width)
    cells = both // 2

    def row(name: str, old: str, new: str, roles: tuple[Role, Role, Role]) -> Line:
        texts = " " * MARK_CELLS + name.ljust(name_cells() + 1), pad(shortened(old, cells, glyphs), cells + 1)
        return list(zip((*texts, shortened(new, both - cells, glyphs)), roles, strict=True))

    lines = [row(*head, ("dim", "dim", "dim"))]
    for change in changes:
        one = all_settings()[change.key]
        lines.append(row(one.name, display_text(one, change.old), display_text(one, change.new), roles))
    return lines
