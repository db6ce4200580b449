"""The program's side: asks a worker, waits, cancels, takes no longer than it may, and says why there is no answer."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any

from tui_trainer.worker.child import Child
from tui_trainer.worker.questions import MODULE, OF_SHAPES

# A process that ends takes seconds on a busy machine.
_ENDS_WITHIN_SECONDS = 5.0
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
    with closing(Worker(question, sees_gpus=sees_gpus)) as worker:
        return worker.ask(question, asked, timeout_seconds=timeout_seconds, progress=progress)


class Worker:
    """A process that answers one question after the other: only the first one waits until its libraries are loaded. It
    is begun with the first question, and ends when nobody has asked for a while."""

    def __init__(self, *questions: str, sees_gpus: bool = False) -> None:
        self._questions, self._sees_gpus = questions, sees_gpus
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._gives_way = self._has_little_priority = False

    @property
    def is_asked(self) -> bool:
        """Whether an answer is waited for now."""
        return self._lock.locked()

    def ask(
        self, question: str, asked: Any, *, timeout_seconds: float | None = None, progress: Heard | None = None
    ) -> Any:
        """Return the answer. Raises WorkerFailed."""
        _refuse_the_thread_of_an_event_loop()
        line = json.dumps({"question": question, "input": asked}).encode() + b"\n"
        until = inf if timeout_seconds is None else monotonic() + timeout_seconds
        with self._lock:
            try:
                # As a rule one that says nothing was asked in the moment in which it ended for want of questions.
                told = self._told(line, until, progress) or self._told(line, until, progress)
            except TimeoutError:
                self._end()
                raise WorkerFailed(f"took more than {timeout_seconds:.0f} s") from None
            except BaseException:
                self._end()
                raise
        told = told or {"failed": "no error message"}
        if reason := told.get("failed"):
            raise WorkerFailed(f"failed: {reason}", reason)
        return told["answer"]

    def _told(self, line: bytes, until: float, progress: Heard | None) -> dict[str, Any] | None:
        """Return its last line; None where it ended without one and without a fault. Raises TimeoutError and
        WorkerFailed."""
        child = self._running()
        child.write(line)
        for told in child.objects(until):
            if "progress" not in told:
                return told
            if progress:
                progress(told["progress"])
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(timeout=_ENDS_WITHIN_SECONDS)
        if child.is_cancelled:
            raise WorkerFailed("was cancelled", "cancelled", is_cancelled=True)
        # None for one that did not end: it is ended here, and not for its memory.
        if code := child.exit_code:
            reason, is_killed = child.failure, code == -signal.SIGKILL
            raise WorkerFailed(f"{'was' if is_killed else 'failed:'} {reason}", reason, is_killed=is_killed)
        self._end()
        return None

    def _running(self) -> Child:
        is_slow = self._has_little_priority and not self._gives_way
        # A process that was cancelled before this question may take a moment to end.
        if (child := self._child) and (is_slow or child.is_cancelled or child.exit_code is not None):
            self._end()
        if self._child is None:
            command, environment = _command(self._questions, self._sees_gpus)
            self._child = Child(command, environment, group="group", is_asked=True)
            self._has_little_priority = False
            _begun.add(self)
            self._set_priority()
        return self._child

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
        if self._gives_way and (child := self._child):
            self._has_little_priority = True
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, child.process.pid, _LEAST_PRIORITY)

    def close(self) -> None:
        """End it when it has answered."""
        with self._lock:
            self._end()

    def cancel(self) -> None:
        """End it also in the middle of a question, and without a wait; who waits for the answer gets WorkerFailed."""
        if child := self._child:
            child.is_cancelled = True
            child.kill()

    def forget(self) -> None:
        """In a fork: the process answers the one that began it, and its answers would go to whoever reads first."""
        if self._child:
            self._child.forget()
        self._child, self._lock = None, threading.Lock()

    def _end(self) -> None:
        child, self._child = self._child, None
        _begun.discard(self)
        if child:
            child.close()


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
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if not sees_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return [sys.executable, "-P", "-m", MODULE, *questions], environment
