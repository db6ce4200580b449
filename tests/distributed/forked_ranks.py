"""A stand-in for torchrun: the processes of a run as forks of one that has loaded the libraries.

It does what the agent does: when one ends with an error the others are ended as well, and it names the one. That the
real one does so is shown by `test_torchrun.py`.
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


class ForkedRanks:
    """As a `Popen` of the agent. `prelude(rank)`: Python that runs before the process does."""

    def __init__(self, folder: Any, plan: Any, log: Any, prelude: Callable[[int], str]) -> None:
        reading, writing = os.pipe()
        self.stdin = os.fdopen(writing, "wb")
        self.stdout = self
        self.returncode: int | None = None
        count = plan.processes.value
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.ranks: list[Program] = [
            start_program(
                [str(folder.root)],
                module=torchrun.RANK,
                environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                files=(reading, log.fileno(), log.fileno()),
                prelude=prelude(rank),
            )
            for rank in range(count)
        ]
        os.close(reading)

    def read(self) -> bytes:
        """Waits for their end."""
        while True:
            codes = [rank.poll() for rank in self.ranks]
            failed = [(rank, code) for rank, code in enumerate(codes) if code]
            if failed:
                rank, code = min(failed, key=lambda one: one[1])
                self.returncode = 1
                self._end()
                return json.dumps({"rank": rank, "exit_code": code}).encode()
            if all(code == 0 for code in codes):
                self.returncode = 0
                return b""
            time.sleep(0.02)

    def _end(self) -> None:
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                rank.send_signal(signal.SIGTERM)
        for rank in self.ranks:
            rank.wait(30)

    def wait(self, timeout: float | None = None) -> int:
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._end()

    kill = _end
