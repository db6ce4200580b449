"""Where the nodes of a run meet: the address that they connect to, and which of them have come.

All goes through the folder of the run, which every node sees: what the first one tells is in `logs/ranks.json`, what
came of each other one in `logs/node-K.json`. torchrun is started where all have come, so that a node that is missing
has its number.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal
from uuid import uuid4

from pydantic import TypeAdapter

from tui_trainer.data.progress import Progress
from tui_trainer.errors import ConfigError, Problem, RunError
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder, read_fields, write_atomically
from tui_trainer.runs.lock import LockOwner, owner
from tui_trainer.runs.slurm import Allocation
from tui_trainer.tasks.contract import Baselines
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.units import format_seconds

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
            message = f"node {missing[0]} of {plan.nodes} (counted from 0) did not come within "
            message += f"{format_seconds(WAIT_SECONDS)}: start `{join_command(folder, missing[0])}` on it"
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
        raise RunError(f"node {node_rank} ({told.get('host')}) cannot take part: {told['problem']}")
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
            message = f"port {port} of this node cannot be used: {error.strerror}"
            hint = "name another one, or none: then a free one is taken"
            raise ConfigError(Problem(message=message, key="distributed.rendezvous", hint=hint)) from None
        return f"{host}:{free.getsockname()[1]}"
