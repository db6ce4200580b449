"""A run without a screen.

The run goes on when nobody listens: a hang-up and a closed output are survived. SIGTERM and Ctrl+C ask it to stop, and
it saves first; a second Ctrl+C leaves at once.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from time import sleep
from types import FrameType

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FolderError
from tui_trainer.journal_printer import Follower, Printer
from tui_trainer.launching.start import OpenRun
from tui_trainer.launching.thread import RunThread
from tui_trainer.runs import controls
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import owner
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import Interrupts, tell

_POLL_SECONDS = 0.2


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
            # The run frees memory when it misses some; what is new is printed then.
            with suppress(MemoryError):
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


def _tell_failing_journal(run: OpenRun, printer: Printer) -> None:
    if reason := run.journal.failing:
        printer.note_once(f"the journal cannot be written ({reason}): training goes on, but is not shown here")


class _Signals:
    """Handlers that only note what came; the loop acts on it. They belong to the main thread."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._interrupts = Interrupts()
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
        if number == signal.SIGINT:
            self._interrupts.note()
