"""Slurm: the job that executes a run, its state in the queue, and the allocation of this process.

The module calls the commands of Slurm (`sbatch`, `squeue`, `scancel`, `scontrol`), any of which may be missing.
Source: the manuals of Slurm 22.05 and newer, https://slurm.schedmd.com/man_index.html.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Final

from tui_trainer.errors import InputError, RunError, system_reason
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.terminal.safe_text import one_line

_TIMEOUT_SECONDS: Final = 60.0
# All users share the controller, so administrators ask for at most a few queries per minute.
QUERY_INTERVAL_SECONDS = 10.0
# States in squeue of a job that no longer runs.
_ENDED_STATES: Final = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """A job's state and its reason in squeue's words: `PENDING`, `Resources`. Both are empty after the job's end."""

    state: str
    reason: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the job runs or may still run."""
        return bool(self.state) and self.state not in _ENDED_STATES

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"{self.state.lower().replace('_', ' ')}{reason}" if self.state else "no longer in the queue"


NO_JOB_STATE: Final = QueueState(state="")


def is_here(command: str = "sbatch") -> bool:
    return shutil.which(command) is not None


def submit(script: Path) -> str:
    """Submit the script and return the id of its job. Raises RunError with Slurm's message."""
    result = _run("sbatch", "--parsable", str(script))
    job_id = result.stdout.strip().partition(";")[0]
    if result.returncode or not job_id.isdigit():
        raise RunError(f"sbatch refused the job: {_error_text(result)}")
    return job_id


def cancel(job: str) -> None:
    """Cancel a job. Raises RunError with Slurm's message."""
    result = _run("scancel", job)
    if result.returncode:
        raise RunError(f"job {job} was not cancelled: {_error_text(result)}")


def requeue(job: str) -> None:
    """Requeue the job of this process. Slurm then ends the job's remaining processes. Raises RunError.

    Exit codes are not used for this, because the administrator of a cluster chooses them (RequeueExit).
    """
    result = _run("scontrol", "requeue", job)
    if result.returncode:
        raise RunError(f"job {job} was not requeued: {_error_text(result)}; submit it again")


def queue_state(job: str) -> QueueState | None:
    """Return the state of a job according to squeue; None if squeue fails."""
    try:
        result = _run("squeue", "--noheader", "--states=all", "--format=%T|%r", "--jobs", job)
    except RunError:
        return None
    if result.returncode:
        # Slurm forgets a job some minutes after its end.
        return NO_JOB_STATE if "Invalid job id" in result.stderr else None
    state, _, reason = (result.stdout.strip().splitlines() or [""])[0].partition("|")
    return QueueState(state=one_line(state, 40), reason=one_line(reason, 80))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "no response"
        raise RunError(f"{command[0]}: {reason}") from None


def _error_text(result: subprocess.CompletedProcess[str]) -> str:
    return one_line(result.stderr.strip() or f"exit code {result.returncode}", 300)


def job_of(folder: RunFolder) -> str:
    """Return the id of the job that executes a run; "" for a run without a job."""
    return str(read_fields(folder.job).get("job", ""))


def remember_job(folder: RunFolder, job: str) -> None:
    """Save the id of the run's job in its folder. Raises FolderError."""
    if job_of(folder) != job:
        folder.write_file(folder.job, json.dumps({"job": job}).encode())


def active_job(folder: RunFolder) -> str:
    """Return the id of the run's job if it runs or is queued, else ""."""
    job = job_of(folder)
    state = queue_state(job) if job else None
    return job if state and state.is_active else ""


@dataclass(slots=True)
class WatchedJob:
    """Cached state of a run's job. A thread queries Slurm at intervals, so that no caller waits for it."""

    folder: RunFolder
    job: str = ""
    state: QueueState | None = None
    """State at the last successful query; None before the first."""
    _queried_at: float = field(default=float("-inf"), init=False)
    _thread: Thread | None = field(default=None, init=False)

    @property
    def words(self) -> str:
        """Job and state as text: `job 12: pending (Resources)`; empty without a job, and before the first query."""
        return f"job {self.job}: {self.state}" if self.job and self.state else ""

    def is_active(self) -> bool:
        """Return whether the run has a job that runs or is queued. True until Slurm has answered the first query."""
        is_due = monotonic() - self._queried_at >= QUERY_INTERVAL_SECONDS
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._queried_at, self.job = monotonic(), job_of(self.folder)
            if self.job:
                self._thread = Thread(target=self._query, name="tui-trainer-queue", daemon=True)
                self._thread.start()
        if self.state is None:
            return self._thread is not None and self._thread.is_alive()
        return self.state.is_active

    def _query(self) -> None:
        self.state = queue_state(self.job) or self.state


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The resources that Slurm allocated to this process, from the environment variables of Slurm."""

    job: str
    requeue_count: int
    """Number of times that the job was requeued before."""
    node_count: int = 1
    """Number of nodes of the job step; 1 outside of `srun`."""
    node_rank: int = 0
    node_list: str = ""

    @classmethod
    def of_this_process(cls) -> "Allocation | None":
        """Return the allocation of this process; None outside a job. Raises InputError for several tasks on a node."""
        job_id = os.environ.get("SLURM_JOB_ID", "")
        if not job_id.isdigit():
            return None
        allocation = cls(job=job_id, requeue_count=_number("SLURM_RESTART_COUNT"))
        if "SLURM_STEP_NUM_NODES" not in os.environ:
            return allocation
        if _number("SLURM_LOCALID"):
            hint = "use srun --ntasks-per-node=1: tui-trainer starts a process for each GPU itself"
            raise InputError("Slurm has started several tasks on this node", hint=hint)
        nodes, node_list = max(1, _number("SLURM_STEP_NUM_NODES")), os.environ.get("SLURM_STEP_NODELIST", "")
        return replace(allocation, node_count=nodes, node_rank=_number("SLURM_NODEID"), node_list=node_list)

    @property
    def identity(self) -> str:
        """Id of the job and of its start, because a requeued job starts again. The starts of a job never overlap."""
        return f"{self.job}.{self.requeue_count}"

    def first_host(self) -> str:
        """Return the host name of the node with rank 0. Raises RunError."""
        result = _run("scontrol", "show", "hostnames", self.node_list)
        if result.returncode or not result.stdout.split():
            raise RunError(f"scontrol does not list the nodes {self.node_list}: {_error_text(result)}")
        return result.stdout.split()[0]


def has_ended(identity: str) -> bool:
    """Return whether a job's start, given by its `Allocation.identity`, has ended; False if that is not known."""
    job, _, start = identity.partition(".")
    if os.environ.get("SLURM_JOB_ID") == job:
        return start.isdigit() and int(start) < _number("SLURM_RESTART_COUNT")
    state = queue_state(job)
    return state is not None and not state.is_active


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else 0
