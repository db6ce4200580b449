"""The errors of this program, sorted by whose mistake they are.

    TuiTrainerError
    |-- InputError          the user's input is wrong: config, data, arguments, folders (exit code 2)
    |   |-- ConfigError     a setting, a profile or a config file
    |   |-- DataError       a file or a row that is trained on
    |   `-- FolderError     a run folder or a place to write to
    `-- RunError            a run could not continue (exit code 1)
        |-- GroupOutOfMemory
        |                   memory ran out in one of several processes that train together
        `-- CheckpointError a checkpoint is damaged or does not belong to this run

Mistakes in the input are collected as `Problem`s and shown together, one line each. No traceback reaches a user
for a mistake of theirs."""

import copyreg
import errno
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 3
_FULL_DISK = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota of this account is used up"}
EXIT_CODES = {
    EXIT_DONE: "Done.",
    EXIT_FAILED: "Failed: a run that could not continue, a failed check, an export that differs too much.",
    EXIT_BAD_INPUT: "Wrong input: an argument, a setting, data or a folder; nothing was started.",
    EXIT_STOPPED: "Stopped on request: a run that was saved, a measurement with partial results, a declined offer.",
}
_FEW_NAMES = 12
_MOST_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One mistake: where it is, what is wrong, and what the user can do.

    `where` is a file (and line), `key` a setting such as `training.learning_rate`, `excerpt` the beginning of the data
    row; each may be empty. `suggested` has the settings and values that the hint recommends."""

    message: str
    where: str = ""
    key: str = ""
    hint: str = ""
    excerpt: str = ""
    suggested: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        sentence = f"{place}: {self.message}" if place else self.message
        return "; ".join(part for part in (sentence, self.hint, self.excerpt and f"the row: {self.excerpt}") if part)


def name_hint(name: str, known: Collection[str]) -> str:
    """Return a hint for a name that is not in `known`.

    The hint lists the known names that contain `name`, else the most similar names, or all names if they are few."""
    similar = [other for other in known if name and name in other][:_MOST_SHOWN] or get_close_matches(name, known, n=1)
    if similar or len(known) <= _FEW_NAMES:
        return f"did you mean {' or '.join(similar)}?" if similar else "available: " + ", ".join(known)
    return f"the closest of {len(known)} names: " + ", ".join(get_close_matches(name, known, n=3, cutoff=0.0))


def full_disk_words(error: BaseException) -> str:
    """Return `the disk is full`, or a similar text about a quota, if an error has this cause; else an empty text.

    Errors of libraries in Rust have no `errno`, so they are recognised by their text."""
    code, text = getattr(error, "errno", None), str(error)
    return next((words for number, words in _FULL_DISK.items() if code == number or os.strerror(number) in text), "")


def system_reason(error: BaseException) -> str:
    """Return the reason for an OSError: `Permission denied`, `the disk is full (No space left on device)`.

    For an error of another kind, return its text, or the name of its class if it has no text."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    full_disk_text = full_disk_words(error)
    return f"{full_disk_text} ({reason})" if full_disk_text else reason


def room_hint(error: BaseException, folder: str | os.PathLike[str]) -> str:
    """Return a hint for the user if this program could not write one of its own files to `folder`."""
    folder_hint = "set TUI_TRAINER_HOME to a writable folder"
    if not full_disk_words(error):
        return folder_hint
    try:
        free_text = f" ({shutil.disk_usage(folder).free:,} bytes are left)"
    except OSError:
        free_text = ""
    return f"free some disk space{free_text}, or {folder_hint}"


class TuiTrainerError(Exception):
    """The base class of all errors that this program raises on purpose."""


class InputError(TuiTrainerError):
    """One or several mistakes of the user. `problems` is never empty."""

    def __init__(self, problems: Problem | str | Iterable[Problem], *, hint: str = "", where: str = "") -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems, hint=hint, where=where)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the problems too, so that another process receives them and not only the message."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ConfigError(InputError):
    """A mistake in a setting, a profile or a config file."""


class DataError(InputError):
    """A mistake in a data file or a row."""


class FolderError(InputError):
    """A mistake that concerns a run folder or a place to write to."""


class RunError(TuiTrainerError):
    """Raised if a run could not continue. The message says what was saved and what to try."""


class GroupOutOfMemory(RunError):
    """Out of memory in one of several processes that train together; all of them have to start again."""


class CheckpointError(RunError):
    """A checkpoint that is damaged, incomplete, or belongs to another run."""
