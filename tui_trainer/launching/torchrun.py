"""Groups of processes that train one model together, started and watched by torchrun (torch's elastic agent).

Each process of a group is `launching/rank_process.py`, and rank 0 writes the journal. The processes end with their
starter: all hold one end of a socket pair, and exit when nobody holds the other end. Rank 0 also sends through the
socket what it cannot write to a file, for example on a full disk. Each process locks its log until it ends, and the
next group waits for these locks."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import IO, Any, Final, Literal
from uuid import uuid4

import psutil
from pydantic import TypeAdapter

from tui_trainer import errors
from tui_trainer.data.progress import Progress
from tui_trainer.launching.prepare import planned_data, read_plan
from tui_trainer.models import unsloth
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder, open_log, read_fields, write_atomically
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import LockOwner, read_lock_owner
from tui_trainer.runs.slurm import Allocation
from tui_trainer.runs.state import read_run
from tui_trainer.tasks.contract import Baselines
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.job import Job, Result
from tui_trainer.units import format_seconds, quantity
from tui_trainer.worker.child import Child, exit_words, json_object

# Nodes of a run meet in its folder: the first node writes `logs/ranks.json`, and node K reports in `logs/node-K.json`.
# torchrun starts when all nodes have joined, so that an error can name a missing node.

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.5
# The report of a node that failed arrives a little later than the failures that it causes on other nodes.
_REPORT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Input that the processes of a group need in addition to the plan, written to the run folder."""

    checkpoint: CheckpointFolder | None
    last_earlier_id: int
    baselines: Baselines | None
    rendezvous: str = ""
    """HOST:PORT of the first node; empty for a run on one node."""
    attempt: str = ""
    starter: str = ""
    """Process that wrote the assignment, to recognise an assignment that an earlier start left behind."""

    @staticmethod
    def path(folder: RunFolder) -> Path:
        return folder.logs / "ranks.json"

    @classmethod
    def of(cls, folder: RunFolder, plan: Plan, **fields: Any) -> Assignment:
        """Return a new assignment. Raises ConfigError if the port is in use, and RunError if Slurm names no nodes."""
        if plan.nodes == 1:
            return cls(**fields)
        starter = _owner_name(read_lock_owner(folder.lock))
        return cls(rendezvous=_address(plan), attempt=uuid4().hex, starter=starter, **fields)

    @classmethod
    def read(cls, folder: RunFolder) -> Assignment | None:
        """Return the assignment in the run folder; None if it is missing or incomplete."""
        with suppress(OSError, ValueError):
            return TypeAdapter(cls).validate_json(cls.path(folder).read_bytes())
        return None

    @classmethod
    def current(cls, folder: RunFolder) -> Assignment | None:
        """Return the assignment of the run's present owner; None if it has not written one, or without an owner."""
        assignment, holder = cls.read(folder), read_lock_owner(folder.lock)
        return assignment if assignment and holder and assignment.starter == _owner_name(holder) else None

    def write(self, folder: RunFolder) -> None:
        write_atomically(self.path(folder), json.dumps(asdict(self), default=str).encode(), durable=False)


def join_command(folder: RunFolder, node_rank: int | Literal["K"]) -> str:
    """Return the command that joins the run from another node."""
    return shlex.join(["tui-trainer", "join", str(folder.root), "--node-rank", str(node_rank)])


def report_node(folder: RunFolder, node_rank: int, attempt: str, **report: Any) -> None:
    """Write the report of a node: that it joined, why it cannot (`problem`), or which process ended how (`ended`)."""
    content = {"attempt": attempt, "host": socket.gethostname(), "pid": os.getpid(), **report}
    write_atomically(_node_path(folder, node_rank), json.dumps(content).encode(), durable=False)


