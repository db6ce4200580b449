"""The program with screens: it prepares the terminal, runs the application, and then takes care of the run.

The run outlives the screens if they lose their terminal or fail, or if the user lets it continue. `run_screens` waits
for the run, and stops it only if the user asked for that.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, InputError
from tui_trainer.terminal.standard_files import Interrupts, never_blocking_stream, print_to_stderr
from tui_trainer.ui.terminal import TerminalGuard, has_mouse, refuse_unfit, speaks_unicode

if TYPE_CHECKING:
    from tui_trainer.config.load import Request
    from tui_trainer.hardware.diagnosis import GpuChoice
    from tui_trainer.launching.open_run import OpenRun
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.watch import CurrentRun
    from tui_trainer.ui.workbench import Workbench


# Textual reads these once, when it is imported. They turn animations off.
_TEXTUAL = {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
_WAIT_SECONDS = 0.5
_OPENING_SECONDS = 60.0
# Time for a step, a checkpoint, and the start of a process that loads torch, in seconds.
_DETACHING_SECONDS = 3_600.0
_LEFT_BY_SIGNAL = 128


def run_screens(
    make_request: Callable[[], Request] | None = None, *, gpu: GpuChoice = None, ascii_only: bool = False,
    mouse: bool = True, attach_to: RunFolder | None = None, view: bool = False, resumed: OpenRun | None = None,
) -> int:  # fmt: skip
    """Show the screens until the user leaves, and return the exit code. Raise InputError for an unsuitable terminal.

    `make_request` is called after the first screen is shown, because its modules load more slowly than the screen.
    `resumed` is an open run to continue, `attach_to` a run to show. A `view` has no actions that change runs.
    """
    refuse_unfit(os.environ, f"resume {resumed.folder.name}" if resumed else "")
    # Imported modules are never garbage. Looking for garbage among them takes a tenth of the time to the first screen.
    gc.disable()
    for name, value in _TEXTUAL.items():
        os.environ.setdefault(name, value)
    with suppress(OSError):
        if all(os.get_terminal_size(2)):
            # Textual would prefer these variables to the terminal's size, but they do not follow a resize.
            for name in ("COLUMNS", "LINES"):
                os.environ.pop(name, None)
    from tui_trainer.hardware.probe import probe
    from tui_trainer.runs.registry import logs_folder
    from tui_trainer.ui.app import TrainerApp
    from tui_trainer.ui.keymap import load_keymap
    from tui_trainer.ui.spans import ASCII, UNICODE
    from tui_trainer.ui.workbench import Workbench

    glyphs = ASCII if ascii_only or not speaks_unicode(os.environ) else UNICODE
    bench = Workbench(make_request, probe(), glyphs, gpu=gpu)
    bench.is_view = view
    app = TrainerApp(bench, load_keymap())
    logs = logs_folder()

    def show_run() -> None:
        gc.freeze()
        gc.enable()
        if attach_to is not None:
            bench.attach_to(attach_to)
        elif resumed is not None:
            from tui_trainer.ui.starting import execute_run

            execute_run(bench, resumed)
        signals.pass_on()

    with Signals(app) as signals:
        app.when_shown = show_run
        try:
            with TerminalGuard(logs) as guard:
                app.guard = bench.guard = guard
                app.run(mouse=mouse and has_mouse(os.environ))
        except Exception:  # the code below must still run, because it takes care of an active run
            app.crash = app.crash or traceback.format_exc()
        if bench.exit_reason is None and not app.crash:
            app.crash = "Textual stopped without an error message"
        for signal_number in (signal.SIGTTOU, signal.SIGTTIN):
            # With `stty tostop`, the first output of a background run would stop it.
            signal.signal(signal_number, signal.SIG_IGN)
        gc.enable()
        with never_blocking_stream("stdout"):
            exit_code = _finish_run(app, bench, signals, logs)
    return exit_code


class Signals:
    """Handlers of SIGHUP, SIGTERM and SIGINT. They outlast the screens, so that a second SIGHUP does not kill a run."""

    def __init__(self, app: TrainerApp) -> None:
        self._app = app
        self._former_handlers: dict[int, object] = {}
        self._interrupts = Interrupts()
        self.received: list[int] = []

    def __enter__(self) -> Signals:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            self._former_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def is_stop_requested(self) -> bool:
        """Whether a received signal asks to stop the run. SIGHUP does not; it reports a lost connection."""
        return signal.SIGTERM in self.received or signal.SIGINT in self.received

    def pass_on(self) -> None:
        """Close the screens if a signal has arrived, even before they were shown."""
        from tui_trainer.ui.workbench import ExitReason

        if self.received:
            self._app.leave_soon(ExitReason.TERMINATED if self.is_stop_requested else ExitReason.LOST)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal and act on it. A handler must not wait for a lock, which the interrupted code may hold."""
        self.received.append(number)
        if self._app.is_running:
            run = self._app.bench.local_run
            if run is not None and self.is_stop_requested:
                # Request the stop first, because closing the screens on a stalled terminal takes a second.
                run.ask("stop")
            self.pass_on()
        elif number == signal.SIGINT:
            self._interrupts.note()


