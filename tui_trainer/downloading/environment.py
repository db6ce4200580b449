"""The environment of its own in which Unsloth trains, made by uv."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tui_trainer.errors import FolderError, InputError, RunError, system_reason
from tui_trainer.models.unsloth import NAME, environment_folder, environment_python, mark_made, requirements

SIZE_GIB = 6.1
"""Of unsloth 2026.10 with torch 2.14 and its CUDA libraries."""
_VERSION = f"from importlib.metadata import version; print(version({NAME!r}))"


def commands(folder: Path) -> list[list[str]]:
    """What makes the environment in `folder`. Raises InputError where there is no uv."""
    if shutil.which("uv") is None:
        raise InputError("uv, which makes environments, is not installed", hint="install it: pip install uv")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        # Its scripts find it after it has got its final name.
        ["uv", "venv", "--relocatable", "--python", python, str(folder)],
        ["uv", "pip", "install", "--python", str(environment_python(folder)), *requirements()],
    ]


def make_environment(told: Callable[[str], None]) -> str:
    """Make it anew; the version of Unsloth in it. What uv says goes to standard error.

    Raises InputError, FolderError, RunError; an environment that was there before then still is.
    """
    folder = environment_folder()
    new, old = (folder.with_name(f"{folder.name}.{word}") for word in ("new", "old"))
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        for command in commands(new):
            told(shlex.join(command))
            _run(command)
        version = _run([str(environment_python(new)), "-c", _VERSION])
        mark_made(new, version)
        shutil.rmtree(old, ignore_errors=True)
        with suppress(FileNotFoundError):
            folder.rename(old)
        new.rename(folder)
    except OSError as error:
        raise FolderError(f"{new} cannot be made: {system_reason(error)}") from None
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    return version


def _run(command: list[str]) -> str:
    """What it prints. Raises RunError."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunError(f"`{Path(command[0]).name} {command[1]}` has failed (exit code {done.returncode})")
    return done.stdout.strip()