def wait_for_nodes(folder: RunFolder, plan: Plan, attempt: str, progress: Progress) -> None:
    """Wait until all nodes have joined. Raises RunError if a node does not join, and any exception of `progress`."""
    deadline, reported_at = monotonic() + WAIT_SECONDS, float("-inf")
    while missing_ranks := [rank for rank in range(1, plan.nodes) if not _has_joined(folder, rank, attempt)]:
        if monotonic() > deadline:
            message = f"node {missing_ranks[0]} of {plan.nodes} (counted from 0) did not join within "
            message += f"{format_seconds(WAIT_SECONDS)}: start `{join_command(folder, missing_ranks[0])}` there"
            raise errors.RunError(message)
        if monotonic() - reported_at > 10 * POLL_SECONDS:
            reported_at = monotonic()
            progress("waiting for the other nodes", plan.nodes - len(missing_ranks), plan.nodes, "nodes")
        sleep(POLL_SECONDS)


def failure_on_other_node(folder: RunFolder, plan: Plan, attempt: str) -> dict[str, Any]:
    """Return the report of a process on another node that was killed, or of a torchrun that failed, else {}."""
    deadline = monotonic() + (_REPORT_SECONDS if plan.nodes > 1 else 0)
    while monotonic() < deadline:
        reports = [_node_report(folder, rank, attempt).get("ended") for rank in range(1, plan.nodes)]
        for report in filter(None, reports):
            if report.get("exit_code", 0) < 0 or report.get("rank") is None:
                return dict(report)
        if all(reports):
            break
        sleep(POLL_SECONDS / 5)
    return {}


def _has_joined(folder: RunFolder, node_rank: int, attempt: str) -> bool:
    report = _node_report(folder, node_rank, attempt)
    if "problem" in report:
        raise errors.RunError(f"node {node_rank} ({report.get('host')}) cannot join: {report['problem']}")
    return bool(report)


def _node_report(folder: RunFolder, node_rank: int, attempt: str) -> dict[str, Any]:
    """Return the report that a node wrote for this attempt; {} if there is none."""
    report = read_fields(_node_path(folder, node_rank))
    return report if report.get("attempt") == attempt else {}


def _node_path(folder: RunFolder, node_rank: int) -> Path:
    return folder.logs / f"node-{node_rank}.json"


def _owner_name(holder: LockOwner | None) -> str:
    return f"{holder.host} {holder.pid} {holder.at}" if holder else ""


def _address(plan: Plan) -> str:
    """Return HOST:PORT of this node for the rendezvous. Raises ConfigError if the port that the user set is in use."""
    host, _, port = plan.config.distributed.rendezvous.partition(":")
    if not host:
        allocation = Allocation.of_this_process()
        host = allocation.first_host() if allocation and allocation.node_count > 1 else socket.gethostname()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(port or 0)))
        except OSError as error:
            message = f"port {port} of this node cannot be used: {errors.system_reason(error)}"
            hint = "set another port, or leave the port out to use a free one"
            raise errors.ConfigError(errors.Problem(message=message, key="distributed.rendezvous", hint=hint)) from None
        return f"{host}:{listener.getsockname()[1]}"


AGENT, RANK = "tui_trainer.launching.torchrun_agent", "tui_trainer.launching.rank_process"
# Times until torchrun is killed, until its processes are killed, and until a surviving process is no longer awaited.
AGENT_SECONDS: Final = 4.0
LEAVE_SECONDS: Final = 3.0
KILLED_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_READ_SECONDS: Final = 0.2
_SHOWN_LINES: Final = 3
STOP: Final = b"s"
"""Byte in the shared socket that requests a stop. The processes peek at it, so that all of them see it."""


class RankEnded(errors.RunError):
    """Raised if a process ended before the run did. The other processes have ended too; the group can be restarted."""


def result_path(folder: RunFolder, rank: int) -> Path:
    """Return the path of the JSON file with the result of a process."""
    return folder.logs / f"rank-{rank}.json"


def log_path(folder: RunFolder, rank: int) -> Path:
    """Return the path of the log with the output of a process, including its traceback."""
    return folder.logs / f"rank-{rank}.txt"


def _agent_log(folder: RunFolder, node_rank: int) -> Path:
    return folder.logs / (f"node-{node_rank}.txt" if node_rank else "torchrun.txt")