def _finish_run(app: TrainerApp, bench: Workbench, signals: Signals, logs: Path) -> int:
    """Wait for the run and print how it ended, after the screens have closed. Return the exit code."""
    from tui_trainer.ui.workbench import ExitReason

    if app.crash:
        _tell_crash(app.crash, logs)
    if hasattr(bench, "background"):  # the attribute exists once the screens were shown
        if _is_detached(bench):
            return EXIT_DONE
        if app.crash or bench.exit_reason in (ExitReason.LOST, ExitReason.TRAINING_ON):
            _start_opened_run(bench)
    if (run := bench.local_run) is not None:
        wants_stop = bench.exit_reason in (ExitReason.QUIT, ExitReason.TERMINATED) and not app.crash
        has_lines = run.alive and (bool(app.crash) or bench.exit_reason is ExitReason.TRAINING_ON)
        _wait_for(run, signals, wants_stop=wants_stop, has_lines=has_lines)
        return run.exit_code
    if app.crash:
        return EXIT_FAILED
    if (watched_run := bench.run) is not None:
        from tui_trainer.lines.plan_and_events import after_screens_line

        name, is_active = watched_run.folder.name, watched_run.takes_requests
        print_to_stderr(after_screens_line(watched_run.state, name, is_active=is_active))
    return _LEFT_BY_SIGNAL + signal.SIGTERM if signal.SIGTERM in signals.received else EXIT_DONE


def _is_detached(bench: Workbench) -> bool:
    """Wait until a run that is being detached has its own process, and return True. If that fails, continue it here."""
    from tui_trainer.launching.open_run import reopen_run
    from tui_trainer.ui.watch import CurrentRun
    from tui_trainer.ui.workbench import DETACHING

    if bench.local_run is None:
        return False
    bench.background.finish(DETACHING, _DETACHING_SECONDS)
    if isinstance(bench.detached_pid, int):
        print_to_stderr(f"{bench.local_run.folder.name} continues in process {bench.detached_pid}")
        return True
    if bench.detached_pid is not None:
        print_to_stderr(f"could not detach {bench.local_run.folder.name}: {bench.detached_pid}")
        bench.local_run = CurrentRun(reopen_run(bench.local_run.folder, gpu=bench.chosen_gpu))
        bench.local_run.start()
    return False


def _start_opened_run(bench: Workbench) -> None:
    """Start the run that was being opened when the screens closed. Raise InputError if the run is refused."""
    from tui_trainer.ui.watch import CurrentRun
    from tui_trainer.ui.workbench import OPENING

    bench.background.finish(OPENING, _OPENING_SECONDS)
    if isinstance(bench.opened_run, InputError):
        raise bench.opened_run
    if bench.opened_run is not None:
        bench.local_run = CurrentRun(bench.opened_run)
        bench.local_run.start()


def _wait_for(run: CurrentRun, signals: Signals, *, wants_stop: bool, has_lines: bool) -> None:
    """Wait until the run has ended, and print how. `wants_stop` stops the run first; `has_lines` prints its journal."""
    from tui_trainer.lines.journal_printer import Follower

    is_asked, follower = False, None
    if has_lines:
        print_to_stderr(f"{run.folder.name} continues: you may close this terminal; Ctrl+C saves and stops the run")
        follower = Follower(run.folder)
        follower.start()
    while run.alive:
        if (wants_stop or signals.is_stop_requested) and not is_asked:
            is_asked = True
            run.ask("stop")
            print_to_stderr(f"saving and stopping {run.folder.name}; press Ctrl+C twice to quit at once")
        run.wait(_WAIT_SECONDS)
    if follower is not None:
        follower.end(lambda: signals.is_stop_requested)
    _tell_end(run, has_lines=has_lines)


def _tell_end(run: CurrentRun, *, has_lines: bool = False) -> None:
    """Print the last lines of a run, unless `has_lines` says that they have been printed, and its problems."""
    from tui_trainer.lines.journal_printer import ending

    run.poll()
    if not has_lines:
        with suppress(OSError, ValueError):
            print("\n".join(ending(run.folder, run.state)), flush=True)
    if run.outcome is not None:
        for problem in run.outcome.problems:
            print_to_stderr(str(problem))
        if run.outcome.failure:
            print_to_stderr(run.outcome.failure)


def _tell_crash(report: str, logs: Path) -> None:
    path = logs / f"crash-{os.getpid()}.txt"
    report_note = f"a crash report is in {path}"
    try:
        path.write_text(report, encoding="utf-8", errors="replace")
    except OSError:
        report_note = "the crash report could not be written"
    print_to_stderr(f"the screens failed: {report.strip().splitlines()[-1]}; {report_note}")
