"""The dialog of a command that runs in its own process: what the command does, its progress, and its result.

One class serves all commands. The caller passes a function that draws the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog
from tui_trainer.ui.own_processes import Measurement, Tool
from tui_trainer.ui.spans import Glyphs, Line, both_ends_line, paragraph, progress_line, rows_of
from tui_trainer.units import format_whole_seconds

if TYPE_CHECKING:
    from tui_trainer.launching.command_process import JsonProcess
    from tui_trainer.ui.workbench import Workbench

# Most output lines to show while a command runs.
_SHOWN: Final = 12
_SLOWS: Final = "A run is training: this command slows the run down and uses memory."
Draw = Callable[[Any, int, Glyphs], list[Line]]
"""Function that draws the output or the result of a process: (process, width, glyphs) -> lines."""


def rows_as_text(texts: Sequence[str], width: int) -> list[Line]:
    """Return texts as lines. Rows of tables keep their blanks, and longer sentences are wrapped."""
    return [[(row, "text")] for text in texts for row in rows_of(one_line(text), width) or [""]]


def _newest_lines(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
    """Return the newest output lines. While the command runs, the last line is left out, as `current_work_line` shows
    it."""
    lines = process.lines[:-1] if process.alive else process.lines
    return [line for text in lines[-_SHOWN:] for line in paragraph(text, width)]


def current_work_line(process: JsonProcess, width: int, glyphs: Glyphs) -> Line:
    """Return a line with the present work of the command, its progress and the elapsed time."""
    amount_done, total, unit = process.progress
    if total and not process.is_cancelled:
        return progress_line(process.part, amount_done, total, unit, width, glyphs)
    amount_text = f" {amount_done:,.0f} {one_line(unit)}" if amount_done else ""
    work: Line = [("stopping ..." if process.is_cancelled else f"{one_line(process.part)}{amount_text} ...", "accent")]
    return both_ends_line(work, [(f"  {format_whole_seconds(process.seconds)} elapsed", "dim")], width)


def clock_state(process: JsonProcess | None) -> object:
    """Return the state of a process that its lines depend on, for `Dialog.live_state`."""
    if process is None:
        return None
    seconds = int(process.seconds) if process.alive else 0
    return len(process.lines), process.part, process.progress, process.alive, process.is_cancelled, seconds


class CommandDialog(Dialog):
    """A command, its progress and its result. If the dialog is closed, the command continues.

    A command that asks first reports what it would do; Enter then confirms.
    """

    def __init__(
        self, bench: Workbench, command: Measurement[Any] | Tool, heading: str, result: Draw, *,
        so_far: Draw = _newest_lines, about: Sequence[str] = (), apply: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        """Create the dialog. `about` describes the command. `apply` names its suggested change, for key and undo."""
        super().__init__()
        self.bench, self.command, self.heading = bench, command, heading
        self._draw_result, self._draw_output, self._about, self._apply = result, so_far, about, apply

    def live_state(self) -> object:
        return clock_state(self.command.process)

    @property
    def _offer(self) -> Mapping[str, Any] | None:
        return self.command.confirmation if isinstance(self.command, Tool) else None

    @property
    def command_words(self) -> Sequence[str]:  # type: ignore[override]
        return self.command.arguments if type(self.command) is Tool else ()

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self.command.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, keep running"))
        apply_key = (("a", self._apply[0]),) if process is not None and process.patch else ()
        enter_label = "confirm" if self._offer is not None else "again" if process else "begin"
        return (*apply_key, ("enter", enter_label), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        process = self.command.process
        if process is None:
            about = self._about or ["not started"]
            return [line for text in about for line in paragraph(text, width)] + self._warnings(width)
        if process.alive:
            return [*self._draw_output(process, width, self.glyphs), current_work_line(process, width, self.glyphs)]
        if not process.result:
            return [*self._draw_output(process, width, self.glyphs), *paragraph(process.reason, width, "bad")]
        if (offer := self._offer) is not None:
            return rows_as_text(offer["offer"], width) + self._warnings(width)
        return self._draw_result(process, width, self.glyphs)

    def _warnings(self, width: int) -> list[Line]:
        warnings = [_SLOWS] * (self.bench.run_is_alive and not self.command.is_measurement)
        other_tools = [tool for tool in self.bench.tools.values() if tool.running_process and tool is not self.command]
        warnings += [
            f"{one_line(tool.command_name)} is also running" for tool in other_tools if not tool.is_measurement
        ]
        if other := self.bench.other_running_measurement(self.command):
            warnings.append(f"{one_line(other.command_name)} is running: this command would distort that measurement")
        return [line for text in warnings for line in paragraph(text, width, "warn")]

    def press(self, key: str, character: str | None) -> bool:
        process = self.command.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
        elif character == "a" and process is not None and process.patch:
            self.bench.apply(process.patch, self._apply[1])
            return False
        elif key == "enter" and (reason := self.start()):
            self.bench.show_notice(reason, "warn")
            return False
        return True

    def start(self) -> str:
        """Start the command. Return why it cannot be started; empty if it was started or is running."""
        other = self.bench.other_running_measurement(self.command) if self.command.is_measurement else None
        distortion = f"{other.command_name} is still running and would distort the measurement" if other else ""
        return distortion or self.command.start()


def open_and_start(dialog: CommandDialog) -> None:
    """Start the measurement of a dialog, unless it is running already, and open the dialog."""
    if reason := dialog.start():
        dialog.bench.show_notice(reason, "warn")
    else:
        dialog.bench.app.open(dialog)


def open_tool(
    bench: Workbench, tool: Tool, heading: str, about: Sequence[str] = (),
    show: Callable[[Mapping[str, Any], int], list[str]] = lambda _, width: [],
) -> None:  # fmt: skip
    """Open the dialog of a tool. A tool that was opened before is shown again rather than restarted."""

    def draw_result(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
        result = process.result or {}
        lines = rows_as_text(show(result, width), width)
        notes = [*process.lines, *map(one_line, result.get("notes", ()))]
        return [*lines, *(line for text in notes for line in paragraph(text, width, "dim"))]

    earlier_tool = bench.tools.get(tool.command_name)
    if earlier_tool is None or not earlier_tool.running_process:
        bench.tools[tool.command_name] = tool
    tool = bench.tools[tool.command_name]
    # A command that asks first can start at once, because it changes nothing until the user confirms.
    if tool.process is None and not about and (reason := tool.start()):
        bench.show_notice(reason, "warn")
        return
    bench.app.open_next(CommandDialog(bench, tool, heading, draw_result, about=about))


def menu(heading: str, answers: Sequence[Answer]) -> ChoiceDialog:
    """Return a question with one answer in each row, for answers that do not fit into the line of keys."""
    dialog = ChoiceDialog(heading, [[(f"{key}  ", "key"), (label, "text")] for key, label, _ in answers], answers)
    dialog.keys = dialog.keys[-1:]
    return dialog
