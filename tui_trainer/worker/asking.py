"""The program's side: asks a worker, waits, cancels, takes no longer than it may, and says why there is no answer."""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import IO, Any

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.questions import ASKING_PROCESS, MODULE, OF_SHAPES

# A process that ends takes seconds on a busy machine.
_ENDS_WITHIN_SECONDS = 5.0
_LAST_BYTES = 4096
_LEAST_PRIORITY = 19

Heard = Callable[[dict[str, Any]], None]


class WorkerFailed(Exception):
    """Why there is no answer, as the end of a sentence whose subject is the worker's task.

    `reason` is the worker's own last word; empty when it took too long. `is_killed`: the system ended it, most often
    for its memory. `is_cancelled`: this program ended it, which says nothing about what was asked.
    """

    def __init__(self, message: str, reason: str = "", *, is_killed: bool = False, is_cancelled: bool = False) -> None:
        super().__init__(message)
        self.reason, self.is_killed, self.is_cancelled = reason, is_killed, is_cancelled


def ask(
    question: str,
    asked: Any,
    *,
    timeout_seconds: float | None = None,
    sees_gpus: bool = False,
    progress: Heard | None = None,
) -> Any:
    """What a process that has loaded nothing else answers; question and answer are JSON.

    It has no network, and no GPU but with `sees_gpus`. `progress` hears how far it is. Blocks: not for the thread of
    the screens. Raises WorkerFailed; what `progress` raises ends the worker.
    """
    # What comes next may need its memory.
    shapes_worker.close()
    worker = Worker(question, sees_gpus=sees_gpus)
    try:
        return worker.ask(question, asked, timeout_seconds=timeout_seconds, progress=progress)
    finally:
        worker.close()


class Worker:
    """A process that answers one question after the other: only the first one waits until its libraries are loaded. It
    is begun with the first question, and ends when nobody has asked for a while."""

    def __init__(self, *questions: str, sees_gpus: bool = False) -> None:
        self._questions, self._sees_gpus = questions, sees_gpus
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._is_cancelled = self._gives_way = self._has_little_priority = False

    @property
    def is_asked(self) -> bool:
        """Whether an answer is waited for now."""
        return self._lock.locked()

    def ask(
        self, question: str, asked: Any, *, timeout_seconds: float | None = None, progress: Heard | None = None
    ) -> Any:
        """The answer. Raises WorkerFailed."""
        _refuse_the_thread_of_an_event_loop()
        line = json.dumps({"question": question, "input": asked}).encode() + b"\n"
        ends = inf if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._lock:
            try:
                # As a rule one that says nothing was asked in the moment in which it ended for want of questions.
                if (told := self._told(line, ends, progress)) is None:
                    told = self._told(line, ends, progress)
            except TimeoutError:
                self._end()
                raise WorkerFailed(f"took more than {timeout_seconds:.0f} s") from None
            except BaseException:
                self._end()
                raise
        if told is None:
            raise WorkerFailed("failed: no error message", "no error message")
        if reason := told.get("failed"):
            raise WorkerFailed(f"failed: {reason}", reason)
        return told["answer"]

    def _told(self, line: bytes, ends: float, progress: Heard | None) -> dict[str, Any] | None:
        """Its last line; None where it ended without one and without a fault. Raises TimeoutError and WorkerFailed."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(line)
            process.stdin.flush()
        for written in _lines(process.stdout, ends):
            told: dict[str, Any] = json.loads(written)
            if "progress" not in told:
                return told
            if progress:
                progress(told["progress"])
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_ENDS_WITHIN_SECONDS)
        # One that is ended here was not ended for its memory.
        code, last_words = process.poll(), self._last_words()
        self._end()
        if self._is_cancelled:
            raise WorkerFailed("was cancelled", "cancelled", is_cancelled=True)
        if code == -signal.SIGKILL:
            reason = "killed, probably because memory ran out"
            raise WorkerFailed(f"was {reason}", reason, is_killed=True)
        if code:
            raise WorkerFailed(f"failed: {last_words}", last_words)
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        is_slow = self._has_little_priority and not self._gives_way
        # A process that was cancelled before this question may take a moment to end.
        if self._process and (is_slow or self._is_cancelled or self._process.poll() is not None):
            self._end()
        if self._process is None:
            command, environment = _command(self._questions, self._sees_gpus)
            self._is_cancelled = False
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # for the life of the process
            self._process = _start(command, environment, self._errors)
            self._has_little_priority = False
            _begun.add(self)
            self._set_priority()
        return self._process

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """Within it the process computes where nobody else wants the cores: it would slow a training down."""
        self._gives_way = True
        self._set_priority()
        try:
            yield
        finally:
            self._gives_way = False

    def _set_priority(self) -> None:
        """It cannot be given back: a process that has little keeps it, and the next question begins another one."""
        if self._gives_way and (process := self._process):
            self._has_little_priority = True
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, process.pid, _LEAST_PRIORITY)

    def _last_words(self) -> str:
        """The last line of what it wrote on standard error."""
        assert self._errors is not None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_BYTES))
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return one_line(words[-1], 200) if words else "no error message"

    def close(self) -> None:
        """End it when it has answered."""
        with self._lock:
            self._end()

    def cancel(self) -> None:
        """End it also in the middle of a question, and without a wait; who waits for the answer gets WorkerFailed."""
        if process := self._process:
            self._is_cancelled = True
            _kill(process)

    def forget(self) -> None:
        """In a fork: the process answers the one that began it, and its answers would go to whoever reads first."""
        if self._process:
            self._process.returncode = 0
        self._process, self._lock = None, threading.Lock()

    def _end(self) -> None:
        process, self._process = self._process, None
        _begun.discard(self)
        if process and process.stdin and process.stdout and self._errors:
            _kill(process)
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            process.wait()
            self._errors.close()


def end_workers() -> None:
    """Those that are asked now, whoever waits for them."""
    for worker in list(_begun):
        worker.cancel()


def _forget_workers() -> None:
    for worker in [*_begun, shapes_worker]:
        worker.forget()
    _begun.clear()


shapes_worker = Worker(*OF_SHAPES)
_begun: set[Worker] = set()
atexit.register(end_workers)
os.register_at_fork(after_in_child=_forget_workers)


def _refuse_the_thread_of_an_event_loop() -> None:
    """Raises RuntimeError there: the screens would stand still until the answer is there."""
    if asyncio := sys.modules.get("asyncio"):
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError("a question to a worker blocks: ask it in a thread of its own")


def _command(questions: tuple[str, ...], sees_gpus: bool) -> tuple[list[str], dict[str, str]]:
    """With its environment. -P: a torch.py in the folder that the user stands in is not ours."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", ASKING_PROCESS: str(os.getpid())}
    if not sees_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return [sys.executable, "-P", "-m", MODULE, *questions], environment


def _start(command: list[str], environment: dict[str, str], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    """In a group of its own, so that an end of it is one of all that it has started."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, process_group=0)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _lines(stream: IO[bytes], ends: float) -> Iterator[bytes]:
    """Whole lines, until its end. Raises TimeoutError."""
    rest = b""
    while True:
        left = None if ends == inf else max(0.0, ends - time.monotonic())
        if not select.select([stream], [], [], left)[0]:
            raise TimeoutError
        if not (new := os.read(stream.fileno(), 1 << 16)):
            return
        *lines, rest = (rest + new).split(b"\n")
        yield from lines
