"""Slurm as the runs see it: the job that carries a run out, its place in the queue, and the allocation of this process.

Only the commands of Slurm are asked (`sbatch`, `squeue`, `scancel`, `scontrol`), and each may be missing.
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

_PATIENCE_SECONDS: Final = 60.0
# The controller answers everybody: administrators ask for no more than a few questions a minute.
QUESTION_EVERY_SECONDS = 10.0
# Of the states that squeue names, those of a job that may run on.
_ENDED: Final = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """Of a job: `state` and `reason` as squeue names them, such as PENDING and Resources; "" once it has ended."""

    state: str
    reason: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it runs, or may still."""
        return bool(self.state) and self.state not in _ENDED

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        return f"{self.state.lower().replace('_', ' ')}{reason}" if self.state else "no longer in the queue"


ENDED: Final = QueueState(state="")


def is_here(command: str = "sbatch") -> bool:
    return shutil.which(command) is not None


def submit(script: Path) -> str:
    """Hand the script to Slurm; the number of its job. Raises RunError with Slurm's own words."""
    done = _ask("sbatch", "--parsable", str(script))
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdigit():
        raise RunError(f"sbatch refused the job: {_words(done)}")
    return number


def cancel(job: str) -> None:
    """Raises RunError."""
    done = _ask("scancel", job)
    if done.returncode:
        raise RunError(f"job {job} was not cancelled: {_words(done)}")


def requeue(job: str) -> None:
    """Put the job that this process belongs to into the queue again: Slurm ends what is left of it. Raises RunError.

    A cluster can requeue by exit codes as well (RequeueExit), but only its administrator can say which.
    """
    done = _ask("scontrol", "requeue", job)
    if done.returncode:
        raise RunError(f"job {job} was not requeued: {_words(done)}; submit it again")


def queue_state(job: str) -> QueueState | None:
    """What squeue says of a job; None where it does not answer."""
    try:
        done = _ask("squeue", "--noheader", "--states=all", "--format=%T|%r", "--jobs", job)
    except RunError:
        return None
    if done.returncode:
        # Slurm forgets a job some minutes after its end.
        return ENDED if "Invalid job id" in done.stderr else None
    state, _, reason = (done.stdout.strip().splitlines() or [""])[0].partition("|")
    return QueueState(state=one_line(state, 40), reason=one_line(reason, 80))


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "no response"
        raise RunError(f"{command[0]}: {reason}") from None


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return one_line(done.stderr.strip() or f"exit code {done.returncode}", 300)


def job_of(folder: RunFolder) -> str:
    """The job that carries a run out, as `submit` gave it; "" for a run of no job."""
    return str(read_fields(folder.job).get("job", ""))


def remember_job(folder: RunFolder, job: str) -> None:
    """Raises FolderError."""
    if job_of(folder) != job:
        folder.write_file(folder.job, json.dumps({"job": job}).encode())


def active_job(folder: RunFolder) -> str:
    """The job of a run, where it runs or waits in the queue; else ""."""
    job = job_of(folder)
    found = queue_state(job) if job else None
    return job if found and found.is_active else ""


@dataclass(slots=True)
class WatchedJob:
    """The job of a run in the queue, asked now and then by a thread: nobody waits for Slurm."""

    folder: RunFolder
    job: str = ""
    state: QueueState | None = None
    """None as long as Slurm has not answered, and where it does not."""
    _asked_at: float = field(default=float("-inf"), init=False)
    _thread: Thread | None = field(default=None, init=False)

    @property
    def words(self) -> str:
        """`job 12: pending (Resources)`; empty for a run of no job, and as long as nothing is known."""
        return f"job {self.job}: {self.state}" if self.job and self.state else ""

    def is_active(self) -> bool:
        """Whether the run has a job that runs or waits, as far as is known."""
        is_due = monotonic() - self._asked_at >= QUESTION_EVERY_SECONDS
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._asked_at, self.job = monotonic(), job_of(self.folder)
            if self.job:
                self._thread = Thread(target=self._look, name="tui-trainer-queue", daemon=True)
                self._thread.start()
        if self.state is None:
            return self._thread is not None and self._thread.is_alive()
        return self.state.is_active

    def _look(self) -> None:
        self.state = queue_state(self.job) or self.state


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """What Slurm has given to this process. The only place that reads its environment."""

    job: str
    start: int
    """How often the job was queued again before."""
    nodes: int = 1
    """Of the job step; 1 outside of `srun`."""
    node_rank: int = 0
    node_list: str = ""

    @classmethod
    def here(cls) -> "Allocation | None":
        """None outside of a job. Raises InputError for several tasks on one node."""
        found = os.environ.get("SLURM_JOB_ID", "")
        if not found.isdigit():
            return None
        job = cls(job=found, start=_number("SLURM_RESTART_COUNT"))
        if "SLURM_STEP_NUM_NODES" not in os.environ:
            return job
        if _number("SLURM_LOCALID"):
            hint = "use srun --ntasks-per-node=1: tui-trainer starts a process for each GPU itself"
            raise InputError("Slurm has started several tasks on this node", hint=hint)
        nodes, names = max(1, _number("SLURM_STEP_NUM_NODES")), os.environ.get("SLURM_STEP_NODELIST", "")
        return replace(job, nodes=nodes, node_rank=_number("SLURM_NODEID"), node_list=names)

    @property
    def identity(self) -> str:
        """Of this start of the job: one job is never carried out twice at a time."""
        return f"{self.job}.{self.start}"

    def first_host(self) -> str:
        """The node with number 0. Raises RunError."""
        done = _ask("scontrol", "show", "hostnames", self.node_list)
        if done.returncode or not done.stdout.split():
            raise RunError(f"scontrol does not list the nodes {self.node_list}: {_words(done)}")
        return done.stdout.split()[0]


def has_ended(identity: str) -> bool:
    """Whether what had this `Allocation.identity` is over; False where that is not known."""
    job, _, start = identity.partition(".")
    if os.environ.get("SLURM_JOB_ID") == job:
        return start.isdigit() and int(start) < _number("SLURM_RESTART_COUNT")
    found = queue_state(job)
    return found is not None and not found.is_active


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0
