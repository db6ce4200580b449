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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from textual.app import App
from textual.widget import Widget

from tui_trainer.config.changes import Change, RecipePreview
from tui_trainer.config.document import ConfigDocument, Fit
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import all_settings
from tui_trainer.config.save import OverwriteError, document_text, writing
from tui_trainer.config.toml_files import Profile, all_profiles
from tui_trainer.errors import ConfigError, InputError
from tui_trainer.files.local_paths import at_home, from_the_root
from tui_trainer.launching.drafts import Draft
from tui_trainer.planning.batch_cut import EFFECTIVE
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.command_dialogs import OwnProcessDialog
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog, Row, TextDialog
from tui_trainer.ui.screens.config_view import name_cells, settings_count
from tui_trainer.ui.spans import Glyphs, Line, Role, bar, fit, pad, paragraph, title_rule, wrapped
from tui_trainer.ui.widgets.lists import MARK_CELLS, LineList, preset_cells, shortened, value_cells
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import FITTING, Workbench, fitting_words

# What the config screen does with files: save, save as, the user's own editor, and edits that were never saved.

_DEFAULT_FILE = "tui-trainer.toml"
_REFUSED = "# not taken:"


def save(bench: Workbench, document: ConfigDocument) -> None:
    """To the file it came from; without one a name is asked for."""
    if document.file is None:
        save_as(bench, document)
    else:
        _write(bench, document, document.file, lambda refusal: None)


def save_as(bench: Workbench, document: ConfigDocument) -> None:
    rows: list[Row] = [("Your own values are written, on top of the recipe's name.", "dim"), ""]
    start = str(document.file or from_the_root(_DEFAULT_FILE))

    def write(text: str) -> str | None:
        if not (name := text.strip()):
            return "write the name of a file"
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
        bench.note_change("loaded again; your unsaved edits lie on top")

    def written(result: tuple[str, dict[str, Any]] | ConfigError) -> None:
        if isinstance(result, OverwriteError):
            rows = wrapped(one_line(str(result.problems[0])), 70)
            overwrite = partial(_write, bench, document, path, answer, force=True)
            answers: list[Answer] = [("o", "overwrite it", overwrite)]
            if path == document.file:
                answers.append(("l", "load it, keep my edits", load_again))
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
            bench.note_change(f"saved in {shown}: `tui-trainer {shlex.quote(str(shown))}` opens it again", "good")
        bench.app.draw()

    write = writing(document, path, force=force)
    bench.tell("saving ...", "dim")
    bench.background.do("save", work, written, "save")


