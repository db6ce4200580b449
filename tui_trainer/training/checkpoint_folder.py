"""Checkpoints as folders that are there whole or not at all. No torch here: a start looks for one before it loads any.

A checkpoint is written into `.writing-step-N`, by one process or several. Every file at any depth is synced and hashed
by the one that wrote it, the manifest comes last by rename, and then the folder gets its name. It is removed the other
way round: first the name, then the files. So a kill at any moment leaves only whole checkpoints and folders whose names
begin with a dot, which the next start clears away.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from tui_trainer.errors import CheckpointError, system_reason
from tui_trainer.runs.folder import files_below, make_durable, make_file_durable, sync_folder, write_atomically

MANIFEST = "manifest.json"
FORMAT = 2
POSITION, PLAN = "position.json", "plan.json"
"""A copy of the plan that the run follows when the checkpoint is written."""
_NAME = re.compile(r"step-(0|[1-9]\d*)")
_WRITING, _REMOVING = ".writing-", ".removing-"
_CHUNK_BYTES = 4 * 1024 * 1024
Described = Mapping[str, Mapping[str, Any]]
"""Size and hash of files, by name."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A whole checkpoint: its manifest was checked against every file."""

    path: Path
    step: int
    bytes: int


def begin(checkpoints: Path, step: int) -> Path:
    """An empty folder to write a checkpoint into."""
    checkpoints.mkdir(mode=0o700, exist_ok=True)
    folder = checkpoints / f"{_WRITING}step-{step}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    return folder


def describe(folder: Path, names: Iterable[str]) -> Described:
    """Make files that this process has written durable, and describe them for the one that commits."""
    found = {}
    for name in names:
        make_file_durable(folder / name)
        found[name] = _describe(folder / name)
    return found


def commit(folder: Path, step: int, described: Described | None = None) -> CheckpointFolder:
    """Make what was written durable and give it its name. `described`: files of other processes, which did so. Raises
    OSError, also where one of them is not in the folder that this process sees."""
    described = described or {}
    for name, expected in described.items():
        # By its name: a shared disk may list the files of other machines later.
        if not (folder / name).is_file() or (folder / name).stat().st_size != expected["bytes"]:
            raise OSError(f"{name} is not in {folder}: output.runs_dir must be on a disk that all processes can access")
    make_durable(folder)
    names = sorted({*files_below(folder), *described})
    files = {name: described.get(name) or _describe(folder / name) for name in names}
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    final = folder.parent / f"step-{step}"
    if final.exists():
        # Only a damaged one can be there: a run starts after the newest whole checkpoint.
        _set_aside(final)
    folder.rename(final)
    sync_folder(final.parent)
    return CheckpointFolder(final, step, sum(entry["bytes"] for entry in files.values()))


def remove(checkpoint: Path) -> None:
    """Take away the name first: what is left after a kill is no checkpoint any more."""
    doomed = checkpoint.parent / f"{_REMOVING}{checkpoint.name}"
    if doomed.exists():
        shutil.rmtree(doomed)
    checkpoint.rename(doomed)
    sync_folder(checkpoint.parent)
    shutil.rmtree(doomed)


def clear_leftovers(checkpoints: Path) -> None:
    """Remove what a kill left half written or half removed."""
    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            if path.name.startswith((_WRITING, _REMOVING)) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)


def set_aside_after(checkpoints: Path, step: int) -> None:
    """Take the names of checkpoints after `step` away, which are damaged: rotation must not count them as newer ones.

    Their files stay, as `damaged-step-N`; an older one of that name makes room.
    """
    for newer in [found for found in _steps(checkpoints) if found > step]:
        _set_aside(checkpoints / f"step-{newer}")


def _set_aside(checkpoint: Path) -> None:
    target = checkpoint.with_name(f"damaged-{checkpoint.name}")
    if target.exists():
        shutil.rmtree(target)
    checkpoint.rename(target)


def rotate(checkpoints: Path, keep: int, spare: Iterable[int] = ()) -> None:
    """Remove the oldest by step number, never by date, until `keep` (at least 1) are left beside the spared ones."""
    spared = set(spare)
    steps = [step for step in steps_saved(checkpoints) if step not in spared]
    for step in steps[max(keep, 1) :]:
        remove(checkpoints / f"step-{step}")


def steps_saved(checkpoints: Path) -> list[int]:
    """The steps of the checkpoints that are there, newest first. Folders that others made there do not count."""
    return [step for step in _steps(checkpoints) if (checkpoints / f"step-{step}" / MANIFEST).is_file()]


def _steps(checkpoints: Path) -> list[int]:
    """Of all folders that have the name of a checkpoint, newest first, those without a manifest as well."""
    if not checkpoints.is_dir():
        return []
    found = [_NAME.fullmatch(path.name) for path in checkpoints.iterdir() if path.is_dir()]
    return sorted((int(match[1]) for match in found if match), reverse=True)


def newest_whole(checkpoints: Path, on_damage: Callable[[str], None]) -> CheckpointFolder | None:
    """The newest checkpoint whose files are what its manifest says; each damaged one is told to `on_damage`. Raises
    CheckpointError where one cannot be read."""
    for step in _steps(checkpoints):
        path = checkpoints / f"step-{step}"
        damage = damage_of(path, step)
        if damage is None:
            return CheckpointFolder(path, step, sum((path / name).stat().st_size for name in files_below(path)))
        on_damage(f"{path.name}: {damage}")
    return None


def kept_plan(checkpoints: Path) -> tuple[str, bytes | None] | None:
    """The name of the newest whole checkpoint, and its copy of the plan: None where an earlier version wrote it. None
    without any checkpoint. Raises CheckpointError where one cannot be read."""
    if (found := newest_whole(checkpoints, lambda damage: None)) is None:
        return None
    copy = found.path / PLAN
    return found.path.name, copy.read_bytes() if copy.is_file() else None


def best_step(checkpoint: Path) -> int:
    """The step of the best evaluation until this whole checkpoint; 0 where there was none."""
    return int(json.loads((checkpoint / POSITION).read_bytes())["best_step"])


def damage_of(path: Path, step: int) -> str | None:
    """What is wrong with a checkpoint, in words; None when it is whole. Raises CheckpointError where a file cannot be
    read now: it may be whole."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']} is not supported by this version"
        if manifest["step"] != step:
            return f"the manifest says step {manifest['step']}"
        # A name that leads out of the folder, by itself or through a link, is none of its files.
        there = set(files_below(path))
        for name, expected in manifest["files"].items():
            if name not in there:
                return f"{name} is missing"
            if _describe(path / name) != expected:
                return f"{name} differs from what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename or MANIFEST).name} is missing"
    except OSError as error:
        name = Path(error.filename).name if error.filename else "a file"
        raise CheckpointError(
            f"{path.name}: {name} cannot be read ({system_reason(error)}); it may be undamaged: resume once it can "
            "be read again"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the manifest cannot be read ({type(error).__name__})"
    return None


def _describe(path: Path) -> dict[str, Any]:
    """Size and XXH3-128 of a file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        return {"bytes": file.tell(), "xxh3_128": digest.hexdigest()}
