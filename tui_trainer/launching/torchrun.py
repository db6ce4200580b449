"""Processes that train one model together, started and watched by torchrun (torch's elastic agent).

Each is `launching/rank_process.py`; the first of them writes the journal. They end with this process: all hold one end
of a pair of sockets, and leave when nobody holds the other; the first one tells through it what no file can, as a full
disk. Each holds a lock on its log as long as it lives: the
next group does not begin beside one that is still there.
"""

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

from tui_trainer.data.progress import Progress
from tui_trainer.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    ConfigError,
    GroupOutOfMemory,
    InputError,
    Problem,
    RunError,
    system_reason,
)
from tui_trainer.launching.prepare import planned_data, read_plan
from tui_trainer.models import unsloth
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder, open_log, read_fields, write_atomically
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import LockOwner, owner
from tui_trainer.runs.slurm import Allocation
from tui_trainer.runs.state import read_run
from tui_trainer.tasks.contract import Baselines
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.job import Job, Result
from tui_trainer.units import format_seconds
from tui_trainer.worker.child import Child, exit_words, json_object

# Where the nodes of a run meet: the address that they connect to, and which of them have come.
#
# All goes through the folder of the run, which every node sees: what the first one tells is in `logs/ranks.json`, what
# came of each other one in `logs/node-K.json`. torchrun is started where all have come, so that a node that is missing
# has its number.

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.5
# What a node tells of its end comes a little later than the failure of the others that it has caused.
_LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What the processes are told beside the plan."""

    checkpoint: CheckpointFolder | None
    asked_before: int
    baselines: Baselines | None
    rendezvous: str = ""
    """HOST:PORT of the first node; empty where there is one."""
    attempt: str = ""
    starter: str = ""
    """The owner of the run that has written this: what an earlier start has left is nobody's."""

    @staticmethod
    def path(folder: RunFolder) -> Path:
        return folder.logs / "ranks.json"

    @classmethod
    def of(cls, folder: RunFolder, plan: Plan, **told: Any) -> Assignment:
        """Raises ConfigError where the port that was asked for is in use, RunError where Slurm names no nodes."""
        if plan.nodes == 1:
            return cls(**told)
        return cls(rendezvous=_address(plan), attempt=uuid4().hex, starter=_name(owner(folder.lock)), **told)

    @classmethod
    def read(cls, folder: RunFolder) -> Assignment | None:
        """None where there is none, or not yet a whole one."""
        with suppress(OSError, ValueError):
            return TypeAdapter(cls).validate_json(cls.path(folder).read_bytes())
        return None

    @classmethod
    def current(cls, folder: RunFolder) -> Assignment | None:
        """Of the start that is under way; None before and after."""
        found, holder = cls.read(folder), owner(folder.lock)
        return found if found and holder and found.starter == _name(holder) else None

    def write(self, folder: RunFolder) -> None:
        write_atomically(self.path(folder), json.dumps(asdict(self), default=str).encode(), durable=False)


def join_command(folder: RunFolder, node_rank: int | Literal["K"]) -> str:
    """For another node than the first."""
    return shlex.join(["tui-trainer", "join", str(folder.root), "--node-rank", str(node_rank)])


def tell_of_node(folder: RunFolder, node_rank: int, attempt: str, **told: Any) -> None:
    """`problem`: why it cannot take part; `ended`: which of its processes has ended, and how."""
    content = {"attempt": attempt, "host": socket.gethostname(), "pid": os.getpid(), **told}
    write_atomically(_node_path(folder, node_rank), json.dumps(content).encode(), durable=False)


def wait_for_nodes(folder: RunFolder, plan: Plan, attempt: str, progress: Progress) -> None:
    """Until all have come. Raises RunError for one that does not come, or cannot take part; what `progress` raises."""
    until, told_at = monotonic() + WAIT_SECONDS, float("-inf")
    while missing := [rank for rank in range(1, plan.nodes) if not _has_come(folder, rank, attempt)]:
        if monotonic() > until:
            message = f"node {missing[0]} of {plan.nodes} (counted from 0) did not join within "
            message += f"{format_seconds(WAIT_SECONDS)}: start `{join_command(folder, missing[0])}` there"
            raise RunError(message)
        if monotonic() - told_at > 10 * POLL_SECONDS:
            told_at = monotonic()
            progress("waiting for the other nodes", plan.nodes - len(missing), plan.nodes, "nodes")
        sleep(POLL_SECONDS)