def torchrun_arguments(folder: RunFolder, plan: Plan, node_rank: int = 0, rendezvous: str = "") -> list[str]:
    """Return the arguments of torchrun on a node. Node 0, which has the run's lock and journal, has the first ranks."""
    options = ["--standalone"]
    if plan.nodes > 1:
        host, _, port = rendezvous.rpartition(":")
        options = [f"--nnodes={plan.nodes}", f"--node-rank={node_rank}"]
        options += [f"--master-addr={host}", f"--master-port={port}"]
    module = unsloth.module_arguments(plan.config, RANK)
    return [*options, f"--nproc-per-node={plan.processes_per_node}", "-m", *module, str(folder.root)]


def command_words(plan: Plan, folder: RunFolder) -> str:
    """Return the torchrun command as a user would type it; empty for a run of one process without Unsloth."""
    if plan.nodes > 1:
        local_text = f"{plan.processes_per_node} {'process' if plan.processes_per_node == 1 else 'processes'} here"
        if plan.nodes == 2:
            return f"{local_text}; on node 1, run `{join_command(folder, 1)}`"
        return f"{local_text}; on each node K from 1 to {plan.nodes - 1}, run `{join_command(folder, 'K')}`"
    if unsloth.is_asked(plan.config):
        assignments = [f"{name}={value}" for name, value in unsloth.python_variables(plan.config).items()]
        torchrun_command = [unsloth.python_path(plan.config), "-m", "torch.distributed.run"]
        return shlex.join([*assignments, *torchrun_command, *torchrun_arguments(folder, plan)])
    if not plan.is_group:
        return ""
    return shlex.join(["torchrun", *torchrun_arguments(folder, plan)])


def uses_other_processes(plan: Plan) -> bool:
    """Return whether the run trains in separate processes and not in this one."""
    return plan.is_group or unsloth.is_asked(plan.config)


def train_in_group(
    job: Job, controls: Controls, progress: Progress, report_failing: Callable[[str | None], None]
) -> Result:
    """Train in all processes of the plan until the run ends, and return the result.

    `report_failing` gets the reason why rank 0 cannot write the journal, and None once it can again. Raises RankEnded,
    GroupOutOfMemory, RunError, InputError."""
    folder, plan = job.folder, job.plan
    for rank in range(plan.processes.value):
        result_path(folder, rank).unlink(missing_ok=True)
    fields = {"checkpoint": job.checkpoint, "baselines": job.baselines}
    assignment = Assignment.of(folder, plan, last_earlier_id=controls.last_earlier_id, **fields)
    assignment.write(folder)
    wait_for_nodes(folder, plan, assignment.attempt, progress)
    messages = GroupMessages(report_failing)
    _train_here(folder, plan, assignment, messages, lambda: controls.is_stopped_here)
    if messages.failed_process.get("exit_code", 0) > 0:
        messages.failed_process = failure_on_other_node(folder, plan, assignment.attempt) or messages.failed_process
    return _result(folder, plan.processes.value, messages)


def _start_agent(folder: RunFolder, plan: Plan, log: IO[bytes], node_rank: int = 0, rendezvous: str = "") -> Child:
    # PYTHONSAFEPATH keeps Python from importing a torch.py of the current folder.
    variables = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(plan.threads.value)}
    variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    environment = os.environ | unsloth.python_variables(plan.config) | variables
    if plan.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [unsloth.python_path(plan.config), "-m", AGENT, *torchrun_arguments(folder, plan, node_rank, rendezvous)]
    # Ctrl+C in the terminal reaches only this process, which requests a checkpoint first.
    return Child(command, environment, is_asked=True, errors=log)


@dataclass(slots=True)
class GroupMessages:
    """Messages that the processes of a group sent through the socket or standard output rather than in files."""

    report_failing: Callable[[str | None], None] = lambda reason: None
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Results by rank, from processes that could not write their result file."""
    failed_process: dict[str, Any] = field(default_factory=dict)
    """Rank and exit code of the process that failed; {} if none did. There is no rank if torchrun itself failed."""

    def read_line(self, line: bytes) -> None:
        match json_object(line):
            case {"failing": str() | None as reason}:
                self.report_failing(reason)
            case {"rank": int(rank), "result": dict(result)}:
                self.results[rank] = result
            case {"rank": int(rank), "exit_code": int(exit_code)}:
                self.failed_process = {"rank": rank, "exit_code": exit_code}


def send_message(**words: Any) -> None:
    """Send a message from a process of the group to its starter, through the socket that is its standard input."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(0).st_mode):
            os.write(0, f"{json.dumps(words)}\n".encode())


