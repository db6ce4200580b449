"""Create, check and remove the folders of checkpoints, so that a kill never leaves an incomplete one.

This module imports no torch, because a starting run looks for a checkpoint before it loads torch.

One or several processes write into `.writing-step-N`, and each syncs and hashes its own files. The manifest is written
next, and then the folder is renamed to `step-N`. Removal renames the folder first. A kill at any moment therefore
leaves only whole checkpoints, and folders whose names begin with a dot, which the next start removes.
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
"""Names of the files of a checkpoint with the position of the run and with its current plan."""
_NAME = re.compile(r"step-(0|[1-9]\d*)")
_WRITING, _REMOVING = ".writing-", ".removing-"
_CHUNK_BYTES = 4 * 1024 * 1024
Described = Mapping[str, Mapping[str, Any]]
"""Size and hash of each file, keyed by file name."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A whole checkpoint: all of its files match its manifest."""

    path: Path
    step: int
    bytes: int


def begin(checkpoints: Path, step: int) -> Path:
    """Make an empty folder `.writing-step-N` for the checkpoint of `step`, and return its path."""
    checkpoints.mkdir(mode=0o700, exist_ok=True)
    folder = checkpoints / f"{_WRITING}step-{step}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    return folder


def describe(folder: Path, names: Iterable[str]) -> Described:
    """Sync the files that this process has written, and return their sizes and hashes for `commit`."""
    files = {}
    for name in names:
        make_file_durable(folder / name)
        files[name] = _describe(folder / name)
    return files


def commit(folder: Path, step: int, described: Described | None = None) -> CheckpointFolder:
    """Sync the folder, write the manifest, and rename the folder to `step-N`.

    `described` has the results of `describe` in the other processes. Raises OSError, for example if this process cannot
    see one of their files.
    """
    described = described or {}
    for name, file_entry in described.items():
        # A listing is not enough: a shared disk may list files of other machines late.
        if not (folder / name).is_file() or (folder / name).stat().st_size != file_entry["bytes"]:
            raise OSError(f"{name} is not in {folder}: output.runs_dir must be on a disk that all processes can access")
    make_durable(folder)
    names = sorted({*files_below(folder), *described})
    files = {name: described.get(name) or _describe(folder / name) for name in names}
    manifest = {"format": FORMAT, "step": step, "files": files}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    final_folder = folder.parent / f"step-{step}"
    if final_folder.exists():
        # It must be damaged, because a run resumes from the newest whole checkpoint.
        _set_aside(final_folder)
    folder.rename(final_folder)
    sync_folder(final_folder.parent)
    return CheckpointFolder(final_folder, step, sum(entry["bytes"] for entry in files.values()))


def remove(checkpoint: Path) -> None:
    """Rename a checkpoint and then remove its files, so that a kill leaves no incomplete `step-N`."""
    doomed_folder = checkpoint.parent / f"{_REMOVING}{checkpoint.name}"
    if doomed_folder.exists():
        shutil.rmtree(doomed_folder)
    checkpoint.rename(doomed_folder)
    sync_folder(checkpoint.parent)
    shutil.rmtree(doomed_folder)


def clear_leftovers(checkpoints: Path) -> None:
    """Remove the folders of checkpoints that a kill has left half written or half removed."""
    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            if path.name.startswith((_WRITING, _REMOVING)) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)


def set_aside_after(checkpoints: Path, step: int) -> None:
    """Rename damaged checkpoints after `step` to `damaged-step-N`, so that rotation does not count them.

    An existing folder `damaged-step-N` is replaced.
    """
    for newer_step in [saved_step for saved_step in _steps(checkpoints) if saved_step > step]:
        _set_aside(checkpoints / f"step-{newer_step}")


def _set_aside(checkpoint: Path) -> None:
    target = checkpoint.with_name(f"damaged-{checkpoint.name}")
    if target.exists():
        shutil.rmtree(target)
    checkpoint.rename(target)


def rotate(checkpoints: Path, keep: int, spare: Iterable[int] = ()) -> None:
    """Remove all checkpoints except the newest `keep` (at least 1) and those of the steps in `spare`."""
    spared_steps = set(spare)
    steps = [step for step in steps_saved(checkpoints) if step not in spared_steps]
    for step in steps[max(keep, 1) :]:
        remove(checkpoints / f"step-{step}")


def steps_saved(checkpoints: Path) -> list[int]:
    """Return the steps of existing checkpoints, newest first. Folders without a manifest are not counted."""
    return [step for step in _steps(checkpoints) if (checkpoints / f"step-{step}" / MANIFEST).is_file()]


def _steps(checkpoints: Path) -> list[int]:
    """Return the steps of all folders that are named `step-N`, newest first."""
    if not checkpoints.is_dir():
        return []
    matches = [_NAME.fullmatch(path.name) for path in checkpoints.iterdir() if path.is_dir()]
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def newest_whole(checkpoints: Path, on_damage: Callable[[str], None]) -> CheckpointFolder | None:
    """Return the newest checkpoint whose files match its manifest, and call `on_damage` for each damaged one.

    Raises CheckpointError if a file cannot be read.
    """
    for step in _steps(checkpoints):
        path = checkpoints / f"step-{step}"
        damage = damage_of(path, step)
        if damage is None:
            return CheckpointFolder(path, step, sum((path / name).stat().st_size for name in files_below(path)))
        on_damage(f"{path.name}: {damage}")
    return None


def kept_plan(checkpoints: Path) -> tuple[str, bytes | None] | None:
    """Return (name of the newest whole checkpoint, its plan file as bytes); None if there is no checkpoint.

    The bytes are None for checkpoints of early versions. Raises CheckpointError if a file cannot be read.
    """
    if (newest_checkpoint := newest_whole(checkpoints, lambda damage: None)) is None:
        return None
    plan_copy = newest_checkpoint.path / PLAN
    return newest_checkpoint.path.name, plan_copy.read_bytes() if plan_copy.is_file() else None


def best_step(checkpoint: Path) -> int:
    """Return the step of the best evaluation so far that a whole checkpoint records; 0 if there was none."""
    return int(json.loads((checkpoint / POSITION).read_bytes())["best_step"])


def damage_of(path: Path, step: int) -> str | None:
    """Return a phrase that says what is wrong with a checkpoint; None if it is whole.

    Raises CheckpointError if a file cannot be read, because the checkpoint may then still be whole.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']} is not supported by this version"
        if manifest["step"] != step:
            return f"the manifest names step {manifest['step']}"
        # A path that leads out of the folder, directly or by a link, is not among its files.
        existing_names = set(files_below(path))
        for name, file_entry in manifest["files"].items():
            if name not in existing_names:
                return f"{name} is missing"
            if _describe(path / name) != file_entry:
                return f"{name} differs from what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename or MANIFEST).name} is missing"
    except OSError as error:
        name = Path(error.filename).name if error.filename else "a file"
        problem = f"{path.name}: {name} cannot be read ({system_reason(error)})"
        raise CheckpointError(f"{problem}; resume once the file can be read again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the manifest cannot be read ({type(error).__name__})"
    return None


def _describe(path: Path) -> dict[str, Any]:
    """Return the size and XXH3-128 hash of a file."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        return {"bytes": file.tell(), "xxh3_128": digest.hexdigest()}
