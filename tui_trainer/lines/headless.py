"""A run without a screen.

The run goes on when nobody listens: a hang-up, a closed output and a reader that stalls are survived. SIGTERM and
Ctrl+C ask it to stop, whatever output and disk do, and it saves first; a second Ctrl+C leaves at once. So does SIGUSR1,
which Slurm sends before the time limit: a job that goes on with a run is then queued again.
"""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep
from types import FrameType

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, FolderError, RunError
from tui_trainer.launching.carry_out import RunThread
from tui_trainer.launching.open_run import OpenRun
from tui_trainer.launching.torchrun import join
from tui_trainer.lines.journal_printer import Follower
from tui_trainer.runs import controls, slurm
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import is_under_way
from tui_trainer.runs.state import read_run
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.terminal.standard_files import Interrupts, patient, show_progress, tell
from tui_trainer.training.checkpoint_folder import steps_saved

_POLL_SECONDS = 0.2


def follow(run: OpenRun, *, as_json: bool, greeting: Sequence[str] = ()) -> int:
    """Carry out a run in a thread and print its journal in another until it ends. Returns the exit code."""
    thread, told_reasons = RunThread(run), set[str]()
    with _Signals(thread.stop) as signals:
        printing = Follower(run.folder, as_json=as_json, greeting=greeting)
        allocation, saved_before = slurm.Allocation.here(), steps_saved(run.folder.checkpoints)
        if allocation:
            slurm.remember_job(run.folder, allocation.job)
        with patient("stdout"):
            thread.start()
            printing.start()
            while thread.alive:
                thread.join(_POLL_SECONDS)
                signals.pass_on(printing.note)
                if (reason := run.journal.failing) and reason not in told_reasons:
                    words = f"could not write the journal ({reason}): training continues, but its progress is not shown"
                    printing.note(words)
                    told_reasons.add(reason)
            is_read = printing.end(lambda: signals.stop_wanted)
        outcome = thread.outcome
        assert outcome is not None, "a run that ended has an outcome"
        if not is_read:
            _tell_unread(run.folder)
        for problem in outcome.problems:
            tell(str(problem))
        if outcome.failure:
            tell(outcome.failure)
    if allocation and signals.limit_is_near and outcome.exit_code == EXIT_STOPPED and not run.is_new:
        newer = set(steps_saved(run.folder.checkpoints)) - set(saved_before)
        _queue_again(allocation, max(newer, default=0))
    return outcome.exit_code


def _tell_unread(folder: RunFolder) -> None:
    tell(f"standard output was not read to the end: the missing lines are in {folder.journal}")


def _queue_again(allocation: slurm.Allocation, step: int) -> None:
    """Not without a newer checkpoint: a job that does not come so far would be queued again for ever."""
    if not step:
        words = "reached its time limit before it saved a new checkpoint: submit it with a longer --time"
        tell(f"job {allocation.job} {words}")
        return
    # Said before: Slurm ends this process once it has queued the job.
    tell(f"job {allocation.job} is near its time limit: the run is saved at step {step}, and the job is queued again")
    try:
        slurm.requeue(allocation.job)
    except RunError as error:
        tell(str(error))


def join_run(folder: RunFolder, node_rank: int) -> int:
    """Take part as another node of a run that goes on elsewhere. Returns the exit code of the run."""
    stop = Event()

    def ask() -> None:
        try:
            controls.request(folder.control, "stop")
        except FolderError:
            # Its processes tell those of the first node.
            stop.set()

    tell(f"the logs of node {node_rank} of the run {folder.name} are in {folder.logs}")
    with _Signals(ask) as signals, ThreadPoolExecutor(1) as pool:
        # The first node hears of the time limit as well.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        working = pool.submit(join, folder, node_rank, show_progress, stop)
        while not working.done():
            sleep(_POLL_SECONDS)
            signals.pass_on(tell)
    return working.result()


def watch(folder: RunFolder, *, as_json: bool) -> int:
    """Print the journal of a run that another process carries out, until it ends or Ctrl+C is pressed, which stops
    only the watching. Returns the exit code of the run; 0 when it goes on.
    """
    printing, job, told, is_over = Follower(folder, as_json=as_json), slurm.WatchedJob(folder), "", False
    try:
        # Who reads a line may press Ctrl+C at once.
        printing.start()
        while is_under_way(folder.lock, job):
            if job.words != told and (told := job.words):
                printing.note(told)
            sleep(_POLL_SECONDS)
        is_over = True
        is_read = printing.end(lambda: False)
    except KeyboardInterrupt:
        if not is_over:
            printing.note(f"{folder.name} continues; `tui-trainer stop {shell_word(folder.name)}` saves and stops it")
        is_read = printing.end(lambda: True, has_ending=False)
        if not is_over:
            return EXIT_DONE
    if not is_read:
        _tell_unread(folder)
    # What is printed may lag behind.
    state = printing.state if is_read else read_run(folder)
    if state.finished is None:
        unknown = "the process of the run has ended for an unknown reason"
        ended = one_line(state.failed.message) if state.failed else job.words or unknown
        tell(f"{folder.name}: {ended}; resume the run with `tui-trainer resume {shell_word(folder.name)}`")
        return EXIT_FAILED
    return EXIT_STOPPED if state.status == "stopped" else EXIT_DONE


class _Signals:
    """Handlers that only note what came; `pass_on` acts on it, in a loop that waits for no reader. They belong to the
    main thread.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._interrupts = Interrupts()
        self.stop_wanted = False
        self._stop_asked = False
        self.limit_is_near = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def pass_on(self, note: Callable[[str], None]) -> None:
        if self.stop_wanted and not self._stop_asked:
            self._stop_asked = True
            self._ask()
            note("stopping at the next step and saving; press Ctrl+C again to quit at once")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.stop_wanted = True
        self.limit_is_near |= number == signal.SIGUSR1
        if number == signal.SIGINT:
            self._interrupts.note()
