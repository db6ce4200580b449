"""Questions that only torch can answer, asked of a child process: plans load no torch."""

import atexit
import json
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Any

from tui_trainer.errors import InputError
from tui_trainer.safe_text import one_line


class ChildFailed(Exception):
    """Why there is no answer, as the end of a sentence whose subject is the child's work.

    `reason` is the child's own last word; empty when it took too long. `is_killed`: the system ended it, most often for
    its memory.
    """

    def __init__(self, message: str, reason: str = "", *, is_killed: bool = False) -> None:
        super().__init__(message)
        self.reason, self.is_killed = reason, is_killed


def ask_child(module: str, question: str, timeout_seconds: float, *, sees_gpus: bool = False) -> str:
    """What `python -m module` prints when it reads the question. No network and no GPU but with `sees_gpus`. Raises
    ChildFailed."""
    answering_child.close()
    command, environment = _command(module, sees_gpus)
    try:
        done = subprocess.run(
            command, input=question, env=environment, capture_output=True, text=True, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired:
        raise ChildFailed(f"took more than {timeout_seconds:.0f} s") from None
    _raise_for(done.returncode, done.stderr)
    return done.stdout


def hear_child(module: str, question: str, *, sees_gpus: bool = False) -> Iterator[dict[str, Any]]:
    """The same for a child that tells how far it is: each line that it prints, at once. Raises ChildFailed."""
    answering_child.close()
    command, environment = _command(module, sees_gpus)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        _heard.add(process)
        try:
            with process.stdin as stream:
                stream.write(question)
            with process.stdout as answers:
                yield from map(json.loads, answers)
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            _heard.discard(process)
        errors.seek(0)
        _raise_for(process.returncode, errors.read())


class AnsweringChild:
    """A process that answers one question after the other: only the first one waits until torch is loaded. It is begun
    with the first question, and ends when nobody has asked for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether an answer is waited for now."""
        return self._lock.locked()

    def ask(self, module: str, question: str, timeout_seconds: float) -> Any:
        """What `module.answer(question)` gives there; both are JSON. Raises ChildFailed."""
        with self._lock:
            line = self._hear(json.dumps({"module": module, "question": json.loads(question)}), timeout_seconds)
        return read_answer(line)

    def _hear(self, question: str, timeout_seconds: float) -> bytes:
        """The line that it answers with. One that has ended meanwhile is begun again."""
        for _ in range(2):
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(f"{question}\n".encode())
                process.stdin.flush()
            until, line = time.monotonic() + timeout_seconds, b""
            while not line.endswith(b"\n"):
                if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                    self._end(process)
                    raise ChildFailed(f"took more than {timeout_seconds:.0f} s")
                if not (more := os.read(process.stdout.fileno(), 1 << 16)):
                    break
                line += more
            else:
                return line
            # It says nothing more: as a rule it was asked in the moment in which it ended for want of questions. That
            # takes seconds on a busy machine, and one that is ended here was not ended for its memory.
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            code = process.poll()
            self._end(process)
            if code:
                break
        _raise_for(code or 1, "")
        raise AssertionError

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process and self._process.poll() is not None:
            self._end(self._process)
        if self._process is None:
            command, environment = _command("tui_trainer.models.answering", False)
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
            )
        return self._process

    def forget(self) -> None:
        """In a fork: the process answers the one that began it, and its answers would go to whoever reads first."""
        if self._process:
            self._process.returncode = 0
        self._process, self._lock = None, threading.Lock()

    def close(self) -> None:
        """End it when it has answered: what comes next may need its memory."""
        with self._lock:
            self.kill()

    def kill(self) -> None:
        if self._process:
            self._end(self._process)

    def end_at_once(self) -> None:
        """Also in the middle of a question, and without a wait: there is nobody any more who would hear the answer."""
        if process := self._process:
            process.kill()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        with process:  # closes its pipes, and waits
            self._process = None


def read_answer(line: str | bytes) -> Any:
    """What an `AnsweringChild` wrote. Raises ChildFailed."""
    told = json.loads(line)
    if "failed" in told:
        raise ChildFailed(f"ended with: {told['failed']}", told["failed"])
    return told["answer"]


def end_children() -> None:
    """Those that are asked now, whoever waits for them."""
    answering_child.end_at_once()
    for process in list(_heard):
        process.kill()


answering_child = AnsweringChild()
_heard: set[subprocess.Popen[str]] = set()
"""Children that tell how far they are."""
atexit.register(end_children)
os.register_at_fork(after_in_child=answering_child.forget)
os.register_at_fork(after_in_child=_heard.clear)


def _command(module: str, sees_gpus: bool) -> tuple[list[str], dict[str, str]]:
    """With its environment. -P: a torch.py in the folder that the user stands in is not ours."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"} | ({} if sees_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    return [sys.executable, "-P", "-m", module], environment


def _raise_for(code: int, errors: str) -> None:
    if code == -signal.SIGKILL:
        reason = "killed, as happens where memory is short"
        raise ChildFailed(f"was {reason}", reason, is_killed=True)
    if code:
        reason = one_line((errors.strip().splitlines() or ["no reason given"])[-1], 200)
        raise ChildFailed(f"ended with: {reason}", reason)


def answer_question(answer: Callable[[dict[str, Any]], Any]) -> None:
    """The child's side of `ask_child`: the question from standard input, the answer to standard output, both JSON. What
    went wrong is its last word."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        # Libraries tell their own steps there.
        with redirect_stdout(StringIO()):
            found = answer(json.loads(sys.stdin.read()))
    except InputError as error:
        sys.exit(str(error))
    except Exception as error:  # whatever torch, a model or the libraries of a format raise
        sys.exit(failure_words(error))
    print(json.dumps(found))


def failure_words(error: Exception) -> str:
    """Its kind and its first line."""
    return one_line(f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}", 200)