def edit(app: App[Any], bench: Workbench, document: ConfigDocument, refused_text: str) -> str:
    """Open what would be saved in $EDITOR, and take the text back as one change.

    Returns what was typed where it was not taken, to begin with it the next time.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = refused_text or document_text(document)
    try:
        after = edit_text_in(app, shlex.split(command), before)
    except (OSError, ValueError) as error:
        bench.tell(f"{one_line(command)} cannot be used: {error}; set EDITOR to your editor", "bad")
        return refused_text
    if after == before:
        bench.tell("nothing was changed in the editor")
        return ""
    try:
        document.take(after)
    except ConfigError as error:
        bench.tell(f"not taken: {error.problems[0]}; {bench.app.key_of('config.editor')} opens your text again", "bad")
        typed = "\n".join(line for line in after.split("\n") if not line.startswith(_REFUSED))
        return f"{_REFUSED} {one_line(str(error.problems[0]))}\n{typed}"
    bench.note_change(f"taken from the editor; {bench.app.key_of('config.undo')} takes it back")
    return ""


def edit_text_in(app: App[Any], command: list[str], text: str) -> str:
    """What the text is when the editor has ended. Raises OSError or ValueError when it cannot be run."""
    if not command:
        raise ValueError("no editor is named")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]}")
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
            raise ValueError(f"it ended with code {code}")
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
        bench.note_change(f"{restored} edit{'' if restored == 1 else 's'} restored; {undo} takes it back")

    def discard() -> None:
        bench.old_edits = {}
        bench.config_changed()
        bench.tell("discarded")

    count, when = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
    subject = f"{count} edits of {when} UTC were" if count > 1 else f"An edit of {when} UTC was"
    rows: list[Row] = [f"{subject} not saved."]
    rows.append(("They were kept when the connection or the program ended.", "dim"))
    rows += paragraph(f"Made for {one_line(draft.subject)}.", 70, "dim")
    if draft.digest != document.digest:
        rows.append(("The config file has changed since: look at them before you save.", "warn"))
    bench.app.ask("Unsaved edits", rows, [("r", "restore them", restore), ("d", "discard them", discard)])


if TYPE_CHECKING:
    from tui_trainer.bench.rehearsal import ConfigProcess
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.launching.preview import Preview

PREVIEW: Final = "preview"
_SAMPLES = 16
_MOST_CHARACTERS = 20_000
_BAR_CELLS = 30
# Beside a bar of the curve.
_CURVE_CELLS = 26
_ROLES: Final[dict[str, Role]] = {
    "head": "bold", "text": "text", "trained": "good", "special": "accent", "note": "dim",
}  # fmt: skip
LOW = 30


class TuneDialog(OwnProcessDialog):
    heading, command_of = "Tune", attrgetter("tunings")
    apply_words, patch_words = "apply the fastest", "what tune found"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if process.result is None:
            return self.so_far(process, width)
        from tui_trainer.bench.fastest_settings import measured_table, notes_of

        lines: list[Line] = [[(text, "text")] for text in measured_table(process.result, width)]
        lines += [line for note in notes_of(process.result) for line in paragraph(note, width, "dim")]
        role: Role = "good" if process.result["patch"] else "text"
        return [*lines, *paragraph(process.result["sentence"], width, role)]


class SizesDialog(OwnProcessDialog):
    """The sizes of a step as a curve of rows a second, and in numbers."""

    heading, command_of = "Rows of a step", attrgetter("sizes")
    apply_words, patch_words = "apply the best size", "what tune --effective found"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if (found := process.result) is None:
            return self.so_far(process, width)
        from tui_trainer.bench.effective_batches import sizes_table
        from tui_trainer.lines.plan_and_events import table_lines

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
    heading, command_of = "What each switch of training gains", attrgetter("switches")

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if process.result is None:
            return self.so_far(process, width)
        from tui_trainer.bench.starting import reasons, trial_lines

        lines: list[Line] = [[(text, "text")] for text in trial_lines(process.result, width)]
        return [*lines, *(line for text in reasons(process.result) for line in paragraph(text, width, "dim"))]


class RehearsalDialog(OwnProcessDialog):
    heading, command_of = "Rehearsal", attrgetter("rehearsals")
    apply_words, patch_words = "apply what works", "what the rehearsal found"

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        def role(text: str) -> Role:
            return "bad" if "FAILED" in text else "good" if text.startswith("nothing failed") else "text"

        return [line for text in process.lines for line in paragraph(text, width, role(text))]


class PreviewDialog(Dialog):
    """Made in the background; closing it gives the work up."""

    heading = "Preview: what the model gets"

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
            return (("escape", "close" if self._refusals else "give up"),)
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

    What of it does not suit the model and the data is found out behind the keys: until then it is shown as it is
    written, and `waiting` says for what.
    """

    def __init__(self, bench: Workbench, document: ConfigDocument) -> None:
        """Raises ConfigError where a recipe cannot be read."""
        self._bench, self.document, self.keep_own = bench, document, True
        self.changed: Callable[[], None] = lambda: None
        """Called when the answer is there."""
        self.recipes = tuple(all_profiles("recipes").values())
        names = [recipe.name for recipe in self.recipes]
        self.chosen = names.index(document.recipe_name) if document.recipe_name in names else 0
        self.preview: RecipePreview | None = None
        self.error = ""
        self._waits_for: LoadedConfig | None = None
        self.look()

    @property
    def recipe(self) -> Profile:
        return self.recipes[self.chosen]

    def choose(self, place: int) -> None:
        if place != self.chosen:
            self.chosen = place % len(self.recipes)
            self.look()

    def choose_name(self, name: str) -> None:
        self.choose(next((n for n, recipe in enumerate(self.recipes) if recipe.name == name), self.chosen))

    def look(self) -> None:
        self._waits_for = None
        self._show(self._fit_behind_the_keys)

    def _show(self, fit: Fit) -> None:
        try:
            name, keep_own = self.recipe.name, self.keep_own
            self.preview, self.error = self.document.preview_recipe(name, keep_own=keep_own, fit=fit), ""
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
        """What the preview waits for; empty: for nothing."""
        return fitting_words(self._waits_for) if self._waits_for else ""


