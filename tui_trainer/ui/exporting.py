"""A run's model taken elsewhere, in a box: the formats, the export as it goes, and its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from textual.widget import Widget

from tui_trainer.errors import InputError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, Role, beside, fit, pad, paragraph
from tui_trainer.ui.widgets.line_list import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tui_trainer.launching.export import Choice, ExportProcess
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.workbench import Workbench

_NAME_CELLS = 11
_BAR_CELLS = 24
FORMATS: Final = "formats"


class ExportDialog(Dialog):
    """Choose a format; the export goes on when this is closed, and is shown again when it is opened."""

    def __init__(self, bench: Workbench, folder: RunFolder) -> None:
        super().__init__()
        self.heading = f"Export {one_line(folder.name, 60)}"
        self._bench, self._folder = bench, folder
        self._choices: tuple[Choice, ...] = ()
        self._free_bytes, self._refusal = 0, ""
        self._chosen = 0
        self._list = LineList(self._row, lambda: (len(self._choices), self._chosen), id="formats")

    def inside(self) -> Iterable[Widget]:
        yield self._list
        yield Pane(lambda width, _: self.lines(width), id="about")

    def on_mount(self) -> None:
        self._bench.background.do(FORMATS, self._ask, self._found)

    def _ask(self) -> tuple[tuple[Choice, ...], int] | str:
        from tui_trainer.launching.export import choices, free_bytes

        try:
            return choices(self._folder), free_bytes(self._folder)
        except (InputError, OSError) as error:
            return one_line(str(error))

    def _found(self, result: tuple[tuple[Choice, ...], int] | str) -> None:
        if isinstance(result, str):
            self._refusal = result
        else:
            self._choices, self._free_bytes = result
            name = self._process.name if self._process else next((one.name for one in result[0] if not one.refusal), "")
            self._chosen = next((at for at, one in enumerate(self._choices) if one.name == name), 0)
        if self.is_attached:
            self._list.styles.height = len(self._choices)
            self.redraw()

    @property
    def _process(self) -> ExportProcess | None:
        export = self._bench.exports.process
        return export if export is not None and export.run == self._folder else None

    @property
    def _is_writing(self) -> bool:
        return self._process is not None and self._process.alive

    def by_clock(self) -> object:
        process = self._process
        return process and (process.outcome or int(process.seconds), process.progress, process.is_cancelled)

    # ---------------------------------------------------------------- drawing

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._is_writing:
            return (("c", "cancel the export"), ("up down", "choose"), ("escape", "close, it goes on"))
        if not self._choices:
            return (("escape", "close"),)
        enter = () if self._choices[self._chosen].refusal else (("enter", "export"),)
        return (*enter, ("up down", "choose"), ("escape", "close"))

    def _row(self, place: int, width: int) -> Line:
        one, process = self._choices[place], self._process
        is_chosen = place == self._chosen
        state, role = self._state(one, process)
        line: Line = [(f"{self.glyphs.pointer if is_chosen else ' '} ", "accent")]
        usual: Role = "dim" if one.refusal else "text"
        line = beside([*line, (pad(one.name, _NAME_CELLS), usual), (one.title, usual)], [(state, role)], width)
        return [(text, "cursor") for text, _ in line] if is_chosen else line

    def _state(self, one: Choice, process: ExportProcess | None) -> tuple[str, Role]:
        if process is not None and process.name == one.name:
            if process.outcome is None:
                return "is being written", "accent"
            if process.outcome.is_good:
                return "exported", "good"
            return "cancelled" if process.is_cancelled else "failed", "bad"
        if one.is_there:
            return "exported", "good"
        return ("not possible", "dim") if one.refusal else (f"~{format_bytes(one.needed_bytes)}", "dim")

    def lines(self, width: int) -> list[Line]:
        """What is known about the chosen format, or how far its export is, or what came of it."""
        if not self._choices:
            return paragraph(self._refusal or "looking what it can be exported to ...", width)
        one, process = self._choices[self._chosen], self._process
        if process is not None and process.name == one.name:
            return progress_lines(process, width, self.glyphs)
        if one.refusal:
            return paragraph(one.refusal, width, "warn")
        takes = f"It takes about {round_seconds(one.expected_seconds)}, as earlier ones did here."
        words = [
            f"It writes about {format_bytes(one.needed_bytes)} into export/{one.name} of the run; "
            f"{format_bytes(self._free_bytes)} are free",
            "Then it is loaded again in a fresh process and compared with the trained model.",
            *([takes] if one.expected_seconds else []),
        ]
        if one.is_there:
            words.append("It was exported before: this one takes its place.")
        lines = [line for text in words for line in paragraph(text, width)]
        if self._bench.run_is_alive:
            lines += paragraph("A run is training: the export takes processor time and memory from it.", width, "warn")
        if other := self._bench.exports.alive:
            text = f"{one_line(other.run.name)} is being exported to {other.name}: one at a time"
            lines += paragraph(text, width, "warn")
        return lines

    # ------------------------------------------------------------------- keys

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._chosen = message.place
        if message.opens:
            self._start()
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if character == "c" and self._is_writing and self._process is not None:
            self._process.cancel()
        elif key == "enter":
            self._start()
        elif steps := {"up": -1, "k": -1, "down": 1, "j": 1}.get(key):
            self._chosen = min(max(self._chosen + steps, 0), max(len(self._choices) - 1, 0))
        return True

    def _start(self) -> None:
        if self._choices and not self._choices[self._chosen].refusal:
            self._bench.exports.start(self._folder, self._choices[self._chosen].name)


def progress_lines(process: ExportProcess, width: int, glyphs: Glyphs) -> list[Line]:
    """An export as it goes, and what came of it."""
    if (outcome := process.outcome) is not None:
        role: Role = "text" if outcome.folder else "bad"
        lines = [line for words in outcome.words for line in paragraph(words, width, role)]
        if not outcome.folder:
            return lines
        verdict: Line = [(f"{glyphs.good} as it was trained", "good")]
        if not outcome.is_good:
            verdict = [(f"{glyphs.bad} not as it was trained; its folder is kept under another name", "bad")]
        return [verdict, *lines, *paragraph(outcome.folder, width, "dim")]
    if process.is_cancelled:
        return [[("cancelling ...", "warn")]]
    what, done, total, unit = process.progress
    so_far: Line = [(f"{round_seconds(process.seconds)} so far", "dim")]
    if not total:
        return [[(f"{one_line(what)} ...", "text")], so_far]
    words = f" {one_line(what)}, {done:,.0f} of {total:,.0f} {one_line(unit)}"
    return [fit([(bar(done / total, _BAR_CELLS, glyphs), "accent"), (words, "text")], width), so_far]


def round_seconds(seconds: float | None) -> str:
    """`41 s`, and `0 s` before the first."""
    return f"{seconds:.0f} s" if seconds is not None and seconds < 60 else format_seconds(seconds)
