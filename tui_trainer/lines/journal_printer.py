"""Print a run's journal while it grows: as text in a terminal or a pipe, or as the journal's own JSON lines.

If the output is closed, only the printing ends. If nobody reads it, only the thread that prints is blocked."""

import os
import shutil
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic

from tui_trainer.advice.examine import Doctor, examine
from tui_trainer.exporting.trained_model import adapter_base
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.runs import events
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import FollowedJournal, GaugeSummary, RunState, slowest_rank
from tui_trainer.runs.steps_and_eta import is_off_plan, time_words, whole_seconds
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.terminal.standard_files import fd_of, print_to_stderr, silence_output, write_all

_SECONDS_BETWEEN_LINES = 5.0
"""Least time between two printed steps in a pipe, and between two printed epochs."""
_STEPS_BETWEEN_GAUGE_LINES = 100
_SECONDS_BETWEEN_CORRECTIONS = 60.0
_POLL_SECONDS = 0.2
# Longest wait for a slow reader at the end of a run: for one write, and in total after a signal to stop.
_PATIENCE_SECONDS = 30.0
_HURRIED_SECONDS = 3.0


class Output:
    """Standard output. After its reader is gone, everything is discarded."""

    def __init__(self) -> None:
        # Kept here, because sys.stdout may be replaced later to capture the output of libraries.
        self._stream, self._fd = sys.stdout, fd_of(sys.stdout)
        self.is_open = self._stream is not None
        self.is_terminal = self.is_open and self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._waited_seconds = 0.0
        self._waits_since: float | None = None

    @property
    def seconds_of_this_wait(self) -> float:
        """Time that the present write has waited for the reader, in seconds; 0 without a write."""
        wait_start = self._waits_since
        return 0.0 if wait_start is None else monotonic() - wait_start

    @property
    def seconds_waited(self) -> float:
        """Time of all waits for the reader, in seconds."""
        return self._waited_seconds + self.seconds_of_this_wait

    def write(self, text: str) -> None:
        if not self.is_open:
            return
        self._waits_since = monotonic()
        try:
            if self._fd is None:
                self._stream.write(text)
                self._stream.flush()
            else:
                # Bypasses the stream's buffer, which the interpreter would flush at exit, waiting for the reader.
                write_all(self._fd, text.encode(self._stream.encoding, "replace"))
        except (OSError, ValueError):
            self.is_open = False
            silence_output()
        self._waited_seconds, self._waits_since = self.seconds_waited, None


