"""Questions that only torch can answer, asked of a child process: plans load no torch. Answers are kept on the disk."""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

from tui_trainer.errors import InputError
from tui_trainer.hardware.places import prepared_data_folder
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
    command, environment = _command(module, sees_gpus)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
        assert process.stdin is not None and process.stdout is not None
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
        errors.seek(0)
        _raise_for(process.returncode, errors.read())


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
        sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}")
    print(json.dumps(found))


def answer_place(folder: str, version: int, question: str) -> Path:
    """Where the answer to a question is kept: another file for another form of it, and for another transformers."""
    import xxhash

    digest = xxhash.xxh3_128(f"{version} {metadata.version('transformers')} {question}".encode()).hexdigest()
    return prepared_data_folder(os.environ) / folder / f"{digest}.json"


def keep_answer(place: Path, answer: str) -> None:
    """A cache that cannot be written costs seconds the next time, and nothing else."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
            file.write(answer)
        Path(file.name).replace(place)
