"""Unsaved edits, kept in the state folder so that a lost connection loses none.

There is one draft for each config file or recipe with the model, data and task that the command line names: edits for
one model are not offered for another. It belongs to the process that writes it, and another one takes it over when that
one has ended. A draft is a convenience: one that is damaged, or that cannot be written, stops nothing.
"""

import hashlib
import json
import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tui_trainer.config.changes import PRESET, Edits
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.load import Origin, Request, default_recipe, user_layers
from tui_trainer.config.paths import absolute
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY
from tui_trainer.errors import Problem, system_reason
from tui_trainer.files.local_paths import is_here
from tui_trainer.hardware.processes import lives
from tui_trainer.runs.folder import read_plain_file, write_atomically
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import utc_now

_LIMIT_BYTES = 256 * 1024
_NAMED = {"model": MODEL_KEY, "data": DATA_KEY, "task": "task.type"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """`edits` as `ConfigDocument.restore` takes them; `at` in UTC; `digest` of the file that they were made on.

    `subject` says what they were made for: `recipe finetune, model ./llama, data notes.jsonl`.
    """

    edits: Mapping[str, Any]
    at: str
    digest: str | None
    subject: str


def draft_for(request: Request) -> Draft | None:
    """Return the draft of a program that has ended for this request, and take it over. Return None without one, and for
    one that cannot be read."""
    own = _path(request.config_file, request)
    try:
        same = [] if own.exists() else own.parent.glob(f"{own.stem.partition('-')[0]}*.json")
        if left := [path for path in same if not _is_owned(path)]:
            max(left, key=os.path.getmtime).replace(own)
        raw = json.loads(read_plain_file(own, _LIMIT_BYTES))
        edits = dict(raw["values"]) | {str(key): PRESET for key in raw["resets"]}
        at, digest = str(raw["at"]), raw["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    subject = ", ".join(f"{kind} {name}" for kind, name in _subject(request.config_file, request).items())
    return Draft(edits=edits, at=at, digest=digest, subject=subject) if edits else None


def keeping(document: ConfigDocument, below: Edits | None = None) -> Callable[[], Problem | None]:
    """Return what notes down the edits that are not saved now, at any time in any thread; without such edits it removes
    the draft. A problem stops no editing.

    `below` are edits of an earlier session that nobody has decided on yet: they stay, where they are not edited again.
    """
    edits = {**(below or {}), **document.unsaved()}
    file, request = document.file, document.request
    kept = {
        "at": utc_now(),
        "digest": document.digest,
        "values": {key: value for key, value in edits.items() if value is not PRESET},
        "resets": [key for key, value in edits.items() if value is PRESET],
    }

    def keep() -> None:
        path = _path(file, request)
        if not edits:
            for one in {path, _path(request.config_file, request)}:
                one.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(kept, default=str).encode(), durable=False)

    def keep_or_say() -> Problem | None:
        try:
            keep()
        except OSError as error:
            hint = "save the config before you quit, or set TUI_TRAINER_HOME to a writable folder"
            message = f"unsaved edits could not be stored: {system_reason(error)}"
            return Problem(message=message, where=one_line(str(state_folder())), hint=hint)
        return None

    return keep_or_say


def leave_drafts() -> None:
    """Release the drafts of this process to other programs: its screens are closed, but it may continue to train."""
    for path in drafts_folder().glob(f"*-{_owner()}.json"):
        with suppress(OSError):
            path.replace(path.with_name(f"{path.stem}-left.json"))


@cache
def _owner() -> str:
    # Asked once: the system's idea of a start moves while its clock is adjusted.
    return f"{os.getpid()}-{psutil.Process().create_time():.2f}"


def _is_owned(path: Path) -> bool:
    """Return whether a program is open that keeps its edits in this draft."""
    _, *owner = path.stem.split("-")
    return len(owner) == 2 and lives(int(owner[0]), float(owner[1]))


def drafts_folder() -> Path:
    return state_folder() / "drafts"


def _path(config_file: Path | None, request: Request) -> Path:
    whole = ", ".join(f"{kind} {_whole(kind, name)}" for kind, name in _subject(config_file, request).items())
    return drafts_folder() / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}-{_owner()}.json"


def _subject(config_file: Path | None, request: Request) -> dict[str, str]:
    """What edits are made for, by kind. A file that was saved here holds what the command line named."""
    layers = user_layers(request, [])
    command_line = [layer.values for layer in layers if layer.origin is Origin.COMMAND_LINE]
    named = dict(ChainMap(*reversed(command_line))) if config_file == request.config_file else {}
    if config_file:
        subject = {"file": str(config_file)}
    else:
        subject = {"recipe": request.profile or default_recipe(request, layers)}
    return subject | {kind: str(named[key]) for kind, key in _NAMED.items() if named.get(key)}


def _whole(kind: str, name: str) -> str:
    """The same file or folder by one name from wherever it is named; names of recipes and of the hub stay."""
    is_path = kind == "file" or (kind in ("model", "data") and is_here(name))
    return os.path.normpath(absolute(name)) if is_path else name