def send_failure_reason(reason: str | None) -> None:
    """Report to the starter why rank 0 cannot write the journal, or None once it can again."""
    send_message(failing=reason and one_line(reason, 200))


def _train_here(
    folder: RunFolder,
    plan: Plan,
    assignment: Assignment,
    messages: GroupMessages,
    wants_stop: Callable[[], bool],
    node_rank: int = 0,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Start the processes of this node, and wait until they have ended.

    Once the run `is_over` on the first node, terminate them, because they would wait minutes for that node."""
    has_sent_stop = is_terminated = has_ended = False
    checked_at = 0.0
    with open_log(_agent_log(folder, node_rank)) as log:
        agent = _start_agent(folder, plan, log, node_rank, assignment.rendezvous)
    try:
        while not has_ended:
            # The exit status is read before the output, so that no line before the end is missed.
            has_ended = agent.exit_code is not None
            if not has_sent_stop and wants_stop():
                has_sent_stop = True
                agent.write(STOP)
            if not is_terminated and monotonic() - checked_at >= POLL_SECONDS:
                checked_at = monotonic()
                if is_over():
                    is_terminated = True
                    agent.process.terminate()
            lines = agent.read_lines(0.0 if has_ended else _READ_SECONDS)
            for line in lines or ():
                messages.read_line(line)
            if lines is None:
                has_ended = agent.process.wait() is not None
    finally:
        # Processes without an agent exit now.
        agent.stop_reading()
        if agent.exit_code is None:
            agent.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                agent.process.wait(AGENT_SECONDS)
            agent.process.kill()
    if agent.exit_code and not messages.failed_process:
        messages.failed_process = {"rank": None, "exit_code": agent.exit_code}
    first_rank = node_rank * plan.processes_per_node
    _wait_for_ends(folder, range(first_rank, first_rank + plan.processes_per_node))


def hold_log(folder: RunFolder, rank: int) -> None:
    """Send all output of this process of the group to its log, and lock the log until the process ends.

    The file descriptors themselves are redirected, because C++ libraries print too."""
    with open_log(log_path(folder, rank)) as log:
        # Some file systems of clusters have no locks.
        with suppress(OSError):
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    with suppress(OSError):
        write_atomically(result_path(folder, rank), json.dumps({"pid": os.getpid()}).encode(), durable=False)


def _wait_for_ends(folder: RunFolder, ranks: range) -> None:
    """Wait until the processes of a group have ended, and kill those that do not.

    Processes whose agent was killed exit by themselves, but may be in the middle of a write."""
    deadline = monotonic() + LEAVE_SECONDS
    for rank in ranks:
        with suppress(FileNotFoundError), log_path(folder, rank).open("r+b") as log:
            # The wait is limited: even a kill does not end a process that waits for a disk.
            while _is_held(log) and (now := monotonic()) < deadline + KILLED_SECONDS:
                if now > deadline and (pid := read_fields(result_path(folder, rank)).get("pid")):
                    # Kill the process only if it still belongs to a group, because the system reuses pids.
                    with suppress(psutil.Error):
                        if RANK in (process := psutil.Process(pid)).cmdline():
                            process.kill()
                sleep(_POLL_SECONDS)


def _is_held(log: IO[bytes]) -> bool:
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _result(folder: RunFolder, count: int, messages: GroupMessages) -> Result:
    """Return the result of rank 0, or raise the error that ended the group."""
    end_report = messages.failed_process
    reports = [messages.results.get(rank) or read_fields(result_path(folder, rank)) for rank in range(count)]
    was_killed = end_report.get("exit_code", 0) < 0
    # If a process was killed, the processes that waited for it fail as a consequence.
    for report in [] if was_killed else reports:
        match report.get("kind"):
            case "input":
                raise errors.ConfigError(errors.Problem(**problem) for problem in report["problems"])
            case "out of memory":
                raise errors.GroupOutOfMemory(report["message"])
            case "run":
                raise errors.RunError(report["message"])
    if not end_report and reports[0].get("kind") == "done":
        del reports[0]["kind"]
        return Result(**reports[0])
    raise RankEnded(_end_words(folder, end_report))


def _end_words(folder: RunFolder, ended: dict[str, Any]) -> str:
    """Return as text why the group ended, with the last lines of the log."""
    rank, exit_code = ended.get("rank"), ended.get("exit_code", 0)
    if rank is None:
        node_text = f" on node {node}" if (node := ended.get("node")) else ""
        log_file = _agent_log(folder, ended.get("node", 0))
        return f"torchrun ended{node_text} ({exit_words(exit_code)}); its log is {log_file}"
    log_file = log_path(folder, rank)
    with suppress(OSError):
        lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        last_lines = " / ".join(one_line(line, 160) for line in lines[-_SHOWN_LINES:])
        if last_lines and exit_code > 0:
            return f"process {rank} ended ({exit_words(exit_code)}): {last_lines}; its log is {log_file}"
    kill_hint = "; the system kills the largest process when memory runs out" if exit_code == -signal.SIGKILL else ""
    return f"process {rank} ended ({exit_words(exit_code)}){kill_hint}; its log is {log_file}"


def join(folder: RunFolder, node_rank: int, progress: Progress, stop: Event) -> int:
    """Take part in a run as a node other than the first, until the run ends. Return the exit code of the command.

    The processes of this node are started whenever the first node starts a group. Set `stop` to stop the run from this
    node. Raises RunError if the first node does not begin or respond, and InputError if this node cannot take part."""
    last_attempt, old_journal_bytes, changed_at = "", -1, monotonic()
    while True:
        assignment, journal_bytes = Assignment.current(folder), 0
        with suppress(OSError):
            journal_bytes = folder.journal.stat().st_size
        if assignment is not None and assignment.attempt not in ("", last_attempt):
            last_attempt = assignment.attempt
            _join_attempt(folder, node_rank, assignment, progress, stop)
            changed_at = monotonic()
        elif read_lock_owner(folder.lock) is None and last_attempt:
            state = read_run(folder)
            if state.finished is None:
                return errors.EXIT_FAILED
            return errors.EXIT_STOPPED if state.status == "stopped" else errors.EXIT_DONE
        elif journal_bytes != old_journal_bytes:
            # The first node writes gauges every few seconds, so a journal that grows shows that it is alive.
            old_journal_bytes, changed_at = journal_bytes, monotonic()
        elif monotonic() - changed_at > WAIT_SECONDS:
            waited_text = format_seconds(WAIT_SECONDS)
            problem = "no longer responds" if last_attempt else "has not started the run"
            raise errors.RunError(f"the first node {problem}: node {node_rank} has waited for {waited_text}")
        sleep(POLL_SECONDS)


def _join_attempt(folder: RunFolder, node_rank: int, assignment: Assignment, progress: Progress, stop: Event) -> None:
    attempt = assignment.attempt
    try:
        plan = read_plan(folder)
        if plan is None or not 0 < node_rank < plan.nodes:
            count_text = f"this run has {quantity(plan.nodes if plan else 1, 'node')}"
            raise errors.InputError(f"there is no node {node_rank}: nodes are counted from 0, and {count_text}")
        # Each node may have its own disk for prepared data. A node whose data differs is refused.
        with JournalWriter(folder.logs / f"node-{node_rank}.jsonl") as journal:
            planned_data(plan, journal, progress)
    except (errors.InputError, errors.RunError) as error:
        report_node(folder, node_rank, attempt, problem=str(error))
        raise
    report_node(folder, node_rank, attempt)

    def is_over() -> bool:
        current = Assignment.current(folder)
        return current is None or current.attempt != attempt

    messages = GroupMessages()
    _train_here(folder, plan, assignment, messages, stop.is_set, node_rank, is_over)
    ended = {**messages.failed_process, "node": node_rank} if messages.failed_process else {}
    report_node(folder, node_rank, attempt, ended=ended)
