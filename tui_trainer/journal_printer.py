"""The journal of a run as lines that are printed while it grows: for people on a terminal, plain ones in a pipe, the
journal's own for programs. Nobody has to listen: a closed output is survived.
"""

import os
import shutil
import sys
import textwrap
from time import monotonic

from tui_trainer import lines
from tui_trainer.doctor.contract import Verdict
from tui_trainer.doctor.examine import Doctor, examine
from tui_trainer.exporting.trained_model import adapter_base
from tui_trainer.runs.event_lines import to_line
from tui_trainer.runs.events import EpochDone, Event, GaugesRead, PhaseChanged, Progress, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.slowest_rank import slowest_rank
from tui_trainer.runs.state import RunState
from tui_trainer.runs.sums import GaugeSummary
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import silence_output

_SECONDS_BETWEEN_STEP_LINES = 5.0
_SECONDS_BETWEEN_EPOCH_LINES = 5.0
_STEPS_BETWEEN_GAUGE_LINES = 100


class Follower:
    """The journal of a run, printed as it grows. What an earlier start wrote belongs to the state, but is not news."""

    def __init__(self, folder: RunFolder, *, as_json: bool = False) -> None:
        self._folder, self._reader = folder, JournalReader(folder.journal)
        self.state = RunState()
        for event in self._reader.read_new():
            self.state.apply(event)
        self._doctor = Doctor(self.state)
        self.printer: Printer = Printer() if as_json else _LinePrinter(self.state)

    def show_new(self) -> None:
        for event in self._reader.read_new():
            self.state.apply(event)
            self.printer.show(event)
        if news := self._doctor.look():
            self.printer.show_verdict(news)
        self.printer.refresh()

    def end(self) -> None:
        self.show_new()
        self.printer.end(self._folder, self.state)


def ending(folder: RunFolder, state: RunState) -> list[str]:
    return lines.end_lines(state, folder.name, str(folder.root), adapter_base(folder.model))


class Output:
    """Standard output, until nobody reads it any more; then silence."""

    def __init__(self) -> None:
        self.open = sys.stdout is not None
        self.is_terminal = self.open and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def write(self, text: str) -> None:
        if not self.open:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            self.open = False
            silence_output()


class Printer:
    """Shows events as they come: the journal's lines, as they are, and nothing else."""

    def __init__(self) -> None:
        self.output = Output()
        self._noted: set[str] = set()

    def show(self, event: Event) -> None:
        self.output.write(to_line(event) + "\n")

    def show_verdict(self, verdict: Verdict) -> None:
        """What the doctor says now: the first time, and when another cause leads."""

    def refresh(self) -> None:
        """Called a few times a second."""

    def note(self, text: str) -> None:
        """A word of this program itself, not of the run."""

    def note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def end(self, folder: RunFolder, state: RunState) -> None:
        """The run is over."""


class _LinePrinter(Printer):
    """Lines for people. On a terminal the last line is alive: it shows the newest step or how far long work is."""

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state = state
        self._live = ""
        self._shown_live = ""
        self._last_step_line = monotonic()
        self._last_epoch_line = 0.0
        self._gauges = GaugeSummary()

    def show(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._show_passing(lines.progress_line(event))
        elif isinstance(event, StepDone):
            self._show_passing(lines.step_line(event, self._state))
            if event.step % _STEPS_BETWEEN_GAUGE_LINES == 0:
                self._show_gauges(event.step)
        elif isinstance(event, GaugesRead):
            self._gauges.add(event)
        else:
            if isinstance(event, PhaseChanged):
                self._live = ""
            if isinstance(event, EpochDone):
                # Small data has several epochs a second: not each of them is news.
                if monotonic() - self._last_epoch_line < _SECONDS_BETWEEN_EPOCH_LINES:
                    return
                self._last_epoch_line = monotonic()
            if line := lines.event_line(event, self._state):
                self._print(line)

    def refresh(self) -> None:
        if self.output.is_terminal and self._live != self._shown_live:
            # Not os.get_terminal_size: it raises once the terminal is gone, and says 0 where no size was set.
            width = shutil.get_terminal_size().columns
            self.output.write(f"\r\x1b[K{self._live[: width - 1]}")
            self._shown_live = self._live

    def show_verdict(self, verdict: Verdict) -> None:
        self._print(f"step {verdict.step}: doctor: {verdict.words}")

    def note(self, text: str) -> None:
        self._print(text)

    def end(self, folder: RunFolder, state: RunState) -> None:
        self._live = ""
        self._show_gauges(state.step)
        for line in ending(folder, state):
            self._print(line)
        if state.steps:
            verdict = examine(state)
            more = f"; `tui-trainer doctor {one_line(folder.name)}` shows all" if verdict.findings else ""
            self._print(f"{'doctor':<14} {verdict.words}{more}")
        self.refresh()

    def _show_gauges(self, step: int) -> None:
        if line := lines.gauges_line(step, self._gauges):
            self._print(line)
        if slowest := slowest_rank(self._state):
            self._print(f"step {step}: {slowest.words}")
        self._gauges = GaugeSummary()

    def _show_passing(self, line: str) -> None:
        """What the next such line replaces: on a terminal in place, in a pipe once in a few seconds."""
        self._live = line
        if not self.output.is_terminal and monotonic() - self._last_step_line >= _SECONDS_BETWEEN_STEP_LINES:
            self._print(line)
            self._last_step_line = monotonic()

    def _print(self, text: str) -> None:
        if self.output.is_terminal:
            width = max(shutil.get_terminal_size().columns - 1, 1)
            folded = "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in text.split("\n"))
            self.output.write(f"\r\x1b[K{folded}\n")
            self._shown_live = ""
        else:
            self.output.write(text + "\n")
