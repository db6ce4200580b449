"""The program's side: ask a worker, wait within a time limit, cancel, and report why there was no answer."""

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

# Ending a process can take seconds on a busy machine.
_ENDS_WITHIN_SECONDS = 5.0
_LEAST_PRIORITY = 19

OnProgress = Callable[[dict[str, Any]], None]


class WorkerFailed(Exception):
    """A worker gave no answer. The message continues a sentence about the question, such as `took more than 5 s`.

    `reason` is what the worker reported, or empty after a timeout. `is_killed`: the system killed the worker, usually
    because memory ran out. `is_cancelled`: this program ended it, so the question remains open.
    """

    def __init__(self, message: str, reason: str = "", *, is_killed: bool = False, is_cancelled: bool = False) -> None:
        super().__init__(message)
        self.reason, self.is_killed, self.is_cancelled = reason, is_killed, is_cancelled


def ask(
    question: str,
    content: Any,
    *,
    timeout_seconds: float | None = None,
    sees_gpus: bool = False,
    progress: OnProgress | None = None,
) -> Any:
    """Ask a new process one question about `content`, and return its answer. Content and answer are JSON.

    The process has no network, and no GPU unless it `sees_gpus`. `progress` gets its progress reports; an exception
    raised there ends the worker. This blocks, so do not call it on the screens' thread. Raises WorkerFailed.
    """
    # Free the memory of the idle worker for the new process.
    shapes_worker.close()
    with closing(Worker(question, sees_gpus=sees_gpus)) as worker:
        return worker.ask(question, content, timeout_seconds=timeout_seconds, progress=progress)


class Worker:
    """A process that answers several questions in turn, so that its libraries are loaded only once.

    The process starts with the first question, and ends after a while without questions.
    """

    def __init__(self, *questions: str, sees_gpus: bool = False) -> None:
        self._questions, self._sees_gpus = questions, sees_gpus
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._gives_way = self._has_little_priority = False

    @property
    def is_asked(self) -> bool:
        """Whether a question is being answered now."""
        return self._lock.locked()

    def ask(
        self, question: str, content: Any, *, timeout_seconds: float | None = None, progress: OnProgress | None = None
    ) -> Any:
        """Ask a question about `content`, and return the answer. Both are JSON. Raises WorkerFailed."""
        _refuse_the_thread_of_an_event_loop()
        question_line = json.dumps({"question": question, "input": content}).encode() + b"\n"
        deadline = inf if timeout_seconds is None else monotonic() + timeout_seconds
        with self._lock:
            try:
                # An idle worker may end just when it is asked, and gives no reply. The question is then asked again.
                reply = self._reply(question_line, deadline, progress) or self._reply(question_line, deadline, progress)
            except TimeoutError:
                self._end()
                raise WorkerFailed(f"took more than {timeout_seconds:.0f} s") from None
            except BaseException:
                self._end()
                raise
        reply = reply or {"failed": "no error message"}
        if reason := reply.get("failed"):
            raise WorkerFailed(f"failed: {reason}", reason)
        return reply["answer"]

    def _reply(self, line: bytes, until: float, progress: OnProgress | None) -> dict[str, Any] | None:
        """Return the worker's reply; None if the worker ended with exit code 0 without a reply.

        Raises TimeoutError and WorkerFailed.
        """
        child = self._running()
        child.write(line)
        for reply in child.read_objects(until):
            if "progress" not in reply:
                return reply
            if progress:
                progress(reply["progress"])
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(timeout=_ENDS_WITHIN_SECONDS)
        if child.is_cancelled:
            raise WorkerFailed("was cancelled", "cancelled", is_cancelled=True)
        # A process that still runs has no exit code. It is ended below.
        if exit_code := child.exit_code:
            reason, is_killed = child.failure, exit_code == -signal.SIGKILL
            raise WorkerFailed(f"{'was' if is_killed else 'failed:'} {reason}", reason, is_killed=is_killed)
        self._end()
        return None

    def _running(self) -> Child:
        is_slow = self._has_little_priority and not self._gives_way
        # A process that was cancelled earlier may take a moment to end.
        if (child := self._child) and (is_slow or child.is_cancelled or child.exit_code is not None):
            self._end()
        if self._child is None:
            command, environment = _command(self._questions, self._sees_gpus)
            self._child = Child(command, environment, group="group", is_asked=True)
            self._has_little_priority = False
            _running_workers.add(self)
            self._set_priority()
        return self._child

    @contextmanager
    def lowest_priority(self) -> Iterator[None]:
        """Run the worker at the lowest priority within the block, so that it does not slow down training."""
        self._gives_way = True
        self._set_priority()
        try:
            yield
        finally:
            self._gives_way = False

    def _set_priority(self) -> None:
        """Lower the priority if needed. It cannot be raised again, so a later question needs a new process."""
        if self._gives_way and (child := self._child):
            self._has_little_priority = True
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, child.process.pid, _LEAST_PRIORITY)

    def close(self) -> None:
        """End the process once it has answered the present question."""
        with self._lock:
            self._end()

    def cancel(self) -> None:
        """Kill the process without waiting. The thread that waits for its answer gets WorkerFailed."""
        if child := self._child:
            child.is_cancelled = True
            child.kill()

    def forget(self) -> None:
        """Drop the process after a fork: it belongs to the parent, and its answers must not be read here."""
        if self._child:
            self._child.forget()
        self._child, self._lock = None, threading.Lock()

    def _end(self) -> None:
        child, self._child = self._child, None
        _running_workers.discard(self)
        if child:
            child.close()


def end_workers() -> None:
    """Cancel all running workers."""
    for worker in list(_running_workers):
        worker.cancel()


def _forget_workers() -> None:
    for worker in [*_running_workers, shapes_worker]:
        worker.forget()
    _running_workers.clear()


shapes_worker = Worker(*OF_SHAPES)
_running_workers: set[Worker] = set()
atexit.register(end_workers)
os.register_at_fork(after_in_child=_forget_workers)


def _refuse_the_thread_of_an_event_loop() -> None:
    """Raise AssertionError on a thread with an event loop, because the screens would freeze while it waits."""
    if asyncio := sys.modules.get("asyncio"):
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError("a question to a worker blocks its thread: ask it on a thread without an event loop")


def _command(questions: tuple[str, ...], sees_gpus: bool) -> tuple[list[str], dict[str, str]]:
    """Return the command of a worker and its environment. `-P`: do not import a `torch.py` of the current folder."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if not sees_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return [sys.executable, "-P", "-m", MODULE, *questions], environment
