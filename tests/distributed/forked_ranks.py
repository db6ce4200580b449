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
from tui_trainer.worker.child import Child

AGENT_KILLED = "agent-killed"


class ForkedRanks:
    """As a `Popen` of the agent. `prelude(rank)`: Python that runs before the process does."""

    def __init__(
        self, folder: Any, plan: Any, prelude: Callable[[int], str], node_rank: int, rendezvous: str, starter: Any,
        log: Any,
    ) -> None:  # fmt: skip
        self.returncode: int | None = None
        self.node_rank, self.first = node_rank, node_rank * plan.processes_per_node
        self.killed = folder.root / AGENT_KILLED
        self._starter = starter.dup()
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
                files=(starter.fileno(), log.fileno(), log.fileno()),
                prelude=prelude(self.first + local),
            )
            for local in range(plan.processes_per_node)
        ]

    def poll(self) -> int | None:
        if self.returncode is None:
            codes = [rank.poll() for rank in self.ranks]
            failed = [(rank, code) for rank, code in enumerate(codes) if code]
            if self.killed.exists():
                self.killed.unlink()
                self._end(-signal.SIGKILL)
            elif failed:
                rank, code = min(failed, key=lambda one: one[1])
                self.terminate()
                with suppress(OSError):
                    self._starter.send(json.dumps({"rank": self.first + rank, "exit_code": code}).encode() + b"\n")
                self._end(1)
            elif all(code == 0 for code in codes):
                self._end(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def terminate(self) -> None:
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                rank.kill()  # SIGTERM ends them only where it comes from their parent
        for rank in self.ranks:
            rank.wait(1500)

    kill = terminate

    def _end(self, code: int) -> None:
        self.returncode = code
        self._starter.close()


class Agent(Child):
    """The processes of a node, `start`ed as forks."""

    ranks: ForkedRanks

    def __init__(self, start: Callable[..., ForkedRanks], log: Any) -> None:
        self._start = start
        super().__init__([], is_asked=True, errors=log)

    def _spawn(self, command: Any, *, stdin: Any, stderr: Any, **_: Any) -> Any:
        self.ranks = self._start(starter=stdin, log=stderr)
        return self.ranks
