"""The life of the program with screens: terminal, application, and the run that outlives both.

The run's thread belongs to this frame. When the connection is lost the screens go, and this frame waits for the run;
when the screens fail, it asks the run to save.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED
from tui_trainer.hardware.probe import probe
from tui_trainer.standard_files import tell
from tui_trainer.ui.glyphs import ASCII, UNICODE
from tui_trainer.ui.terminal import TerminalGuard, refuse_unfit, silence_unless_read, speaks_unicode

if TYPE_CHECKING:
    from tui_trainer.config.load import Request
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.current_run import CurrentRun
    from tui_trainer.ui.workbench import Workbench

# Textual reads these once, when it is imported: nothing moves by itself.
_TEXTUAL = {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
_WAIT_SECONDS = 0.5
_LEFT_BY_SIGNAL = 128


def run_screens(
    make_request: Callable[[], Request] | None = None,
    *,
    gpu: int | None = None,
    ascii_only: bool = False,
    attach_to: RunFolder | None = None,
) -> int:
    """Show the screens until the user leaves. Returns the exit code. Raises InputError for an unfit terminal.

    `make_request` is called once the first screen is shown: what it needs takes longer to load than the screen.
    """
    refuse_unfit(os.environ)
    for name, value in _TEXTUAL.items():
        os.environ.setdefault(name, value)
    from tui_trainer.runs.registry import state_folder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.keymap import load_keymap
    from tui_trainer.ui.workbench import Workbench

    glyphs = ASCII if ascii_only or not speaks_unicode() else UNICODE
    bench = Workbench(make_request or _default_request, probe(), glyphs, gpu=gpu, attach_to=attach_to)
    app = TrainerApp(bench, load_keymap())
    logs = state_folder() / "logs"
    with Signals(app, bench) as signals:
        with TerminalGuard(logs) as guard:
            app.guard = bench.guard = guard
            app.run(mouse=False)
        return _afterwards(app, bench, signals, logs)


def _default_request() -> Request:
    from tui_trainer.config.load import Request

    return Request()


class Signals:
    """SIGHUP, SIGTERM and SIGINT, for as long as the process lives: a second hang-up must not kill a run."""

    def __init__(self, app: TrainerApp, bench: Workbench) -> None:
        self._app, self._bench = app, bench
        self._before: dict[int, object] = {}
        self.last = 0

    def __enter__(self) -> Signals:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        from tui_trainer.ui.workbench import Leaving

        again, self.last = self.last == number, number
        if self._app.is_running:
            self._app.leave_soon(Leaving.LOST if number == signal.SIGHUP else Leaving.TERMINATED)
        elif number != signal.SIGHUP and self._bench.run is not None and self._bench.run.is_ours:
            if again and number == signal.SIGINT:
                tell("left at once, without saving; `tui-trainer resume` goes on from the last checkpoint")
                os._exit(EXIT_FAILED)
            self._bench.run.ask("stop")


def _afterwards(app: TrainerApp, bench: Workbench, signals: Signals, logs: Path) -> int:
    """The terminal is given back. Take care of the run, and say what is to be said."""
    from tui_trainer.ui.current_run import CurrentRun
    from tui_trainer.ui.workbench import Leaving

    run = bench.run if isinstance(bench.run, CurrentRun) else None
    crashed = bool(app.crash)
    silence_unless_read()
    if crashed:
        _tell_crash(app.crash, logs)
    if run is not None and run.alive:
        if bench.leaving is not Leaving.LOST or crashed:
            problem = run.ask("stop")
            tell(problem or f"{run.folder.name} saves and stops; Ctrl+C leaves at once")
        while run.alive:
            run.wait(_WAIT_SECONDS)
        silence_unless_read()
    if run is not None:
        _tell_end(run)
    if crashed:
        return EXIT_FAILED
    if run is None and signals.last == signal.SIGTERM:
        return _LEFT_BY_SIGNAL + signals.last
    return run.exit_code if run is not None else EXIT_DONE


def _tell_crash(report: str, logs: Path) -> None:
    path = logs / f"crash-{os.getpid()}.txt"
    where = f"the report is in {path}"
    try:
        path.write_text(report, encoding="utf-8", errors="replace")
    except OSError:
        where = "the report could not be written"
    last = report.strip().rpartition("\n")[2]
    tell(f"the screens failed: {last}; {where}")


def _tell_end(run: CurrentRun) -> None:
    """The last lines of the run, as without a screen."""
    from tui_trainer.lines import end_lines

    run.poll()
    name, folder = run.folder.name, str(run.folder.root)
    with suppress(OSError, ValueError):
        print("\n".join(end_lines(run.state, name, folder)), file=sys.stdout, flush=True)
    if run.outcome is not None:
        for problem in run.outcome.problems:
            tell(str(problem))
        if run.outcome.failure:
            tell(run.outcome.failure)
