"""The worker's side: read questions, answer them, and end when there are no more."""

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

# An idle worker holds several hundred megabytes of torch and transformers.
_PATIENCE_SECONDS = 30.0
_REASON_CHARACTERS = 200


def answer_questions(names: Sequence[str]) -> None:
    """Answer questions with these names until the input ends, or until 30 seconds pass without a question.

    A question is the line `{"question": NAME, "input": INPUT}`. The reply is any number of lines `{"progress": {...}}`,
    and then a line `{"answer": ANSWER}` or `{"failed": REASON}`.
    """
    if unknown_names := [name for name in names if name not in QUESTIONS] or not names:
        usage = f"usage: python -m tui_trainer.worker QUESTION...; questions: {', '.join(QUESTIONS)}"
        sys.exit(f"{usage}; got {unknown_names}")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    # Libraries, also those in C, must not print between the answers.
    _worker.answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # If child processes inherited the socket, the asking program would wait for them too.
    questions = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_the_program, daemon=True).start()
    while select.select([questions], [], [], _PATIENCE_SECONDS)[0] and (line := questions.readline()):
        _worker.line = line
        _write(**_answer(json.loads(line), names))


class _Worker:
    """State of the worker: the pipe to the asking program, and the line of the present question."""

    answers: TextIO
    line = ""


_worker = _Worker()


def _write(**fields: Any) -> None:
    print(json.dumps(fields), file=_worker.answers, flush=True)


def _answer(question: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    try:
        name = question["question"]
        if name not in names:
            raise InputError(f"this worker answers the questions {', '.join(names)}, but not {one_line(name, 40)!r}")
        module_name, _, function_name = QUESTIONS[name].partition(":")
        answer = getattr(import_module(module_name), function_name)
        return {"answer": answer(question["input"], lambda **figures: _write(progress=figures))}
    except Exception as error:  # torch, a model, its config or an export library may raise anything
        return {"failed": _reason(error)}


def _reason(error: Exception) -> str:
    """Return the first line of the error's message. For an error that is not meant for users, add the class name."""
    first_line = (str(error).strip().splitlines() or ["no message"])[0]
    is_sentence = isinstance(error, InputError) or type(error) is ValueError
    return one_line(first_line if is_sentence else f"{type(error).__name__}: {first_line}", _REASON_CHARACTERS)


def restart_worker(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the worker `command` with additional variables, and pass it the present question."""
    question_fd = os.memfd_create("question")
    os.write(question_fd, _worker.line.encode())
    os.lseek(question_fd, 0, os.SEEK_SET)
    os.dup2(question_fd, 0)
    os.dup2(_worker.answers.fileno(), 1)
    os.execve(command[0], [*command, json.loads(_worker.line)["question"]], os.environ | environment)


def _end_with_the_program() -> None:
    """Kill this process and its children once the asking program has ended, because nobody needs the answer."""
    wait_for_hang_up(_worker.answers.fileno())
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_hang_up(fd: int) -> None:
    """Return once all processes that hold the other end of a socket have closed it or ended."""
    hang_up = select.poll()
    hang_up.register(fd, 0)
    while not hang_up.poll():
        pass
