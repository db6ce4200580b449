"""What the program is started with: its folder, the folders of its user, and what libraries read from the environment
once, when they are loaded or first used.

The program sets it when it starts, so it holds for every run of the process and for child processes. What the user has
set stays.
"""

import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tui_trainer.errors import InputError, Problem
from tui_trainer.files.local_paths import as_bytes, is_utf8
from tui_trainer.terminal.safe_text import one_line

# `--data=`, the options of which an empty text takes something away, and the commands that go on from any text.
_NO_VALUE, _MAY_BE_EMPTY, _TAKES_TEXT = re.compile(r"--[a-z-]+="), ("--tags", "--note", "--system"), ("generate",)
# How the threads of torch's CPU kernels wait for one another (GNU's OpenMP, which torch brings). By default they spin,
# which is fastest while nobody else wants the cores, and slow as soon as somebody does: a thread that has lost its core
# is waited for by one that burns the other. Measured on two cores: a packed Llama of 5.5 M trains 1,585 tokens a second
# alone with 3,000 turns, 1,895 with GNU's own 300,000; beside one busy process 800 and 605 (30,000 turns: 336). A step
# of the quickstart recipe takes 140 and 137 ms alone, 340 and 3,465 beside one busy process.
_SPIN, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
_TURNS, _TURNS_ALONE = "3000", "300000"
# The values with which cuBLAS gives the same bits each time. Source: NVIDIA, cuBLAS, "Results Reproducibility"; torch
# refuses matmuls in its deterministic mode with any other.
_WORKSPACE, _DETERMINISTIC = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
# CUDA counts the fastest card first, the driver by PCI bus, as `visible_gpus.py` reads bare numbers.
_ORDER = "CUDA_DEVICE_ORDER"
# oneDNN compiles a kernel for each size of a matmul in 16 bits on a CPU, and it and torch keep 1024 of them each. A
# 256 x 256 layer in bf16 with passes of 120 sizes: 259 MiB, with 192 kept 165 MiB, with 64 kept 63 MiB. Source: oneDNN,
# "Primitive Cache"; torch's is that of its third_party/ideep.
KERNELS_KEPT = 256
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_FOLDERS = (
    *("HOME", "TUI_TRAINER_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
)


def prepare_environment() -> None:
    """To be called before torch is loaded."""
    if _WAIT_POLICY not in os.environ:
        os.environ.setdefault(_SPIN, _TURNS)
    os.environ.setdefault(_WORKSPACE, _DETERMINISTIC[0])
    os.environ.setdefault(_ORDER, "PCI_BUS_ID")
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(KERNELS_KEPT))
    if not any(map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))):
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            # In a container the system may not know the user, after whom torch names the folder of its compiler.
            os.environ["LOGNAME"] = f"user-{os.getuid()}"


def spins_by_load() -> bool:
    """Return whether the program decides how long threads spin: the user has set nothing else."""
    return _WAIT_POLICY not in os.environ and os.environ.get(_SPIN) == _TURNS


@contextmanager
def threads_spinning(*, alone: bool) -> Iterator[None]:
    """Let threads spin longer if torch is loaded inside the block, here or in a child process, and the run is `alone`
    on the cores."""
    decides = alone and spins_by_load()
    if decides:
        os.environ[_SPIN] = _TURNS_ALONE
    try:
        yield
    finally:
        if decides:
            os.environ[_SPIN] = _TURNS


def check_environment(arguments: Sequence[str]) -> None:
    """Raises InputError for a working folder that was deleted, for arguments that are empty or no text, for paths that
    are not UTF-8, and where there is no home folder. Without one, TUI_TRAINER_HOME stands for it."""
    try:
        here = ("the path of the current folder", str(Path.cwd()), "`cd` to another folder, or rename this one")
    except FileNotFoundError:
        message = "the current folder was deleted"
        raise InputError(message, hint="`cd` to another folder") from None
    variables = [(name, os.environ.get(name, ""), "set it to another folder") for name in _FOLDERS]
    words = [("an argument", word, "rename the file or folder") for word in arguments]
    problems = [
        Problem(message=f"{what} is not UTF-8: {as_bytes(path)}", hint=hint)
        for what, path, hint in [here, *variables, *words]
        if not is_utf8(path)
    ]
    if problems:
        raise InputError(problems)
    for before, word in pairwise(("", *arguments)):
        name, is_empty = (word[:-1], True) if _NO_VALUE.fullmatch(word) else (before, not word)
        what = name if name.startswith("--") else "an argument"
        if is_empty and name not in _MAY_BE_EMPTY and (what == name or arguments[0] not in _TAKES_TEXT):
            raise InputError(f"{what} is empty", hint="omit it, or set the shell variable that should fill it")
        if "\0" in word:
            raise InputError(f"{what} has a NUL character: {one_line(word, 60)}", hint="remove that character")
    try:
        Path.home()
    except RuntimeError:
        if not (home := os.environ.get("TUI_TRAINER_HOME")):
            message = f"there is no home folder: HOME is not set, and the system has no entry for user {os.getuid()}"
            hint = "set HOME or TUI_TRAINER_HOME to a writable folder"
            raise InputError(message, hint=hint) from None
        # Libraries would make a folder of the name `~`.
        os.environ["HOME"] = home


def determinism_problems(environment: Mapping[str, str] = os.environ) -> list[Problem]:
    """Why a GPU cannot compute the same bits each time in this process."""
    value = environment.get(_WORKSPACE, "")
    if value in _DETERMINISTIC:
        return []
    message = f"{_WORKSPACE} is {value!r} in the environment, so matmuls are not deterministic"
    hint = f"unset it, or set it to {_DETERMINISTIC[0]}, and restart the program"
    return [Problem(message=message, key="training.deterministic", hint=hint)]
