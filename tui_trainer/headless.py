"""A run without a screen: lines for people on a terminal, plain lines in a pipe, journal lines for programs.

The run goes on when nobody listens: a hang-up and a closed output are survived. SIGTERM and Ctrl+C ask it to stop, and
it saves first; a second Ctrl+C leaves at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from time import monotonic, sleep
from types import FrameType

from tui_trainer import lines
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FolderError
from tui_trainer.exporting.weights import adapter_base
from tui_trainer.launching.start import OpenRun
from tui_trainer.launching.thread import RunThread
from tui_trainer.runs import controls
from tui_trainer.runs.events import EpochDone, Event, GaugesRead, PhaseChanged, Progress, StepDone, to_line
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.gauges import GaugeSummary
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.lock import owner
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import ONE_PRESS_SECONDS, silence_output, tell

_POLL_SECONDS = 0.2
_SECONDS_BETWEEN_STEP_LINES = 5.0
_SECONDS_BETWEEN_EPOCH_LINES = 5.0
_STEPS_BETWEEN_GAUGE_LINES = 100


def follow(run: OpenRun, *, as_json: bool, greeting: Sequence[str] = ()) -> int:
    """Carry out a run in a thread and print its journal until it ends. Returns the exit code."""
    follower = Follower(run.folder, as_json=as_json)
    printer = follower.printer
    for line in greeting:
        printer.note(line)
    thread = RunThread(run)
    with _Signals(printer) as signals:
        thread.start()
        while thread.alive:
            thread.join(_POLL_SECONDS)
            signals.pass_on(run)
            _tell_failing_journal(run, printer)
            follower.show_new()
    follower.end()
    outcome = thread.outcome
    assert outcome is not None, "a run that ended has an outcome"
    for problem in outcome.problems:
        tell(str(problem))
    if outcome.failure:
        tell(outcome.failure)
    return outcome.exit_code


def watch(folder: RunFolder, *, as_json: bool) -> int:
    """Print the journal of a run that another process carries out, until it ends or Ctrl+C is pressed, which stops
    only the watching. Returns the exit code of the run; 0 when it goes on.
    """
    follower = Follower(folder, as_json=as_json)
    try:
        while owner(folder.lock) is not None:
            follower.show_new()
            sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        follower.printer.note(f"{folder.name} goes on; `tui-trainer stop {folder.name}` saves and stops it")
        return EXIT_DONE
    follower.end()
    if follower.state.finished is None:
        failed = follower.state.failed
        ended = one_line(failed.message) if failed else "no process owns it, and it has not said how it ended"
        tell(f"{folder.name}: {ended}; `tui-trainer resume {folder.name}` goes on")
        return EXIT_FAILED
    return EXIT_STOPPED if follower.state.status == "stopped" else EXIT_DONE


class Follower:
    """The journal of a run, printed as it grows. What an earlier start wrote belongs to the state, but is not news."""

    def __init__(self, folder: RunFolder, *, as_json: bool) -> None:
        self._folder, self._reader = folder, JournalReader(folder.journal)
        self.state = RunState()
        for event in self._reader.read_new():
            self.state.apply(event)
        self.printer: _Printer = _JsonPrinter() if as_json else _LinePrinter(self.state)

    def show_new(self) -> None:
        """Take in and print what is new."""
        for event in self._reader.read_new():
            self.state.apply(event)
            self.printer.show(event)
        self.printer.refresh()

    def end(self) -> None:
        """The run is over: what is left, and how it ended."""
        self.show_new()
        self.printer.end(self._folder, self.state)


def _tell_failing_journal(run: OpenRun, printer: _Printer) -> None:
    if reason := run.journal.failing:
        printer.note_once(f"the journal cannot be written ({reason}): training goes on, but is not shown here")


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


class _Printer:
    """Shows events as they come."""

    def __init__(self) -> None:
        self.output = Output()
        self._noted: set[str] = set()

    def show(self, event: Event) -> None:
        raise NotImplementedError

    def refresh(self) -> None:
        """Called a few times a second."""

    def note(self, text: str) -> None:
        """A word of this program itself, not of the run."""

    def note_once(self, text: str) -> None:
        """The same word is not said again and again."""
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def end(self, folder: RunFolder, state: RunState) -> None:
        """The run is over."""


class _JsonPrinter(_Printer):
    """The journal's lines, as they are."""

    def show(self, event: Event) -> None:
        self.output.write(to_line(event) + "\n")


class _LinePrinter(_Printer):
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
            if isinstance(event, EpochDone) and not self._is_time_for_an_epoch():
                return
            if line := lines.event_line(event, self._state):
                self._print(line)

    def refresh(self) -> None:
        if self.output.is_terminal and self._live != self._shown_live:
            # Not os.get_terminal_size: it raises once the terminal is gone, and says 0 where no size was set.
            width = shutil.get_terminal_size().columns
            self.output.write(f"\r\x1b[K{self._live[: width - 1]}")
            self._shown_live = self._live

    def note(self, text: str) -> None:
        self._print(text)

    def end(self, folder: RunFolder, state: RunState) -> None:
        self._live = ""
        self._show_gauges(state.step)
        base = adapter_base(folder.model)
        for line in lines.end_lines(state, folder.name, str(folder.root), base):
            self._print(line)
        self.refresh()

    def _show_gauges(self, step: int) -> None:
        """What the run used since the last such line."""
        if line := lines.gauges_line(step, self._gauges):
            self._print(line)
        self._gauges = GaugeSummary()

    def _is_time_for_an_epoch(self) -> bool:
        """Small data has several epochs a second: not each of them is news."""
        due = monotonic() - self._last_epoch_line >= _SECONDS_BETWEEN_EPOCH_LINES
        if due:
            self._last_epoch_line = monotonic()
        return due

    def _show_passing(self, line: str) -> None:
        """What the next such line replaces: on a terminal in place, in a pipe once in a few seconds."""
        self._live = line
        if not self.output.is_terminal and monotonic() - self._last_step_line >= _SECONDS_BETWEEN_STEP_LINES:
            self._print(line)
            self._last_step_line = monotonic()

    def _print(self, text: str) -> None:
        if self.output.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            folded = "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in text.split("\n"))
            self.output.write(f"\r\x1b[K{folded}\n")
            self._shown_live = ""
        else:
            self.output.write(text + "\n")


class _Signals:
    """Handlers that only note what came; the loop acts on it. They belong to the main thread."""

    def __init__(self, printer: _Printer) -> None:
        self._printer = printer
        self._first_interrupt: float | None = None
        self._stop_wanted = False
        self._stop_asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def pass_on(self, run: OpenRun) -> None:
        """Ask the run to stop, once."""
        if not self._stop_wanted or self._stop_asked:
            return
        try:
            controls.request(run.folder.control, "stop")
        except FolderError as error:
            self._printer.note_once(f"{error}; it is tried again; Ctrl+C once more leaves at once")
        else:
            self._stop_asked = True
            self._printer.note("stopping at the next step, and saving; Ctrl+C once more leaves at once")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._stop_wanted = True
        if number != signal.SIGINT:
            return
        now = monotonic()
        if self._first_interrupt is None:
            self._first_interrupt = now
        elif now - self._first_interrupt > ONE_PRESS_SECONDS:
            tell("left at once, without saving; `tui-trainer resume` goes on from the last checkpoint")
            os._exit(EXIT_FAILED)