class RecipeDialog(Dialog):
    """Choose a recipe, and see first what it would change. `take` gets the chooser when one is taken."""

    heading = "Choose a recipe"
    keys = (("enter", "take it"), ("up down", "choose"), ("space", "keep or drop own values"), ("escape", "back"))
    CSS = """
    RecipeDialog #box { width: 100%; height: 100%; }
    RecipeDialog LineList { height: 8; }
    RecipeDialog.-low LineList { height: 5; }
    """
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LOW, "-high")]  # noqa: RUF012

    def __init__(self, chooser: RecipeChooser, take: Callable[[RecipeChooser], None]) -> None:
        super().__init__()
        self._chooser, self._take = chooser, take
        chooser.changed = self._changed

    def _changed(self) -> None:
        if self.is_attached:
            self.redraw()

    def by_clock(self) -> object:
        return self._chooser.waiting

    def inside(self) -> Iterable[Widget]:
        chooser = self._chooser
        yield LineList(
            lambda place, width: recipe_line(chooser, place, width, self.glyphs),
            lambda: (len(chooser.recipes), chooser.chosen),
        )
        yield Pane(lambda w, h: preview_lines(chooser, w, h, self.glyphs, is_low=self.size.height < LOW))

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._chooser.choose(message.place)
        if message.opens:
            self.app.simulate_key("enter")
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        chooser = self._chooser
        if key in ("up", "down", "j", "k"):
            chooser.choose(chooser.chosen + (1 if key in ("down", "j") else -1))
        elif key == "space":
            chooser.keep_own = not chooser.keep_own
            chooser.look()
        elif key == "enter" and not chooser.error:
            self._take(chooser)
            return False
        return True


def recipe_line(chooser: RecipeChooser, place: int, width: int, glyphs: Glyphs) -> Line:
    one, is_chosen = chooser.recipes[place], place == chooser.chosen
    cells = max(len(one_line(recipe.name)) for recipe in chooser.recipes)
    now = "now" if one.name == chooser.document.recipe_name else "   "
    words = f"{glyphs.pointer if is_chosen else ' '} {one_line(one.name).ljust(cells)}  {now}  {one_line(one.title)}"
    line = fit([(words, "text")], width, glyphs.ellipsis)
    return [(text, "cursor") for text, _ in line] if is_chosen else line


def preview_lines(chooser: RecipeChooser, width: int, height: int, glyphs: Glyphs, *, is_low: bool) -> list[Line]:
    """The summary of the chosen recipe, and every setting that would change or stay.

    What would change has the most room. On a low screen what stays is only named.
    """
    recipe = chooser.recipe
    lines = paragraph(one_line(f"{chooser.chosen + 1} of {len(chooser.recipes)}: {recipe.summary}"), width)
    lines += paragraph(one_line(f"source: {recipe.source}"), width, "dim") if recipe.source and not is_low else []
    if chooser.preview is None:
        return [*lines, [], *paragraph(one_line(f"{glyphs.bad} {chooser.error}"), width, "bad")]
    changes, stays = chooser.preview.changes, chooser.preview.stays
    lines += paragraph(one_line(chooser.waiting), width, "accent") if chooser.waiting else []
    title = f"It changes {settings_count(len(changes))}" if changes else "It changes nothing"
    note = "your own values stay" if chooser.keep_own else "your own values go"
    lines.append(title_rule(title, width, glyphs, note))
    with_it = f"with {one_line(recipe.name)}"
    changed = _table(("setting", "now", with_it), changes, ("text", "dim", "bold"), width, glyphs) if changes else []
    kept = _kept(chooser, stays, width, glyphs, names_only=is_low)[: max(height // 3, 1)]
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
    title = f"{settings_count(len(stays))} of yours that it does not change"
    if names_only:
        names = ", ".join(all_settings()[change.key].name for change in stays)
        return [[(f"{title}: {names}", "dim")]]
    head = ("setting", "yours", f"{one_line(chooser.recipe.name)} says")
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
