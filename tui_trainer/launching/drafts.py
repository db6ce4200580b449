"""Unsaved edits, kept in the state folder so that a lost connection loses none.

There is one draft for each combination of config file or recipe with the model, data and task on the command line, so
that edits for one model are not offered for another. A draft belongs to the process that writes it. When that process
has ended, another process can take the draft over. A damaged or unwritable draft does not stop the program."""

import hashlib
import json
import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tui_trainer.config.changes import PRESET, Edits
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import Layer, Origin, Request, default_recipe, user_layers
from tui_trainer.config.paths import absolute
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY
from tui_trainer.errors import Problem, system_reason
from tui_trainer.files.local_paths import path_exists
from tui_trainer.hardware.processes import is_running
from tui_trainer.runs.folder import read_plain_file, write_atomically
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

_LIMIT_BYTES = 256 * 1024
_NAMED = {"recipe": "profile", "model": MODEL_KEY, "data": DATA_KEY, "task": "task.type"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Unsaved edits for `ConfigDocument.restore`. `at` is their time (UTC); `digest` identifies the edited config file.

    `subject` names what the edited config is about: `recipe finetune, model ./llama, data notes.jsonl`."""

    edits: Mapping[str, Any]
    at: str
    digest: str | None
    subject: str


def draft_for(request: Request) -> Draft | None:
    """Take over the draft that an ended process left for this request, and return it; None if there is none."""
    own_path = _path(request.config_file, request)
    try:
        candidate_paths = [] if own_path.exists() else own_path.parent.glob(f"{own_path.stem.partition('-')[0]}*.json")
        if released_paths := [path for path in candidate_paths if not _is_owned(path)]:
            max(released_paths, key=os.path.getmtime).replace(own_path)
        content = json.loads(read_plain_file(own_path, _LIMIT_BYTES))
        edits = dict(content["values"]) | {str(key): PRESET for key in content["resets"]}
        written_at, digest = str(content["at"]), content["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    subject = ", ".join(f"{kind} {name}" for kind, name in _subject(request.config_file, request, edits).items())
    return Draft(edits=edits, at=written_at, digest=digest, subject=subject) if edits else None


def draft_writer(document: ConfigDocument, below: Edits | None = None) -> Callable[[], Problem | None]:
    """Return a function that saves the unsaved edits, or removes the draft if nothing is unsaved.

    Any thread may call this function at any time. It returns a Problem instead of raising an error. `below` are edits
    of an earlier session that are neither restored nor discarded. They are saved too, except settings edited again."""
    edits = {**(below or {}), **document.unsaved_values()}
    file, request = document.file, document.request
    content = {
        "at": utc_now(),
        "digest": document.digest,
        "values": {key: value for key, value in edits.items() if value is not PRESET},
        "resets": [key for key, value in edits.items() if value is PRESET],
    }

    def save() -> None:
        path = _path(file, request)
        if not edits:
            for draft_path in {path, _path(request.config_file, request)}:
                draft_path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, default=str).encode(), durable=False)

    def save_or_report() -> Problem | None:
        try:
            save()
        except OSError as error:
            hint = "save the config before you quit, or set TUI_TRAINER_HOME to a writable folder"
            message = f"unsaved edits could not be stored: {system_reason(error)}"
            return Problem(message=message, where=one_line(str(state_folder())), hint=hint)
        return None

    return save_or_report


def leave_drafts() -> None:
    """Release the drafts of this process, whose screens are closed, so that other processes can take them over."""
    for path in drafts_folder().glob(f"*-{_owner()}.json"):
        with suppress(OSError):
            path.replace(path.with_name(f"{path.stem}-left.json"))


@cache
def _owner() -> str:
    # Cached, because the reported start time changes while the system adjusts its clock.
    return f"{os.getpid()}-{psutil.Process().create_time():.2f}"


def _is_owned(path: Path) -> bool:
    """Return whether the process that owns a draft is still running."""
    _, *owner_parts = path.stem.split("-")
    return len(owner_parts) == 2 and is_running(int(owner_parts[0]), float(owner_parts[1]))


def drafts_folder() -> Path:
    return state_folder() / "drafts"


def _path(config_file: Path | None, request: Request) -> Path:
    subject = ", ".join(f"{kind} {_full_name(kind, name)}" for kind, name in _subject(config_file, request).items())
    return drafts_folder() / f"{hashlib.sha256(subject.encode()).hexdigest()[:32]}-{_owner()}.json"


def _subject(config_file: Path | None, request: Request, edits: Edits | None = None) -> dict[str, str]:
    """Return what identifies a config after `edits`, such as `{"recipe": "finetune", "model": "./llama"}`."""
    edits = edits or {}
    layers = [replace(layer, values={key: value for key, value in layer.values.items() if key not in edits})
              for layer in user_layers(request, [])]  # fmt: skip
    edited = {key: value for key, value in edits.items() if value is not PRESET}
    layers.append(Layer(origin=Origin.COMMAND_LINE, where="edits", values=edited))
    command_line = [layer.values for layer in layers if layer.origin is Origin.COMMAND_LINE]
    # A config file that was saved in this session contains the values that the command line named.
    named = dict(ChainMap(*reversed(command_line))) if config_file == request.config_file else {}
    subject = {"file": str(config_file)} if config_file else {"recipe": default_recipe(request, layers)}
    return subject | {kind: str(named[key]) for kind, key in _NAMED.items() if named.get(key)}


def _full_name(kind: str, name: str) -> str:
    """Return the absolute path of an existing file or folder. Other names stay unchanged."""
    is_path = kind == "file" or (kind in ("model", "data") and path_exists(name))
    return os.path.normpath(absolute(name)) if is_path else name
