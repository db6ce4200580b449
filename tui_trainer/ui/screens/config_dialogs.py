"""Dialogs of the Config screen: the preview of the data, and commands that measure the config or rehearse the run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from tui_trainer.errors import InputError
from tui_trainer.planning.batch_cut import EFFECTIVE_BATCH_KEY
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.command_dialogs import CommandDialog, open_and_start, rows_as_text
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.spans import Glyphs, Line, Role, bar, paragraph, progress_line, rows_of
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.launching.preview import Preview
    from tui_trainer.measure.config_process import ConfigProcess

PREVIEW: Final = "preview"
_SAMPLE_COUNT = 16
_MOST_CHARACTERS = 20_000
_LEAST_BAR_CELLS = 10
# Cells for the numbers beside a bar.
_CURVE_CELLS = 26
_ROLES: Final[dict[str, Role]] = {
    "head": "bold", "text": "text", "trained": "good", "special": "accent", "note": "dim",
}  # fmt: skip


def tune(bench: Workbench) -> None:
    apply = "apply the fastest", "the results of tune"
    open_and_start(CommandDialog(bench, bench.tunings, "Tune", _tune_lines, apply=apply))


def _tune_lines(process: ConfigProcess, width: int, _: Glyphs) -> list[Line]:
    from tui_trainer.measure.tuning import measured_table, notes_of

    result = process.result or {}
    lines = rows_as_text(measured_table(result, width), width)
    lines += [line for note in notes_of(result) for line in paragraph(note, width, "dim")]
    return [*lines, *paragraph(result["sentence"], width, "good" if result["patch"] else "text")]


def open_size_search(bench: Workbench) -> None:
    apply = "apply the best size", "the results of tune --effective"
    open_and_start(CommandDialog(bench, bench.sizes, "Effective batch", _size_lines, apply=apply))


def _size_lines(process: ConfigProcess, width: int, glyphs: Glyphs) -> list[Line]:
    """Return the speed at each effective batch size, in rows per second, as bars and as a table."""
    from tui_trainer.lines.plan_and_events import table_lines
    from tui_trainer.measure.tuning import sizes_table

    result = process.result or {}
    lines: list[Line] = []
    measured_sizes = [size for size in result["sizes"] if not size["failed"]]
    best_rows = result["patch"].get(EFFECTIVE_BATCH_KEY, result["effective_batch_size"])
    for size in measured_sizes:
        share = size["rows_per_second"] / max(other_size["rows_per_second"] for other_size in measured_sizes)
        bar_text = bar(share, max(width - _CURVE_CELLS, _LEAST_BAR_CELLS), glyphs)
        role: Role = "good" if size["rows"] == best_rows else "accent"
        speed_text = f" {size['rows_per_second']:,.1f} rows/s"
        lines.append([(f"{size['rows']:>6} ", "text"), (bar_text, role), (speed_text, "text")])
    if measured_sizes:
        table = sizes_table(result)
        table_rows: list[Line] = [[(text, "text")] for text in table_lines(table, width, right=table[0])]
        lines += [[], *table_rows, []]
    return [*lines, *paragraph(result["sentence"], width, "good" if result["patch"] else "text")]


def open_option_bench(bench: Workbench) -> None:
    open_and_start(CommandDialog(bench, bench.switches, "Gain of each training option", _switch_lines))


def _switch_lines(process: ConfigProcess, width: int, _: Glyphs) -> list[Line]:
    from tui_trainer.measure.training import reasons_of, trial_lines

    result = process.result or {}
    lines = rows_as_text(trial_lines(result, width), width)
    return [*lines, *(line for reason in reasons_of(result) for line in paragraph(reason, width, "dim"))]


def rehearse(bench: Workbench) -> None:
    apply, draw = ("apply what works", "the results of the rehearsal"), _rehearsal_lines
    open_and_start(CommandDialog(bench, bench.rehearsals, "Rehearsal (dry run)", draw, so_far=draw, apply=apply))


def _rehearsal_lines(process: ConfigProcess, width: int, _: Glyphs) -> list[Line]:
    roles: dict[bool | None, Role] = {True: "good", False: "bad", None: "text"}
    return [line for text in process.lines for line in paragraph(text, width, roles[process.outcomes.get(text)])]


class PreviewDialog(Dialog):
    """Preview of the data. The data is prepared in the background, until the dialog is closed."""

    heading = "Preview: what the model sees"

    def __init__(self, bench: Workbench, plain: LoadedConfig) -> None:
        super().__init__()
        self._bench, self._plain = bench, plain
        self._preview: Preview | None = None
        self._refusals: tuple[str, ...] = ()
        self._progress: tuple[str, float, float | None, str] = ("starting", 0.0, None, "")
        """Name of the current work, the amount done, the total if known, and their unit."""
        self._sample, self._shows_numbers = 0, False
        self._drawn: tuple[object, list[Line]] = (None, [])

    def on_mount(self) -> None:
        self._bench.background.run_work(PREVIEW, self._make, self._finish, PREVIEW)

    def _make(self) -> Preview | tuple[str, ...]:
        """Return the preview, or messages that say why there is none. Runs in another thread."""
        from tui_trainer.launching.open_run import fit_presets
        from tui_trainer.launching.preview import make_preview

        try:
            config, gpu = fit_presets(self._plain), self._bench.chosen_gpu
            return make_preview(config, _SAMPLE_COUNT, self._note_progress, gpu=gpu)
        except InputError as error:
            return tuple(one_line(str(problem)) for problem in error.problems)

    def live_state(self) -> object:
        return self._progress

    def _note_progress(self, work_name: str, done: float, total: float | None, unit: str) -> None:
        self._progress = (work_name, done, total, unit)
        if self.is_closed:
            raise GivenUp

    def _finish(self, result: Preview | tuple[str, ...]) -> None:
        if self.is_closed:
            return
        if isinstance(result, tuple):
            self._refusals = result
        else:
            self._preview = result
            if self._bench.plan is not None and not self._bench.plan.train_rows.exact:
                # Now that the data is prepared, the plan and the checks can be exact.
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
        """Return the lines of the chosen view: a sample, or the statistics. Lines are cached until the view changes."""
        if self._refusals:
            return [line for refusal in self._refusals for line in ([], *paragraph(refusal, width, "bad"))][1:]
        if self._preview is None:
            work, count, total, unit = self._progress
            if not total:
                return [[(f"{one_line(work)} ...", "dim")]]
            return [progress_line(work, count, total, unit, width, self.glyphs)]
        state = (self._sample, self._shows_numbers, width, self.glyphs.ascii)
        if self._drawn[0] != state:
            self._drawn = state, self._preview_lines(self._preview, width)
        return self._drawn[1]

    def _show_from_top(self) -> None:
        self.redraw()
        self.query_one("#inside").scroll_home(animate=False)

    def _preview_lines(self, preview: Preview, width: int) -> list[Line]:
        """Return a sample, or the statistics of all rows: columns are kept, longer lines are wrapped and indented."""
        from tui_trainer.launching.preview import ASCII_SIGNS, UNICODE_SIGNS, legend, sample_lines, summary_lines

        signs = ASCII_SIGNS if self.glyphs.ascii else UNICODE_SIGNS
        if self._shows_numbers:
            rows = (rows_of(text, width, subsequent_indent="  ") or [""] for text in summary_lines(preview, signs))
            return [[(row, "text")] for row in chain(*rows)]
        sample, count = preview.samples[self._sample], len(preview.samples)
        lines = list(sample_lines(sample, self._sample + 1, count, signs, width, _MOST_CHARACTERS))
        lines += [[], legend(signs, preview.learns)]
        return [[(text, _ROLES[mark]) for text, mark in line] for line in lines]

    def press(self, key: str, character: str | None) -> bool:
        if self._preview is None or character not in ("n", "p", "a"):
            return True
        if character == "a":
            self._shows_numbers = not self._shows_numbers
        elif not self._shows_numbers:
            self._sample = (self._sample + (1 if character == "n" else -1)) % len(self._preview.samples)
        self._show_from_top()
        return True
