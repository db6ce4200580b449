"""A node of a run that another node carries out: it starts its processes whenever the first one asks for them."""

from threading import Event
from time import monotonic, sleep

from tui_trainer.data.progress import Progress
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, InputError, RunError
from tui_trainer.launching import rendezvous
from tui_trainer.launching.prepare import planned_data, read_plan
from tui_trainer.launching.rendezvous import Assignment, tell_of_node
from tui_trainer.launching.torchrun import take_part
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter, read_all
from tui_trainer.runs.lock import owner
from tui_trainer.runs.state import fold
from tui_trainer.units import format_seconds


def join(folder: RunFolder, node_rank: int, progress: Progress, stop: Event) -> int:
    """Take part in a run from its next group of processes to its end; the exit code of the run. `stop`: it is asked to
    stop by this node. Raises RunError where the first node does not begin, or says nothing any more; InputError for
    what is wrong here.
    """
    done, heard, heard_at = "", -1, monotonic()
    while True:
        assignment, written = Assignment.current(folder), _size(folder)
        if assignment is not None and assignment.attempt not in ("", done):
            done = assignment.attempt
            _take_part(folder, node_rank, assignment, progress, stop)
            heard_at = monotonic()
        elif owner(folder.lock) is None and done:
            return _exit_code(folder)
        elif written != heard:
            # The first node writes what it does, and every few seconds what the machine does.
            heard, heard_at = written, monotonic()
        elif monotonic() - heard_at > rendezvous.WAIT_SECONDS:
            waited = format_seconds(rendezvous.WAIT_SECONDS)
            what = "says nothing any more" if done else "has not begun with the run"
            raise RunError(f"the first node {what}: node {node_rank} has waited for {waited}")
        sleep(rendezvous.POLL_SECONDS)


def _take_part(folder: RunFolder, node_rank: int, assignment: Assignment, progress: Progress, stop: Event) -> None:
    attempt = assignment.attempt
    try:
        plan = read_plan(folder)
        if plan is None or not 0 < node_rank < plan.nodes:
            raise InputError(f"there is no node {node_rank} of {plan.nodes if plan else 1}, counted from 0")
        # The prepared data may lie on a disk of each node; it is the same, or the run is refused.
        with JournalWriter(folder.logs / f"node-{node_rank}.jsonl") as journal:
            planned_data(plan, journal, progress)
    except (InputError, RunError) as error:
        tell_of_node(folder, node_rank, attempt, problem=str(error))
        raise
    tell_of_node(folder, node_rank, attempt)

    def is_over() -> bool:
        now = Assignment.current(folder)
        return now is None or now.attempt != attempt

    ended = take_part(folder, plan, node_rank, assignment.rendezvous, is_over, stop.is_set)
    tell_of_node(folder, node_rank, attempt, ended={**ended, "node": node_rank} if ended else {})


def _exit_code(folder: RunFolder) -> int:
    state = fold(read_all(folder.journal))
    if state.finished is None:
        return EXIT_FAILED
    return EXIT_STOPPED if state.status == "stopped" else EXIT_DONE


def _size(folder: RunFolder) -> int:
    try:
        return folder.journal.stat().st_size
    except OSError:
        return 0