def ended_elsewhere(folder: RunFolder, plan: Plan, attempt: str) -> dict[str, Any]:
    """The process of another node that was killed or has failed by itself; {} where none is told of within seconds."""
    until = monotonic() + (_LAST_WORDS_SECONDS if plan.nodes > 1 else 0)
    while monotonic() < until:
        told = [_told(folder, rank, attempt).get("ended") for rank in range(1, plan.nodes)]
        if killed := [one for one in told if one and (one.get("exit_code", 0) < 0 or one.get("rank") is None)]:
            return dict(killed[0])
        if all(told):
            break
        sleep(POLL_SECONDS / 5)
    return {}


def _has_come(folder: RunFolder, node_rank: int, attempt: str) -> bool:
    told = _told(folder, node_rank, attempt)
    if "problem" in told:
        raise RunError(f"node {node_rank} ({told.get('host')}) cannot join: {told['problem']}")
    return bool(told)


def _told(folder: RunFolder, node_rank: int, attempt: str) -> dict[str, Any]:
    found = read_fields(_node_path(folder, node_rank))
    return found if found.get("attempt") == attempt else {}


def _node_path(folder: RunFolder, node_rank: int) -> Path:
    return folder.logs / f"node-{node_rank}.json"


def _name(holder: LockOwner | None) -> str:
    return f"{holder.host} {holder.pid} {holder.at}" if holder else ""


def _address(plan: Plan) -> str:
    host, _, port = plan.config.distributed.rendezvous.partition(":")
    if not host:
        here = Allocation.here()
        host = here.first_host() if here and here.nodes > 1 else socket.gethostname()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("", int(port or 0)))
        except OSError as error:
            message = f"port {port} of this node cannot be used: {system_reason(error)}"
            hint = "set another port, or leave the port out to use a free one"
            raise ConfigError(Problem(message=message, key="distributed.rendezvous", hint=hint)) from None
        return f"{host}:{free.getsockname()[1]}"


AGENT, RANK = "tui_trainer.launching.torchrun_agent", "tui_trainer.launching.rank_process"
# Until torchrun is killed, until its processes are, and until one that a kill does not end is given up.
AGENT_SECONDS: Final = 4.0
LEAVE_SECONDS: Final = 3.0
KILLED_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02
_HEARING_SECONDS: Final = 0.2
_SHOWN_LINES: Final = 3
STOP: Final = b"s"
"""Nobody takes it from the socket that all of them read: each sees it there."""


class RankEnded(RunError):
    """One of the processes has ended before the run has: the others were ended as well, and may begin anew."""


def result_path(folder: RunFolder, rank: int) -> Path:
    """What came of one of the processes, in JSON."""
    return folder.logs / f"rank-{rank}.json"


def log_path(folder: RunFolder, rank: int) -> Path:
    """What one of the processes has printed, and its traceback."""
    return folder.logs / f"rank-{rank}.txt"


def _agent_log(folder: RunFolder, node_rank: int) -> Path:
    return folder.logs / (f"node-{node_rank}.txt" if node_rank else "torchrun.txt")


def torchrun_arguments(folder: RunFolder, plan: Plan, node_rank: int = 0, rendezvous: str = "") -> list[str]:
    """Of several nodes the first has the first processes (a static rendezvous): its lock, and its journal."""
    where = ["--standalone"]
    if plan.nodes > 1:
        host, _, port = rendezvous.rpartition(":")
        where = [f"--nnodes={plan.nodes}", f"--node-rank={node_rank}", f"--master-addr={host}", f"--master-port={port}"]
    module = unsloth.module_arguments(plan.config, RANK)
    return [*where, f"--nproc-per-node={plan.processes_per_node}", "-m", *module, str(folder.root)]


def command_words(plan: Plan, folder: RunFolder) -> str:
    """As a person would type it; empty for a run of one process, but with Unsloth."""
    if plan.nodes > 1:
        here = f"{plan.processes_per_node} {'process' if plan.processes_per_node == 1 else 'processes'} here"
        if plan.nodes == 2:
            return f"{here}, and on node 1 `{join_command(folder, 1)}`"
        return f"{here}, and on each node K from 1 to {plan.nodes - 1} `{join_command(folder, 'K')}`"
    if unsloth.is_asked(plan.config):
        variables = [f"{name}={value}" for name, value in unsloth.python_variables(plan.config).items()]
        torchrun = [unsloth.python_path(plan.config), "-m", "torch.distributed.run"]
        return shlex.join([*variables, *torchrun, *torchrun_arguments(folder, plan)])
    if not plan.is_group:
        return ""
    return shlex.join(["torchrun", *torchrun_arguments(folder, plan)])


