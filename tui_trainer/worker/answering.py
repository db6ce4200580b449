"""The worker's side: reads questions, answers them, ends when nobody asks any more."""

import json
import logging
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn, TextIO

from tui_trainer.errors import InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.questions import QUESTIONS

# torch and transformers hold some hundred megabytes.
_PATIENCE_SECONDS = 30.0
_REASON_CHARACTERS = 200


def answer_questions(names: Sequence[str]) -> None:
    """Answer questions of these names until the input ends, or none has come for a while.

    A line is `{"question": NAME, "input": INPUT}`; answers are lines as well: any number of `{"progress": {...}}`, then
    `{"answer": ANSWER}` or `{"failed": REASON}`.
    """
    if unknown := [name for name in names if name not in QUESTIONS] or not names:
        sys.exit(f"usage: python -m tui_trainer.worker QUESTION...; questions: {', '.join(QUESTIONS)}; got {unknown}")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    # What libraries print is no answer, in whatever language they are written.
    _worker.answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Processes that it starts must not hold the socket: the one that asks would wait for them as well.
    questions = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_the_program, daemon=True).start()
    while select.select([questions], [], [], _PATIENCE_SECONDS)[0] and (line := questions.readline()):
        _worker.line = line
        _tell(**_answer(json.loads(line), names))


class _Worker:
    """The pipe to the asking program, and the question that is being answered."""

    answers: TextIO
    line = ""


_worker = _Worker()


def _tell(**told: Any) -> None:
    print(json.dumps(told), file=_worker.answers, flush=True)


def _answer(asked: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    try:
        name = asked["question"]
        if name not in names:
            raise InputError(f"this worker answers {', '.join(names)}, not {one_line(name, 40)!r}")
        module, _, function = QUESTIONS[name].partition(":")
        answer = getattr(import_module(module), function)
        return {"answer": answer(asked["input"], lambda **figures: _tell(progress=figures))}
    except Exception as error:  # whatever torch, a model, its config or the libraries of a format raise
        return {"failed": _reason(error)}


def _reason(error: Exception) -> str:
    """Its first line, with its kind unless that is for people already."""
    words = (str(error).strip().splitlines() or ["no message"])[0]
    is_sentence = isinstance(error, InputError) or type(error) is ValueError
    return one_line(words if is_sentence else f"{type(error).__name__}: {words}", _REASON_CHARACTERS)


def begin_anew(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the worker that `command` starts with these variables as well; it is asked the same
    question."""
    asked = os.memfd_create("question")
    os.write(asked, _worker.line.encode())
    os.lseek(asked, 0, os.SEEK_SET)
    os.dup2(asked, 0)
    os.dup2(_worker.answers.fileno(), 1)
    os.execve(command[0], [*command, json.loads(_worker.line)["question"]], os.environ | environment)


def _end_with_the_program() -> None:
    """End this process and all that it has started as soon as the one that asks is gone: nobody reads the answer."""
    wait_for_hang_up(_worker.answers.fileno())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_hang_up(fd: int) -> None:
    """Return once all who hold the other end of a socket have closed it, or have ended."""
    hang_up = select.poll()
    hang_up.register(fd, 0)
    while not hang_up.poll():
        pass
