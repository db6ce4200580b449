"""Runs without screens, and watching a run that another process executes.

The run continues after a hang-up, a closed output, or a reader that stalls. SIGTERM and Ctrl+C stop it after saving,
whatever the state of output and disk. A second Ctrl+C quits at once. Slurm sends SIGUSR1 before the time limit; the run
then saves and stops too, and a job that resumed a run is queued again."""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep
from types import FrameType

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FolderError, RunError
from tui_trainer.launching.open_run import OpenRun
from tui_trainer.launching.run_lifecycle import RunThread
from tui_trainer.launching.torchrun import join
from tui_trainer.lines.journal_printer import Follower
from tui_trainer.runs import controls, slurm
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import is_under_way
from tui_trainer.runs.state import read_run
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.terminal.standard_files import Interrupts, never_blocking_stream, print_to_stderr, show_progress
from tui_trainer.training.checkpoint_folder import steps_saved

_POLL_SECONDS = 0.2


def execute_and_print(run: OpenRun, *, as_json: bool, greeting: Sequence[str] = ()) -> int:
    """Execute a run in a thread, and print its journal in another thread until it ends. Return the exit code."""
    thread, reported_reasons = RunThread(run), set[str]()
    with _Signals(thread.stop) as signals:
        follower = Follower(run.folder, as_json=as_json, greeting=greeting)
        allocation, steps_before = slurm.Allocation.of_this_process(), steps_saved(run.folder.checkpoints)
        if allocation:
            slurm.remember_job(run.folder, allocation.job)
        with never_blocking_stream("stdout"):
            thread.start()
            follower.start()
            while thread.alive:
                thread.join(_POLL_SECONDS)
                signals.pass_on(follower.note)
                if (reason := run.journal.failure_reason) and reason not in reported_reasons:
                    effect_text = "training continues, but its progress is not shown"
                    follower.note(f"could not write the journal ({reason}): {effect_text}")
                    reported_reasons.add(reason)
            is_read = follower.end(lambda: signals.stop_wanted)
        outcome = thread.outcome
        assert outcome is not None, "a run that ended has an outcome"
        if not is_read:
            _report_unread(run.folder)
        for problem in outcome.problems:
            print_to_stderr(str(problem))
        if outcome.failure:
            print_to_stderr(outcome.failure)
    if allocation and signals.limit_is_near and outcome.exit_code == EXIT_STOPPED and not run.is_new:
        new_steps = set(steps_saved(run.folder.checkpoints)) - set(steps_before)
        _queue_again(allocation, max(new_steps, default=0))
    return outcome.exit_code


def _report_unread(folder: RunFolder) -> None:
    print_to_stderr(f"standard output was not read to the end: the missing lines are in {folder.journal}")


def _queue_again(allocation: slurm.Allocation, step: int) -> None:
    if not step:
        # Without a new checkpoint, the job would make no progress and be queued again forever.
        message = "reached its time limit before it saved a new checkpoint: submit the run again with a longer --time"
        print_to_stderr(f"job {allocation.job} {message}")
        return
    # Printed before the requeue, because Slurm then ends this process.
    saved_text = f"the run is saved at step {step}, and the job is queued again"
    print_to_stderr(f"job {allocation.job} is near its time limit: {saved_text}")
    try:
        slurm.requeue(allocation.job)
    except RunError as error:
        print_to_stderr(str(error))


def join_run(folder: RunFolder, node_rank: int) -> int:
    """Join a run on a node other than the first. Return the exit code of the run."""
    stop = Event()

    def request_stop() -> None:
        try:
            controls.request(folder.control, "stop")
        except FolderError:
            # The processes of this node forward the stop to the first node.
            stop.set()

    print_to_stderr(f"the logs of node {node_rank} of the run {folder.name} are in {folder.logs}")
    with _Signals(request_stop) as signals, ThreadPoolExecutor(1) as pool:
        # The first node gets this signal too, and it stops the run.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        join_future = pool.submit(join, folder, node_rank, show_progress, stop)
        while not join_future.done():
            sleep(_POLL_SECONDS)
            signals.pass_on(print_to_stderr)
    return join_future.result()


def watch(folder: RunFolder, *, as_json: bool) -> int:
    """Print the journal of a run that another process executes, until the run ends or the user presses Ctrl+C.

    Ctrl+C does not stop the run. Return the exit code of the run, or 0 if the run continues."""
    follower, job, reported_words, is_over = Follower(folder, as_json=as_json), slurm.WatchedJob(folder), "", False
    try:
        # A user may press Ctrl+C as soon as the first line appears.
        follower.start()
        while is_under_way(folder.lock, job):
            if job.words != reported_words and (reported_words := job.words):
                follower.note(reported_words)
            sleep(_POLL_SECONDS)
        is_over = True
        is_read = follower.end(lambda: False)
    except KeyboardInterrupt:
        if not is_over:
            follower.note(f"{folder.name} continues; `tui-trainer stop {shell_word(folder.name)}` saves and stops it")
        is_read = follower.end(lambda: True, has_ending=False)
        if not is_over:
            return EXIT_DONE
    if not is_read:
        _report_unread(folder)
    # If the follower could not print everything, its state is older than the journal.
    state = follower.state if is_read else read_run(folder)
    if state.finished is None:
        unknown_reason = "the process of the run has ended for an unknown reason"
        reason = one_line(state.failed.message) if state.failed else job.words or unknown_reason
        print_to_stderr(f"{folder.name}: {reason}; resume the run with `tui-trainer resume {shell_word(folder.name)}`")
        return EXIT_FAILED
    return EXIT_STOPPED if state.status == "stopped" else EXIT_DONE


class _Signals:
    """Signal handlers that only record a signal. The main loop calls `pass_on`, which then requests the stop."""

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self._request_stop = request_stop
        self._interrupts = Interrupts()
        self.stop_wanted = False
        self._is_stop_requested = False
        self.limit_is_near = False
        self._former_handlers: dict[int, object] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._former_handlers[number] = signal.signal(number, self._record)
        self._former_handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def pass_on(self, note: Callable[[str], None]) -> None:
        if self.stop_wanted and not self._is_stop_requested:
            self._is_stop_requested = True
            self._request_stop()
            note("stopping at the next step and saving; press Ctrl+C again to quit at once")

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self.stop_wanted = True
        self.limit_is_near |= number == signal.SIGUSR1
        if number == signal.SIGINT:
            self._interrupts.note()
