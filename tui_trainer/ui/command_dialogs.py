"""The dialog of a command that runs in its own process: what it does, its progress, and its result.

One class serves all commands. A function of the process draws the result of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog
from tui_trainer.ui.own_processes import Measurement, Tool
from tui_trainer.ui.spans import Glyphs, Line, beside, paragraph, progress_line, rows_of
from tui_trainer.units import round_seconds

if TYPE_CHECKING:
    from tui_trainer.launching.command_process import JsonProcess
    from tui_trainer.ui.workbench import Workbench

# Lines that are shown of a command while it runs.
_SHOWN: Final = 12
_SLOWS: Final = "A run is training: this slows it down and uses memory."
Draw = Callable[[Any, int, Glyphs], list[Line]]
"""Draws a process: (process, width, glyphs) -> lines."""


def rows_as_text(texts: Sequence[str], width: int) -> list[Line]:
    """Return rows of tables with their blanks, and longer sentences wrapped."""
    return [[(row, "text")] for text in texts for row in rows_of(one_line(text), width) or [""]]


def _newest_lines(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
    """Return the newest lines of a command. While it runs, the last line is not included: `now_line` shows it."""
    earlier = process.lines[:-1] if process.alive else process.lines
    return [line for text in earlier[-_SHOWN:] for line in paragraph(text, width)]


def now_line(process: JsonProcess, width: int, glyphs: Glyphs) -> Line:
    """Return what the command does now, its progress and the elapsed time."""
    done, total, unit = process.progress
    if total and not process.is_cancelled:
        return progress_line(process.part, done, total, unit, width, glyphs)
    far = f" {done:,.0f} {one_line(unit)}" if done else ""
    now: Line = [("stopping ..." if process.is_cancelled else f"{one_line(process.part)}{far} ...", "accent")]
    return beside(now, [(f"  {round_seconds(process.seconds)} elapsed", "dim")], width)


def clock_state(process: JsonProcess | None) -> object:
    """Return what `now_line` and the lines of a process depend on, to compare: see `Dialog.by_clock`."""
    if process is None:
        return None
    seconds = int(process.seconds) if process.alive else 0
    return len(process.lines), process.part, process.progress, process.alive, process.is_cancelled, seconds


class CommandDialog(Dialog):
    """A command and its progress. The command continues if the dialog is closed, which shows it when opened again.

    A command that asks first reports what it would do, and Enter confirms.
    """

    def __init__(
        self, bench: Workbench, command: Measurement[Any] | Tool, heading: str, result: Draw, *,
        so_far: Draw = _newest_lines, about: Sequence[str] = (), apply: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        """Show a command. `about` describes it before it starts; `apply` names its patch on the key and for undo."""
        super().__init__()
        self.bench, self.command, self.heading = bench, command, heading
        self._result, self._so_far, self._about, self._apply = result, so_far, about, apply

    def by_clock(self) -> object:
        return clock_state(self.command.process)

    @property
    def _offer(self) -> Mapping[str, Any] | None:
        return self.command.asks if isinstance(self.command, Tool) else None

    @property
    def command_words(self) -> Sequence[str]:  # type: ignore[override]
        return self.command.arguments if type(self.command) is Tool else ()

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self.command.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, keep running"))
        apply = (("a", self._apply[0]),) if process is not None and process.patch else ()
        words = "confirm" if self._offer is not None else "again" if process else "begin"
        return (*apply, ("enter", words), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        process = self.command.process
        if process is None:
            about = self._about or ["not started"]
            return [line for text in about for line in paragraph(text, width)] + self._warnings(width)
        if process.alive:
            return [*self._so_far(process, width, self.glyphs), now_line(process, width, self.glyphs)]
        if not process.result:
            return [*self._so_far(process, width, self.glyphs), *paragraph(process.reason, width, "bad")]
        if (offer := self._offer) is not None:
            return rows_as_text(offer["offer"], width) + self._warnings(width)
        return self._result(process, width, self.glyphs)

    def _warnings(self, width: int) -> list[Line]:
        words = [_SLOWS] * (self.bench.run_is_alive and not self.command.measures)
        others = [tool for tool in self.bench.tools.values() if tool.alive and tool is not self.command]
        words += [f"{one_line(tool.what)} is also running" for tool in others if not tool.measures]
        if other := self.bench.measurement_beside(self.command):
            words.append(f"{one_line(other.what)} is running: starting this now would distort its results")
        return [line for text in words for line in paragraph(text, width, "warn")]

    def press(self, key: str, character: str | None) -> bool:
        process = self.command.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
        elif character == "a" and process is not None and process.patch:
            self.bench.apply(process.patch, self._apply[1])
            return False
        elif key == "enter" and (reason := self.start()):
            self.bench.tell(reason, "warn")
            return False
        return True

    def start(self) -> str:
        """Start the command. Return why it cannot be started, or an empty string."""
        other = self.bench.measurement_beside(self.command) if self.command.measures else None
        return f"{other.what} is still running and would distort the measurement" if other else self.command.start()


def begin(dialog: CommandDialog) -> None:
    """Start a measurement and show it. A measurement that is running is only shown."""
    if reason := dialog.start():
        dialog.bench.tell(reason, "warn")
    else:
        dialog.bench.app.open(dialog)


def open_tool(
    bench: Workbench, tool: Tool, heading: str, about: Sequence[str] = (),
    show: Callable[[Mapping[str, Any], int], list[str]] = lambda _, width: [],
) -> None:  # fmt: skip
    """Open the box of a command. A command that still runs, or has ended, is shown rather than started again."""

    def result(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
        lines = rows_as_text(show(process.result or {}, width), width)
        return [*lines, *(line for text in process.lines for line in paragraph(text, width, "dim"))]

    before = bench.tools.get(tool.what)
    if before is None or not before.alive:
        bench.tools[tool.what] = tool
    tool = bench.tools[tool.what]
    # A command that asks first starts at once, because it only looks.
    if tool.process is None and not about and (reason := tool.start()):
        bench.tell(reason, "warn")
        return
    bench.app.open_next(CommandDialog(bench, tool, heading, result, about=about))


def menu(heading: str, answers: Sequence[Answer]) -> ChoiceDialog:
    """Return a question whose answers do not fit into the line of keys: one answer in each row."""
    dialog = ChoiceDialog(heading, [[(f"{key}  ", "key"), (label, "text")] for key, label, _ in answers], answers)
    dialog.keys = dialog.keys[-1:]
    return dialog
