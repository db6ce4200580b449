"""What is installed: the environment of its own in which Unsloth trains; extras and libraries into this program's."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

from tui_trainer.errors import FolderError, InputError, RunError, name_hint, system_reason
from tui_trainer.exporting.contract import all_formats
from tui_trainer.hardware.libraries import LIBRARIES
from tui_trainer.models.unsloth import NAME, environment_folder, environment_python, record_installation, requirements
from tui_trainer.tracking.contract import tracker_names
from tui_trainer.worker.child import Child

SIZE_GIB = 6.1
"""Of unsloth 2026.10 with torch 2.14 and its CUDA libraries."""
_VERSION = f"from importlib.metadata import version; print(version({NAME!r}))"


def commands(folder: Path) -> list[list[str]]:
    """What makes the environment in `folder`. Raises InputError where there is no uv."""
    if shutil.which("uv") is None:
        raise InputError("uv, which creates environments, is not installed", hint="install it: pip install uv")
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
        record_installation(new, version)
        shutil.rmtree(old, ignore_errors=True)
        with suppress(FileNotFoundError):
            folder.rename(old)
        new.rename(folder)
    except OSError as error:
        raise FolderError(f"{new} could not be created: {system_reason(error)}") from None
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    return version


def _run(command: list[str]) -> str:
    """What it prints. Raises RunError."""
    with Child(command, group="ours", errors=2) as child:
        printed = b"\n".join(child.all_lines()).decode(errors="replace")
        if child.process.wait():
            raise RunError(f"`{Path(command[0]).name} {command[1]}` failed ({child.failure})")
    return printed.strip()


_PROGRAM = "tui-trainer"


def extras() -> dict[str, list[str]]:
    """Return the extras of this program, each with what it requires here; {} for a checkout that is not installed."""
    from packaging.requirements import Requirement

    found: dict[str, list[str]] = {}
    try:
        requires = metadata.requires(_PROGRAM) or []
    except metadata.PackageNotFoundError:
        return {}
    for text in requires:
        required, named = text.partition(";")[0].strip(), Requirement(text)
        for extra in metadata.metadata(_PROGRAM).get_all("Provides-Extra") or []:
            if named.marker and named.marker.evaluate({"extra": extra}) and not named.marker.evaluate({"extra": ""}):
                found.setdefault(extra, []).append(required)
    return found


def installation(names: Sequence[str]) -> list[str]:
    """The command that installs extras and libraries into the environment of this program. Raises InputError for a name
    that nothing here asks for, and where no installer is there: then its hint is the command."""
    from packaging.requirements import Requirement

    found = extras()
    of_formats = (library for one in all_formats() for library in one.libraries)
    known = {one: [one] for one in (*LIBRARIES, *tracker_names(), *of_formats)}
    known |= {Requirement(one).name: [one] for required in found.values() for one in required} | found
    wanted: dict[str, None] = {}
    for name in names:
        if name not in known:
            message = f"there is no package named {name[:40]!r} to install"
            raise InputError(message, hint=name_hint(name, [NAME, *found, *known]) or f"extras: {', '.join(found)}")
        wanted |= dict.fromkeys(known[name])
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", sys.executable, *wanted]
    pip = [sys.executable, "-m", "pip", "install", *wanted]
    if util.find_spec("pip") is None:
        raise InputError("neither uv nor pip is installed", hint=f"install pip, then run {shlex.join(pip)}")
    return pip


def install_here(command: Sequence[str], told: Callable[[str], None]) -> list[str]:
    """Run what `installation` gives; every line of it is told. Raises RunError."""
    last_text = ""
    with Child(command, group="ours", errors=subprocess.STDOUT) as installer:
        for line in installer.all_lines():
            if text := line.decode(errors="replace").strip():
                last_text = text
                told(text)
        if code := installer.process.wait():
            # uv writes its errors indented, which are no last words of other programs.
            reason = last_text if code > 0 and last_text else installer.failure
            raise RunError(f"`{shlex.join(command[:3])}` failed: {reason}")
    return [f"installed with {shlex.join(command)}"]
