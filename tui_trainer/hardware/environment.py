"""Environment of the program: the current folder, the user's folders, and variables that libraries read only once.

The variables are set when the program starts, so that they hold for the process and its child processes. A variable
that the user has set is not changed."""

import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tui_trainer.errors import InputError, Problem
from tui_trainer.files.local_paths import is_utf8, printable_path
from tui_trainer.terminal.safe_text import one_line

# `--data=`; options whose empty value removes something; commands whose argument is any text.
_NO_VALUE, _MAY_BE_EMPTY, _TAKES_TEXT = re.compile(r"--[a-z-]+="), ("--tags", "--note", "--system"), ("generate",)
# How threads of torch's CPU kernels wait for each other (in GNU's OpenMP). By default they spin, which is fastest on
# idle cores. If other processes need the cores it is slow: threads that spin keep a core from the thread that they wait
# for. Measured on two cores: a packed Llama of 5.5 M trains 1,585 tokens/s alone with 3,000 turns and 1,895 with GNU's
# default of 300,000; next to one busy process 800 and 605 (30,000 turns: 336). A step of the quickstart recipe takes
# 140 and 137 ms alone, and 340 and 3,465 ms next to one busy process.
_SPIN, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
_SPIN_COUNT, _TURNS_ALONE = "3000", "300000"
# Values with which cuBLAS is deterministic. Source: NVIDIA, cuBLAS, "Results Reproducibility". With any other value,
# torch refuses matmuls in its deterministic mode.
_WORKSPACE, _DETERMINISTIC = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
# By default CUDA numbers the fastest GPU first. The driver and `visible_gpus.py` number GPUs by PCI bus.
_ORDER = "CUDA_DEVICE_ORDER"
# oneDNN compiles a CPU kernel for each size of a matmul in 16 bits. It and torch each keep 1024 of them by default.
# Measured for a 256 x 256 layer in bf16 and 120 sizes: 259 MiB; 165 MiB if 192 are kept, and 63 MiB if 64 are. Source:
# oneDNN, "Primitive Cache"; torch's cache is that of its third_party/ideep.
KERNELS_KEPT = 256
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
_FOLDERS = (
    *("HOME", "TUI_TRAINER_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
)


def prepare_environment() -> None:
    """Set the variables that libraries read. Call this before torch is loaded."""
    if _WAIT_POLICY not in os.environ:
        os.environ.setdefault(_SPIN, _SPIN_COUNT)
    os.environ.setdefault(_WORKSPACE, _DETERMINISTIC[0])
    os.environ.setdefault(_ORDER, "PCI_BUS_ID")
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(KERNELS_KEPT))
    if not any(map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))):
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            # In a container the user may have no name, but torch names the folder of its compiler after the user.
            os.environ["LOGNAME"] = f"user-{os.getuid()}"


def is_spin_automatic() -> bool:
    """Return whether the program decides how long threads spin, because the user has not set it."""
    return _WAIT_POLICY not in os.environ and os.environ.get(_SPIN) == _SPIN_COUNT


@contextmanager
def threads_spinning(*, alone: bool) -> Iterator[None]:
    """Let threads spin longer if the run is `alone` on the cores. Load torch inside, here or in a child process."""
    sets_spinning = alone and is_spin_automatic()
    if sets_spinning:
        os.environ[_SPIN] = _TURNS_ALONE
    try:
        yield
    finally:
        if sets_spinning:
            os.environ[_SPIN] = _SPIN_COUNT


def check_environment(arguments: Sequence[str]) -> None:
    """Check the current folder, the arguments and the paths of the environment. Raises InputError.

    Refused are a deleted current folder, paths that are not UTF-8, arguments that are empty or contain NUL, and a
    missing home folder unless TUI_TRAINER_HOME is set, which then replaces it."""
    try:
        folder_row = ("the path of the current folder", str(Path.cwd()), "`cd` to another folder, or rename this one")
    except FileNotFoundError:
        message = "the current folder was deleted"
        raise InputError(message, hint="`cd` to another folder") from None
    variable_rows = [(option, os.environ.get(option, ""), "set it to another folder") for option in _FOLDERS]
    argument_rows = [("an argument", argument, "rename the file or folder") for argument in arguments]
    problems = [
        Problem(message=f"{option} is not UTF-8: {printable_path(text)}", hint=hint)
        for option, text, hint in [folder_row, *variable_rows, *argument_rows]
        if not is_utf8(text)
    ]
    if problems:
        raise InputError(problems)
    for previous_argument, argument in pairwise(("", *arguments)):
        option, is_empty = (argument[:-1], True) if _NO_VALUE.fullmatch(argument) else (previous_argument, not argument)
        subject = option if option.startswith("--") else "an argument"
        if is_empty and option not in _MAY_BE_EMPTY and (subject == option or arguments[0] not in _TAKES_TEXT):
            raise InputError(f"{subject} is empty", hint="omit it, or set the shell variable that should fill it")
        if "\0" in argument:
            raise InputError(f"{subject} has a NUL character: {one_line(argument, 60)}", hint="remove that character")
    try:
        Path.home()
    except RuntimeError:
        if not (home := os.environ.get("TUI_TRAINER_HOME")):
            message = f"there is no home folder: HOME is not set, and the system has no entry for user {os.getuid()}"
            hint = "set HOME or TUI_TRAINER_HOME to a writable folder"
            raise InputError(message, hint=hint) from None
        # Without HOME, libraries would create a folder named `~`.
        os.environ["HOME"] = home


def determinism_problems(environment: Mapping[str, str] = os.environ) -> list[Problem]:
    """Return why matmuls on a GPU are not deterministic in this process."""
    workspace = environment.get(_WORKSPACE, "")
    if workspace in _DETERMINISTIC:
        return []
    message = f"{_WORKSPACE} is {workspace!r} in the environment, so matmuls are not deterministic"
    hint = f"unset it, or set it to {_DETERMINISTIC[0]}, and restart the program"
    return [Problem(message=message, key="training.deterministic", hint=hint)]