class Follower(threading.Thread):
    """A thread that prints the journal of a run as it grows, until `end`. Events of earlier starts are not printed.

    On a terminal, the last line shows the newest step or the progress of a long operation. A slow reader misses no
    line, because the journal is on the disk."""

    def __init__(self, folder: RunFolder, *, as_json: bool = False, greeting: Iterable[str] = ()) -> None:
        super().__init__(name="journal-lines", daemon=True)
        self._folder, self._journal, self._as_json = folder, FollowedJournal(folder), as_json
        self.state, self.output = self._journal.read_new(), Output()
        self._doctor = Doctor(self.state)
        self._live = ""
        self._shown_live = ""
        self._last_step_line = monotonic()
        self._last_epoch_line = 0.0
        self._gauges = GaugeSummary()
        self._reported_seconds: float | None = None
        self._last_correction = -_SECONDS_BETWEEN_CORRECTIONS
        self._notes, self._over, self._has_ending = deque(greeting), threading.Event(), False

    def show_new(self) -> None:
        for event in self._journal.reader.read_new():
            self.state.apply(event)
            if self._as_json:
                self.output.write(events.to_line(event) + "\n")
            else:
                self._show(event)
        if verdict := self._doctor.examine_news():
            self.print(f"step {verdict.step}: doctor: {verdict.words}")
        self._refresh()

    def _show(self, event: events.Event) -> None:
        if isinstance(event, events.Progress):
            self._show_transient(lines.progress_line(event))
        elif isinstance(event, events.StepDone):
            self._show_transient(lines.step_line(event, self.state))
            self._correct_time(event.step)
            if event.step % _STEPS_BETWEEN_GAUGE_LINES == 0:
                self._show_gauges(event.step)
        elif isinstance(event, events.GaugesRead):
            self._gauges.add(event)
        else:
            if isinstance(event, events.PhaseChanged | events.DataPrepared):
                self._live = ""
            if isinstance(event, events.EpochDone):
                # With small data, there are several epochs per second, too many to print all.
                if monotonic() - self._last_epoch_line < _SECONDS_BETWEEN_LINES:
                    return
                self._last_epoch_line = monotonic()
            if line := lines.event_line(event, self.state):
                self.print(line)

    def _refresh(self) -> None:
        if self.output.is_terminal and self._live != self._shown_live:
            # os.get_terminal_size raises without a terminal, and returns 0 if no size was set.
            width = shutil.get_terminal_size().columns
            self.output.write(f"\r\x1b[K{self._live[: width - 1]}")
            self._shown_live = self._live

    def show_end(self) -> None:
        """Print the remaining events and the result of the run."""
        self.show_new()
        if self._as_json:
            return
        folder, state, self._live = self._folder, self.state, ""
        self._show_gauges(state.step)
        for line in ending(folder, state):
            self.print(line)
        if state.steps:
            verdict = examine(state)
            hint = f"; `tui-trainer doctor {shell_word(folder.name)}` shows all findings" if verdict.findings else ""
            self.print(f"{'doctor':<14} {verdict.words}{hint}")
        self._refresh()

    def _correct_time(self, step: int) -> None:
        """Print a new estimate of the time if it differs clearly from the plan or from the estimate printed last."""
        state = self.state
        if self._reported_seconds is None and state.plan is not None and state.plan.duration_seconds is not None:
            # The plan includes the time before the first step, but `whole_seconds` does not.
            self._reported_seconds = state.plan.duration_seconds - (state.plan.beginning_seconds or 0.0)
        is_soon = monotonic() - self._last_correction < _SECONDS_BETWEEN_CORRECTIONS
        if is_soon or not is_off_plan(state, self._reported_seconds) or state.step >= state.total_steps:
            return
        self._reported_seconds, self._last_correction = whole_seconds(state), monotonic()
        self.print(f"step {step}: time: {time_words(state)}")

    def _show_gauges(self, step: int) -> None:
        if line := lines.gauges_line(step, self._gauges):
            self.print(line)
        if slowest_process := slowest_rank(self.state):
            self.print(f"step {step}: {slowest_process.words}")
        self._gauges = GaugeSummary()

    def _show_transient(self, line: str) -> None:
        """Show a line that the next one of its kind replaces. In a pipe, print such a line every few seconds."""
        self._live = line
        if not self.output.is_terminal and monotonic() - self._last_step_line >= _SECONDS_BETWEEN_LINES:
            self.print(line)
            self._last_step_line = monotonic()

    def print(self, text: str) -> None:
        """Print a text, unless the output is JSON."""
        if self._as_json:
            return
        if self.output.is_terminal:
            width = max(shutil.get_terminal_size().columns - 1, 1)
            wrapped_text = "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in text.split("\n"))
            self.output.write(f"\r\x1b[K{wrapped_text}\n")
            self._shown_live = ""
        else:
            self.output.write(text + "\n")

    def note(self, text: str) -> None:
        """Queue a message to be printed between the lines of the journal. Any thread may call this."""
        self._notes.append(text)

    def run(self) -> None:
        try:
            is_over, patience_seconds = False, 0.0
            while not is_over:
                is_over, patience_seconds = self._over.wait(patience_seconds), _POLL_SECONDS
                while self._notes:
                    self.print(self._notes.popleft())
                # If memory is short, the events are printed at the next attempt, after the run has freed some memory.
                with suppress(MemoryError):
                    self.show_new()
            if self._has_ending:
                self.show_end()
        except Exception as error:  # a failure of the printing must not end the run
            reason = f"{type(error).__name__}: {error}"
            print_to_stderr(f"stopped printing the journal: {reason}; `tui-trainer attach` shows the run")

    def end(self, is_hurried: Callable[[], bool], *, has_ending: bool = True) -> bool:
        """Print what is left, also the result of the run if `has_ending`, and end the thread.

        Return False if the reader was too slow to read all of it. If `is_hurried()`, wait only a few seconds."""
        output, seconds_waited_before, self._has_ending = self.output, self.output.seconds_waited, has_ending
        self._over.set()
        while self.is_alive():
            self.join(_POLL_SECONDS)
            is_late = is_hurried() and output.seconds_waited - seconds_waited_before > _HURRIED_SECONDS
            if is_late or output.seconds_of_this_wait > _PATIENCE_SECONDS:
                return False
        return True


def ending(folder: RunFolder, state: RunState) -> list[str]:
    return lines.end_lines(state, folder.name, str(folder.root), adapter_base(folder.model))