def trains_apart(plan: Plan) -> bool:
    """Whether other processes than this one train."""
    return plan.is_group or unsloth.is_asked(plan.config)


def train_together(
    job: Job, controls: Controls, progress: Progress, tell_failing: Callable[[str | None], None]
) -> Result:
    """Train in all processes of the plan, to the end. `tell_failing`: why the first cannot write the journal, and None
    when it can again. Raises RankEnded, GroupOutOfMemory, RunError, InputError."""
    folder, plan = job.folder, job.plan
    for rank in range(plan.processes.value):
        result_path(folder, rank).unlink(missing_ok=True)
    assignment = Assignment.of(
        folder,
        plan,
        checkpoint=job.checkpoint,
        asked_before=controls.asked_before,
        baselines=job.baselines,
    )
    assignment.write(folder)
    wait_for_nodes(folder, plan, assignment.attempt, progress)
    heard = Heard(tell_failing)
    _train_here(folder, plan, assignment, heard, lambda: controls.is_stopped_here)
    if heard.ended.get("exit_code", 0) > 0:
        heard.ended = ended_elsewhere(folder, plan, assignment.attempt) or heard.ended
    return _result(folder, plan.processes.value, heard)


def _start(folder: RunFolder, plan: Plan, log: IO[bytes], node_rank: int = 0, rendezvous: str = "") -> Child:
    environment = (
        os.environ
        | unsloth.python_variables(plan.config)
        | {
            # A torch.py in the folder that the user stands in is not ours.
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": str(plan.threads.value),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
    )
    if plan.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [unsloth.python_path(plan.config), "-m", AGENT, *torchrun_arguments(folder, plan, node_rank, rendezvous)]
    # Ctrl+C in the terminal asks this process, which asks for a checkpoint first.
    return Child(command, environment, is_asked=True, errors=log)


@dataclass(slots=True)
class Heard:
    """What the processes of a group have said, beside their files."""

    tell_failing: Callable[[str | None], None] = lambda reason: None
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By process, where the file could not be written."""
    ended: dict[str, Any] = field(default_factory=dict)
    """Which process has ended the group, and its exit code; without a rank torchrun itself; {} where all went well."""

    def take(self, line: bytes) -> None:
        match json_object(line):
            case {"failing": str() | None as reason}:
                self.tell_failing(reason)
            case {"rank": int(rank), "result": dict(result)}:
                self.results[rank] = result
            case {"rank": int(rank), "exit_code": int(code)}:
                self.ended = {"rank": rank, "exit_code": code}


def say(**words: Any) -> None:
    """By one of the processes, whose standard input it goes through."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(0).st_mode):
            os.write(0, f"{json.dumps(words)}\n".encode())


def say_failing(reason: str | None) -> None:
    """By the first process: why it cannot write the journal, or that it can again."""
    say(failing=reason and one_line(reason, 200))


def _train_here(
    folder: RunFolder,
    plan: Plan,
    assignment: Assignment,
    heard: Heard,
    wants_stop: Callable[[], bool],
    node_rank: int = 0,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Train in the processes of this node until they have ended. Where the run `is_over` on the first node they are
    ended: nodes that wait for one that is gone would do so for minutes."""
    has_asked = is_terminated = has_ended = False
    looked_at = 0.0
    with open_log(_agent_log(folder, node_rank)) as log:
        agent = _start(folder, plan, log, node_rank, assignment.rendezvous)
    try:
        while not has_ended:
            # Asked first: what it prints before its end is read then.
            has_ended = agent.exit_code is not None
            if not has_asked and wants_stop():
                has_asked = True
                agent.write(STOP)
            if not is_terminated and monotonic() - looked_at >= POLL_SECONDS:
                looked_at = monotonic()
                if is_over():
                    is_terminated = True
                    agent.process.terminate()
            lines = agent.read_lines(0.0 if has_ended else _HEARING_SECONDS)
            for line in lines or ():
                heard.take(line)
            if lines is None:
                has_ended = agent.process.wait() is not None
    finally:
        # Processes that have lost their agent leave now.
        agent.stop_reading()
        if agent.exit_code is None:
            agent.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                agent.process.wait(AGENT_SECONDS)
            agent.process.kill()
    if agent.exit_code and not heard.ended:
        heard.ended = {"rank": None, "exit_code": agent.exit_code}
    first = node_rank * plan.processes_per_node
    _wait_for_ends(folder, range(first, first + plan.processes_per_node))


def hold_log(folder: RunFolder, rank: int) -> None:
    """What libraries print in this process of the group goes to its log until it ends: both streams, in the kernel's
    own file descriptors, as their C++ parts print as well.
    """
    with open_log(log_path(folder, rank)) as log:
        # Not every file system of a cluster has locks.
        with suppress(OSError):
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    with suppress(OSError):
        write_atomically(result_path(folder, rank), json.dumps({"pid": os.getpid()}).encode(), durable=False)


def _wait_for_ends(folder: RunFolder, ranks: range) -> None:
    """Those whose agent was killed leave by themselves, but may be in the middle of a write. One that does not leave is
    killed."""
    until = monotonic() + LEAVE_SECONDS
    for rank in ranks:
        with suppress(FileNotFoundError), log_path(folder, rank).open("r+b") as log:
            # Not even a kill ends one that waits for a disk that does not answer.
            while _is_held(log) and (now := monotonic()) < until + KILLED_SECONDS:
                if now > until and (pid := read_fields(result_path(folder, rank)).get("pid")):
                    # Where it is one of a group's processes: numbers of ended ones are given to others.
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


def _result(folder: RunFolder, count: int, heard: Heard) -> Result:
    ended = heard.ended
    told = [heard.results.get(rank) or read_fields(result_path(folder, rank)) for rank in range(count)]
    by_signal = ended.get("exit_code", 0) < 0
    # A process that was killed lets those fail that were waiting for it.
    for found in [] if by_signal else told:
        match found.get("kind"):
            case "input":
                raise ConfigError(Problem(**problem) for problem in found["problems"])
            case "out of memory":
                raise GroupOutOfMemory(found["message"])
            case "run":
                raise RunError(found["message"])
    if not ended and told[0].get("kind") == "done":
        del told[0]["kind"]
        return Result(**told[0])
    raise RankEnded(_words(folder, ended))


def _words(folder: RunFolder, ended: dict[str, Any]) -> str:
    rank, code = ended.get("rank"), ended.get("exit_code", 0)
    if rank is None:
        where = f" on node {node}" if (node := ended.get("node")) else ""
        log = _agent_log(folder, ended.get("node", 0))
        return f"torchrun ended{where} ({exit_words(code)}); its log is {log}"
    log = log_path(folder, rank)
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = " / ".join(one_line(line, 160) for line in lines[-_SHOWN_LINES:])
        if last and code > 0:
            return f"process {rank} ended ({exit_words(code)}): {last}; its log is {log}"
    hint = "; the system kills the largest process when memory runs out" if code == -signal.SIGKILL else ""
    return f"process {rank} ended ({exit_words(code)}){hint}; its log is {log}"


# A node of a run that another node carries out: it starts its processes whenever the first one asks for them.


def join(folder: RunFolder, node_rank: int, progress: Progress, stop: Event) -> int:
    """Take part in a run from its next group of processes to its end; the exit code of the run. `stop`: it is asked to
    stop by this node. Raises RunError where the first node does not begin, or says nothing any more; InputError for
    what is wrong here.
    """
    done, heard, heard_at = "", -1, monotonic()
    while True:
        assignment, written = Assignment.current(folder), 0
        with suppress(OSError):
            written = folder.journal.stat().st_size
        if assignment is not None and assignment.attempt not in ("", done):
            done = assignment.attempt
            _take_part(folder, node_rank, assignment, progress, stop)
            heard_at = monotonic()
        elif owner(folder.lock) is None and done:
            state = read_run(folder)
            if state.finished is None:
                return EXIT_FAILED
            return EXIT_STOPPED if state.status == "stopped" else EXIT_DONE
        elif written != heard:
            # The first node writes what it does, and every few seconds what the machine does.
            heard, heard_at = written, monotonic()
        elif monotonic() - heard_at > WAIT_SECONDS:
            waited = format_seconds(WAIT_SECONDS)
            what = "no longer responds" if done else "has not started the run"
            raise RunError(f"the first node {what}: node {node_rank} has waited for {waited}")
        sleep(POLL_SECONDS)


def _take_part(folder: RunFolder, node_rank: int, assignment: Assignment, progress: Progress, stop: Event) -> None:
    attempt = assignment.attempt
    try:
        plan = read_plan(folder)
        if plan is None or not 0 < node_rank < plan.nodes:
            has = f"this run has {plan.nodes if plan else 1} of them"
            raise InputError(f"there is no node {node_rank}: nodes are counted from 0, and {has}")
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

    heard = Heard()
    _train_here(folder, plan, assignment, heard, stop.is_set, node_rank, is_over)
    tell_of_node(folder, node_rank, attempt, ended={**heard.ended, "node": node_rank} if heard.ended else {})
