"""A stand-in for torchrun: the processes of a run as forks of one that has loaded the libraries.

It does what the agent does: when one ends with an error the others are ended as well, and it names the one. That the
real one does so is shown by `test_torchrun.py`. A file AGENT_KILLED in the folder of the run is its end: it leaves the
processes alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.programs import Program, start_program
from tui_trainer.launching import torchrun

AGENT_KILLED = "agent-killed"


class ForkedRanks:
    """As a `Popen` of the agent. `prelude(rank)`: Python that runs before the process does."""

    def __init__(
        self, folder: Any, plan: Any, log: Any, prelude: Callable[[int], str], node_rank: int, rendezvous: str
    ) -> None:
        own, theirs = socket.socketpair()
        self.stdin = os.fdopen(own.detach(), "wb", buffering=0)
        self.stdout = self
        self.returncode: int | None = None
        self.node_rank, self.first = node_rank, node_rank * plan.processes_per_node
        self.killed = folder.root / AGENT_KILLED
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = rendezvous.rpartition(":")[2] or free.getsockname()[1]
        shared = {"WORLD_SIZE": str(plan.processes.value), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shared["GROUP_RANK"] = str(node_rank)
        self.ranks: list[Program] = [
            start_program(
                [str(folder.root)],
                module=torchrun.RANK,
                environment=os.environ | shared | {"RANK": str(self.first + local), "LOCAL_RANK": str(local)},
                files=(theirs.fileno(), log.fileno(), log.fileno()),
                prelude=prelude(self.first + local),
            )
            for local in range(plan.processes_per_node)
        ]
        theirs.close()

    def read(self) -> bytes:
        """Waits for their end."""
        while True:
            if self.killed.exists():
                self.killed.unlink()
                self.returncode = -signal.SIGKILL
                return b""
            codes = [rank.poll() for rank in self.ranks]
            failed = [(rank, code) for rank, code in enumerate(codes) if code]
            if failed:
                rank, code = min(failed, key=lambda one: one[1])
                self.returncode = 1
                self._end()
                return json.dumps({"rank": self.first + rank, "exit_code": code}).encode()
            if all(code == 0 for code in codes):
                self.returncode = 0
                return b""
            time.sleep(0.02)

    def close(self) -> None:
        """It is its own output."""

    def _end(self) -> None:
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                rank.kill()  # SIGTERM ends them only where it comes from their parent
        for rank in self.ranks:
            rank.wait(1500)

    def wait(self, timeout: float | None = None) -> int:
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._end()

    kill = _end
