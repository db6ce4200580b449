"""A command of this program in a box: what it would do, how far it is, how it is cancelled, and its result. One class
for all of them; what each shows of its result is a function of what the command prints as JSON.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog, Row
from tui_trainer.ui.own_processes import Measurement, Tool
from tui_trainer.ui.spans import Line, bar, beside, fit, paragraph, rows_of
from tui_trainer.units import format_bytes, round_seconds

if TYPE_CHECKING:
    from textual.events import Click

    from tui_trainer.launching.command_process import JsonProcess
    from tui_trainer.ui.workbench import Workbench

# Of what it has told, while it goes on.
_SHOWN: Final = 12
_BAR_CELLS: Final = 24
_SLOWS: Final = "A run is training: this slows it down and uses memory."
Show = Callable[[Mapping[str, Any], int], list[str]]


class OwnProcessDialog(Dialog):
    """It goes on when this is closed, and is shown again when it is opened. `command_of` the bench begins it, and has
    the process; `patch_words` names its patch in the list of what can be undone."""

    command_of: attrgetter[Measurement[Any]]
    apply_words, patch_words = "", ""

    def __init__(self, bench: Workbench, command: Measurement[Any] | Tool | None = None) -> None:
        super().__init__()
        self._bench = bench
        self.command: Measurement[Any] | Tool = command or self.command_of(bench)

    @abstractmethod
    def told(self, process: Any, width: int) -> list[Line]:
        """What it has told so far, or its result."""

    def about(self, width: int) -> list[Line]:
        """What is to be known before it begins."""
        return paragraph("not started", width)

    def so_far(self, process: JsonProcess, width: int) -> list[Line]:
        """The newest sentence stands below, as what it does now."""
        earlier = process.lines[:-1] if process.alive else process.lines
        return [line for text in earlier[-_SHOWN:] for line in paragraph(text, width)]

    def rows(self, texts: Sequence[str], width: int) -> list[Line]:
        """With their blanks, as those of tables, which are made for the width; sentences may be longer."""
        return [[(row, "text")] for text in texts for row in rows_of(one_line(text), width) or [""]]

    def by_clock(self) -> object:
        process = self.command.process
        if process is None:
            return None
        seconds = int(process.seconds) if process.alive else 0
        return len(process.lines), process.part, process.progress, process.alive, process.is_cancelled, seconds

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self.command.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, keep running"))
        apply = (("a", self.apply_words),) if process is not None and process.patch else ()
        return (*apply, ("enter", self.enter_words), ("escape", "close"))

    @property
    def enter_words(self) -> str:
        return "again" if self.command.process else "begin"

    def lines(self, width: int) -> list[Line]:
        process = self.command.process
        if process is None:
            return self.about(width)
        lines = self.told(process, width)
        if process.alive:
            return [*lines, self._now(process, width)]
        return lines if process.result else [*lines, *paragraph(process.reason, width, "bad")]

    def _now(self, process: JsonProcess, width: int) -> Line:
        done, total, unit = process.progress
        if process.is_cancelled or not total:
            far = f" {done:,.0f} {one_line(unit)}" if done else ""
            now: Line = [("stopping ..." if process.is_cancelled else f"{one_line(process.part)}{far} ...", "accent")]
            return beside(now, [(f"  {round_seconds(process.seconds)} elapsed", "dim")], width)
        amount = (format_bytes(done), format_bytes(total)) if unit == "bytes" else (f"{done:,.0f}", f"{total:,.0f}")
        words = (
            f" {one_line(process.part)}, {amount[0]} of {amount[1]}{'' if unit == 'bytes' else f' {one_line(unit)}'}"
        )
        return fit([(bar(done / total, _BAR_CELLS, self.glyphs), "accent"), (words, "text")], width)

    def press(self, key: str, character: str | None) -> bool:
        process = self.command.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
            return True
        if character == "a" and process is not None and process.patch:
            for problem in self._bench.apply(process.patch, self.patch_words):
                self._bench.tell(str(problem), "bad")
            return False
        if key == "enter" and (reason := self.command.start()):
            self._bench.tell(reason, "warn")
        return True


def refusal_beside_others(bench: Workbench, command: Measurement[Any] | Tool) -> str:
    """Why a measurement does not begin now; empty: it may."""
    other = bench.measurement_beside(command)
    return f"{other.what} is still running and would distort the measurement" if other else ""


def offer(dialog: OwnProcessDialog, bench: Workbench) -> None:
    """Begin a measurement and show it; one that goes on is shown."""
    if reason := refusal_beside_others(bench, dialog.command) or dialog.command.start():
        bench.tell(reason, "warn")
    else:
        bench.app.open(dialog)


class ToolDialog(OwnProcessDialog):
    """A command that is no measurement of the config. It begins with Enter; one that asks first tells at once what it
    would do."""

    command: Tool

    def __init__(self, bench: Workbench, tool: Tool, heading: str, about: Sequence[str], show: Show) -> None:
        super().__init__(bench, tool)
        self.heading, self._about, self._show = heading, about, show

    def about(self, width: int) -> list[Line]:
        return [line for text in self._about for line in paragraph(text, width)] + self._warnings(width)

    def _warnings(self, width: int) -> list[Line]:
        words = [_SLOWS] * (self._bench.run_is_alive and not self.command.measures)
        others = [one for one in self._bench.tools.values() if one.alive and one is not self.command]
        words += [f"{one_line(one.what)} is also running" for one in others if not one.measures]
        if other := self._bench.measurement_beside(self.command):
            words.append(f"{one_line(other.what)} is running: starting this now would distort its results")
        return [line for text in words for line in paragraph(text, width, "warn")]

    def told(self, process: JsonProcess, width: int) -> list[Line]:
        # Until it has ended it is not known whether it asks.
        if process.result is None or process.alive:
            return self.so_far(process, width)
        if self.command.asks is not None:
            return self.rows(process.result["offer"], width) + self._warnings(width)
        lines = self.rows(self._show(process.result, width), width)
        return [*lines, *(line for text in process.lines for line in paragraph(text, width, "dim"))]

    @property
    def enter_words(self) -> str:
        return "confirm" if self.command.asks is not None else super().enter_words

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter" and not self.command.alive:
            reason = refusal_beside_others(self._bench, self.command) if self.command.measures else ""
            if reason := reason or self.command.start():
                self._bench.tell(reason, "warn")
                return False
            return True
        return super().press(key, character)


def open_tool(
    bench: Workbench, tool: Tool, heading: str, about: Sequence[str] = (), show: Show = lambda _, width: []
) -> None:
    """The box of a command; that of the same command once more where it goes on, with its result where it is over."""
    before = bench.tools.get(tool.what)
    if before is None or not before.alive:
        bench.tools[tool.what] = tool
    tool = bench.tools[tool.what]
    dialog = ToolDialog(bench, tool, heading, about, show)
    # What asks first has nothing to be begun: it looks.
    if tool.process is None and not about and (reason := tool.start()):
        bench.tell(reason, "warn")
        return
    bench.app.open_next(dialog)


class MenuDialog(ChoiceDialog):
    """A question with more answers than a line of keys holds: one below the other. A click on one is its key."""

    def __init__(self, heading: str, answers: Sequence[Answer]) -> None:
        rows: list[Row] = [[(f"{key}  ", "key"), (label, "text")] for key, label, _ in answers]
        super().__init__(heading, rows, answers)
        self._names = [key for key, _, _ in answers]
        self.keys = [("escape", "back")]

    def on_click(self, event: Click) -> None:
        pane, _ = self.get_widget_at(*event.screen_offset)
        if pane is self.query_one("#inside Pane"):
            self.app.simulate_key(self._names[event.screen_y - pane.region.y])
