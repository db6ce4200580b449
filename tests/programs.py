"""Programs that tests start: as forks of one process with the libraries loaded, in everything else as by a shell.

What is asked of a start itself (which libraries it loads, how long it takes) is asked of a process of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from tui_trainer.worker.child import Child

_SERVER = Path(__file__).with_name("program_server.py")
_STARTS_WITHIN_SECONDS = 300
_STACKS_WITHIN_SECONDS = 5


# What architectures consist of is asked once for all tests.
_ASKS_ONCE = """
from pathlib import Path
from tui_trainer.models import counting as answers
answers.prepared_data_folder = lambda environment: Path({folder!r})
"""


def journals(folder: Path) -> list[Path]:
    """Those of the runs that are in `runs` by now, which a start makes and removes to see whether it can write."""
    try:
        return list(folder.glob("runs/*/journal.jsonl"))
    except FileNotFoundError:
        return []


class Program:
    """A started program, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._answer(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired."""
        code = self._answer(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"program {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # ended, and its answer is on the way
                os.kill(self.pid, number)

    def stacks(self) -> str:
        """Where its threads are now: for the message of a test that waits for its end in vain."""
        path = Path(_server()).with_name(f"stacks-{self.pid}")
        self.send_signal(signal.SIGUSR2)
        until, text = time.monotonic() + _STACKS_WITHIN_SECONDS, ""
        while time.monotonic() < until and (not text or text != path.read_text()):
            text = path.read_text()
            time.sleep(0.2)
        return text

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _answer(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                text = self._connection.recv(1000)
            except (BlockingIOError, TimeoutError):
                return None
            assert text, "the server of programs has ended"
            self.returncode = json.loads(text)["code"]
            self._connection.close()
        return self.returncode


def start_program(
    arguments: Sequence[str],
    *,
    files: Sequence[int],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    module: str = "tui_trainer",
    prelude: str = "",
    controlling: bool = False,
    closed: Sequence[int] = (),
    cores: Sequence[int] = (),
) -> Program:
    """`python -m MODULE ARGUMENTS` with `files` as its standard input, output and error.

    `prelude` is Python that runs before; `controlling`: standard input is the terminal that hangs it up; `closed` are
    the numbers of standard files that are closed; `cores` are those it may run on.
    """
    connection = _connect()
    request = {
        "arguments": list(arguments),
        "environment": dict(os.environ if environment is None else environment),
        "folder": str(folder or Path.cwd()),
        "module": module,
        "prelude": _ASKS_ONCE.format(folder=str(shared_folder())) + prelude,
        "controlling": controlling,
        "closed": list(closed),
        "cores": list(cores) or sorted(os.sched_getaffinity(0)),
    }
    socket.send_fds(connection, [json.dumps(request).encode()], list(files))
    return Program(connection, json.loads(connection.recv(1000))["pid"])


class ForkedWorker(Child):
    """In the place of `worker.asking.Child`: a fork of the server."""

    def _spawn(self, command: Sequence[str], *, stdin: Any, stdout: Any, stderr: Any, env: Any, **_: Any) -> Any:
        python, path, by_module, module, *questions = command
        assert (python, path, by_module) == (sys.executable, "-P", "-m")
        files = [stdin.fileno(), stdout.fileno(), stderr.fileno()]
        return start_program(questions, module=module, files=files, environment=env)


def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    module: str = "tui_trainer",
    prelude: str = "",
    text: str = "",
    timeout: float = 1500,
) -> subprocess.CompletedProcess[str]:
    """The program carried out: exit code, output and error; `text` is its standard input."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        given.write(text.encode())
        given.seek(0)
        files = [given.fileno(), output.fileno(), error.fileno()]
        program = start_program(
            arguments, files=files, environment=environment, folder=folder, module=module, prelude=prelude
        )
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
            program.wait()
        output.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, output.read().decode(), error.read().decode())


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(_server())
    return connection


@cache
def shared_folder() -> Path:
    """One for all processes of a test run."""
    return Path(_server()).parent


@cache
def _server() -> str:
    """The socket of the server of this test run, started by whoever needs it first; shared by its processes."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    place = Path(tempfile.gettempdir()) / f"tui-trainer-tests-{os.getuid()}-{run}"
    path = str(place / "socket")
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        _wait_for(path)
    else:
        # The test that starts it may have set what libraries read when they are loaded.
        variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        command = [sys.executable, "-P", str(_SERVER), path]
        os.posix_spawn(sys.executable, command, {**variables, "HF_HUB_OFFLINE": "1"}, setsid=True)
        _wait_for(path)
    # Held open until this process ends: the server ends with the last of these.
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held.connect(path)
    atexit.register(held.close)
    return path


def _wait_for(path: str) -> None:
    until = time.monotonic() + _STARTS_WITHIN_SECONDS
    while not Path(path).exists():
        assert time.monotonic() < until, "the server of programs did not start"
        time.sleep(0.05)
