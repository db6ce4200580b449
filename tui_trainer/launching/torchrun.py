"""Processes that train one model together, started and watched by torchrun (torch's elastic agent).

Each is `launching/rank_process.py`; the first of them writes the journal. They end with this process: all hold the
reading end of a pipe, and leave when nobody holds its other end.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from tui_trainer.errors import ConfigError, GroupOutOfMemory, Problem, RunError
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder, write_atomically
from tui_trainer.safe_text import one_line
from tui_trainer.training.job import Job, Result

AGENT, RANK = "tui_trainer.launching.torchrun_agent", "tui_trainer.launching.rank_process"
_AGENT_LOG: Final = "torchrun.txt"
_PATIENCE_SECONDS: Final = 10.0
_SHOWN_LINES: Final = 3


class RankEnded(RunError):
    """One of the processes has ended before the run has: the others were ended as well, and may begin anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What the processes are told beside the plan."""

    checkpoint: dict[str, Any] | None
    asked_before: int
    baselines: dict[str, Any] | None

    @staticmethod
    def path(folder: RunFolder) -> Path:
        return folder.logs / "ranks.json"


def result_path(folder: RunFolder, rank: int) -> Path:
    """What came of one of the processes, in JSON."""
    return folder.logs / f"rank-{rank}.json"


def log_path(folder: RunFolder, rank: int) -> Path:
    """What one of the processes has printed, and its traceback."""
    return folder.logs / f"rank-{rank}.txt"


def torchrun_arguments(folder: RunFolder, processes: int) -> list[str]:
    return ["--standalone", f"--nproc-per-node={processes}", "-m", RANK, str(folder.root)]


def command_words(plan: Plan, folder: RunFolder) -> str:
    """As a person would type it; empty for a run of one process."""
    if plan.processes.value == 1:
        return ""
    return shlex.join(["torchrun", *torchrun_arguments(folder, plan.processes.value)])


def train_together(job: Job, controls: Controls) -> Result:
    """Train in all processes of the plan, to the end. Raises RankEnded, GroupOutOfMemory, RunError, InputError."""
    folder, count = job.folder, job.plan.processes.value
    for rank in range(count):
        result_path(folder, rank).unlink(missing_ok=True)
    assignment = Assignment(
        checkpoint=asdict(job.checkpoint) if job.checkpoint else None,
        asked_before=controls.asked_before,
        baselines=asdict(job.baselines) if job.baselines else None,
    )
    write_atomically(Assignment.path(folder), json.dumps(asdict(assignment), default=str).encode(), durable=False)
    with (folder.logs / _AGENT_LOG).open("ab") as log:
        ended = _watched(_start(folder, job.plan, log))
    return _result(folder, count, ended)


def _start(folder: RunFolder, plan: Plan, log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        # A torch.py in the folder that the user stands in is not ours.
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": str(plan.threads.value),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if plan.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(
        [sys.executable, "-m", AGENT, *torchrun_arguments(folder, plan.processes.value)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        # Ctrl+C in the terminal asks this process, which asks for a checkpoint first.
        start_new_session=True,
    )


def _watched(agent: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the end of torchrun; what it says of it: {} where all went well."""
    assert agent.stdin is not None and agent.stdout is not None
    try:
        said = agent.stdout.read()
        code = agent.wait()
    finally:
        # Processes that have lost their agent leave now.
        agent.stdin.close()
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                agent.wait(_PATIENCE_SECONDS)
            agent.kill()
    with suppress(ValueError):
        found = json.loads(said.splitlines()[-1]) if said.strip() else {}
        if isinstance(found, dict) and found:
            return found
    return {"rank": None, "exit_code": code} if code else {}


def _result(folder: RunFolder, count: int, ended: dict[str, Any]) -> Result:
    told = [_told(folder, rank) for rank in range(count)]
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
        return Result(
            reason=told[0]["reason"],
            step_seconds=told[0]["step_seconds"],
            peak_memory_bytes=told[0]["peak_memory_bytes"],
        )
    raise RankEnded(_words(folder, ended))


def _told(folder: RunFolder, rank: int) -> dict[str, Any]:
    try:
        found = json.loads(result_path(folder, rank).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _words(folder: RunFolder, ended: dict[str, Any]) -> str:
    rank, code = ended.get("rank"), ended.get("exit_code", 0)
    if rank is None:
        return f"torchrun has ended ({_exit_words(code)}); its log is {folder.logs / _AGENT_LOG}"
    log = log_path(folder, rank)
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = " / ".join(one_line(line, 160) for line in lines[-_SHOWN_LINES:])
        if last and code > 0:
            return f"process {rank} has ended ({_exit_words(code)}): {last}; its log is {log}"
    hint = "; the system kills the largest process where memory is short" if code == -signal.SIGKILL else ""
    return f"process {rank} has ended ({_exit_words(code)}){hint}; its log is {log}"


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
