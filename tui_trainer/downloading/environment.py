"""Installing software: Unsloth in a separate environment, extras and libraries in the environment of this program."""

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
from tui_trainer.models import unsloth
from tui_trainer.tracking.contract import tracker_names
from tui_trainer.worker.child import Child

SIZE_GIB = 6.1
"""Size of unsloth 2026.10 with torch 2.14 and its CUDA libraries."""
_VERSION = f"from importlib.metadata import version; print(version({unsloth.PACKAGE_NAME!r}))"


def creation_commands(folder: Path) -> list[list[str]]:
    """Return the commands that create Unsloth's environment in `folder`. Raises InputError if uv is missing."""
    if shutil.which("uv") is None:
        raise InputError("uv, which creates environments, is not installed", hint="run `pip install uv`")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        # The scripts still work after the folder was renamed.
        ["uv", "venv", "--relocatable", "--python", python, str(folder)],
        ["uv", "pip", "install", "--python", str(unsloth.environment_python(folder)), *unsloth.requirements()],
    ]


def make_environment(tell: Callable[[str], None]) -> str:
    """Create Unsloth's environment anew, and return the version of Unsloth. Output of uv goes to standard error.

    Raises InputError, FolderError or RunError, and then keeps an earlier environment."""
    folder = unsloth.environment_folder()
    new_folder, old_folder = (folder.with_name(f"{folder.name}.{word}") for word in ("new", "old"))
    try:
        new_folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new_folder, ignore_errors=True)
        for command in creation_commands(new_folder):
            tell(shlex.join(command))
            _run(command)
        version = _run([str(unsloth.environment_python(new_folder)), "-c", _VERSION])
        unsloth.record_installation(new_folder, version)
        shutil.rmtree(old_folder, ignore_errors=True)
        with suppress(FileNotFoundError):
            folder.rename(old_folder)
        new_folder.rename(folder)
    except OSError as error:
        raise FolderError(f"{new_folder} could not be created: {system_reason(error)}") from None
    finally:
        for folder_left in (new_folder, old_folder):
            shutil.rmtree(folder_left, ignore_errors=True)
    return version


def _run(command: list[str]) -> str:
    """Run a command and return its output. Raises RunError if the command fails."""
    with Child(command, group="ours", errors=2) as child:
        output = b"\n".join(child.all_lines()).decode(errors="replace")
        if child.process.wait():
            raise RunError(f"`{Path(command[0]).name} {command[1]}` failed ({child.failure})")
    return output.strip()


_PROGRAM = "tui-trainer"


def extras() -> dict[str, list[str]]:
    """Return the requirements of each extra of this program that apply here; {} if the program is not installed."""
    from packaging.requirements import Requirement

    requirements: dict[str, list[str]] = {}
    try:
        requirement_texts = metadata.requires(_PROGRAM) or []
    except metadata.PackageNotFoundError:
        return {}
    for text in requirement_texts:
        package, marker = text.partition(";")[0].strip(), Requirement(text).marker
        for extra in metadata.metadata(_PROGRAM).get_all("Provides-Extra") or []:
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                requirements.setdefault(extra, []).append(package)
    return requirements


def installable_names() -> list[str]:
    """Return the names to offer to a user: export formats that miss a library, extras of this program, and unsloth."""
    formats = [item.name for item in all_formats() if not all(util.find_spec(name) for name in item.libraries)]
    return sorted({*formats, *extras(), unsloth.PACKAGE_NAME})


def install_command(names: Sequence[str]) -> list[str]:
    """Return the command that installs extras and libraries into the environment of this program. Raises InputError for
    an unknown name, and, with the command as its hint, if neither uv nor pip is installed."""
    from packaging.requirements import Requirement

    by_extra = extras()
    format_libraries = (library for item in all_formats() for library in item.libraries)
    packages = {item: [item] for item in (*LIBRARIES, *tracker_names(), *format_libraries)}
    packages |= {Requirement(item).name: [item] for texts in by_extra.values() for item in texts}
    formats = all_formats()
    packages |= {item.name: [text for library in item.libraries for text in packages[library]] for item in formats}
    packages |= by_extra
    requirements: dict[str, None] = {}
    for name in names:
        if name not in packages:
            message = f"there is no package named {name[:40]!r} to install"
            hint = (
                name_hint(name, [unsloth.PACKAGE_NAME, *by_extra, *packages])
                or f"there are: {', '.join(installable_names())}"
            )
            raise InputError(message, hint=hint)
        requirements |= dict.fromkeys(packages[name])
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", sys.executable, *requirements]
    pip = [sys.executable, "-m", "pip", "install", *requirements]
    if util.find_spec("pip") is None:
        raise InputError("neither uv nor pip is installed", hint=f"install pip, then run {shlex.join(pip)}")
    return pip


def install_here(command: Sequence[str], tell: Callable[[str], None]) -> list[str]:
    """Run a command of `install_command`. Report and return the lines of its output. Raises RunError."""
    last_text = ""
    with Child(command, group="ours", errors=subprocess.STDOUT) as installer:
        for line in installer.all_lines():
            if text := line.decode(errors="replace").strip():
                last_text = text
                tell(text)
        if code := installer.process.wait():
            # uv indents its errors, which `failure` therefore does not recognize as the reason.
            reason = last_text if code > 0 and last_text else installer.failure
            raise RunError(f"`{shlex.join(command[:3])}` failed: {reason}")
    return [f"installed with {shlex.join(command)}"]
