"""What a person notes about a run: tags, and a note of one line, in a small file of the run's folder.

The file goes with the folder when the run is renamed or deleted. It may be written while the run trains, which does not
read it.
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tui_trainer.errors import FolderError, InputError, system_reason
from tui_trainer.runs.folder import RunFolder, read_fields, write_atomically
from tui_trainer.runs.lock import folder_lock
from tui_trainer.terminal.safe_text import one_line

_MOST_TAGS: Final = 12
_TAG: Final = re.compile(r"[\w.+:/=-]{1,30}")
_NOTE_CHARACTERS: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabels:
    """`tags` are words in small letters, without the `#` that stands before them on the screen."""

    tags: tuple[str, ...] = ()
    note: str = ""


def tag_words(tags: tuple[str, ...]) -> str:
    """`#baseline #fp8`."""
    return " ".join(f"#{tag}" for tag in tags)


def parsed_tags(text: str) -> tuple[str, ...]:
    """The tags in a text: words, each with or without a `#`. Raises InputError for one that is no tag."""
    words = [word.strip("#").lower() for word in text.replace(",", " ").split()]
    tags = tuple(dict.fromkeys(filter(None, words)))
    if wrong := next((tag for tag in tags if not _TAG.fullmatch(tag)), ""):
        hint = "use up to 30 letters, digits and . _ - + : / ="
        raise InputError(f"{one_line(wrong, 40)!r} cannot be a tag", hint=hint)
    if len(tags) > _MOST_TAGS:
        raise InputError(f"a run can have up to {_MOST_TAGS} tags, not {len(tags)}")
    return tags


def parsed_note(text: str) -> str:
    """The note in a text. Raises InputError for one that is too long."""
    note = one_line(text.strip())
    if len(note) > _NOTE_CHARACTERS:
        raise InputError(f"a note can have up to {_NOTE_CHARACTERS} characters, not {len(note)}")
    return note


def labels_of(folder: RunFolder) -> RunLabels:
    """Those of a run; none where the file is missing or damaged. What somebody else wrote there is made safe."""
    found = read_fields(folder.labels)
    tags, note = found.get("tags"), found.get("note")
    listed = [tag for tag in tags if isinstance(tag, str) and _TAG.fullmatch(tag)] if isinstance(tags, list) else []
    text = one_line(note, _NOTE_CHARACTERS) if isinstance(note, str) else ""
    return RunLabels(tags=tuple(listed[:_MOST_TAGS]), note=text)


def label(root: Path, *, tags: tuple[str, ...] | None = None, note: str | None = None) -> RunLabels:
    """Gives a run other tags or another note; None leaves what it has. Raises FolderError where that cannot be kept."""
    folder = RunFolder(root)
    try:
        with folder_lock(root):
            labels = labels_of(folder)
            labels = replace(labels, tags=labels.tags if tags is None else tags)
            labels = replace(labels, note=labels.note if note is None else note)
            if labels == RunLabels():
                folder.labels.unlink(missing_ok=True)
            else:
                write_atomically(folder.labels, json.dumps(asdict(labels), indent=1).encode())
    except OSError as error:
        message = f"tags and note cannot be saved: {system_reason(error)}"
        hint = "make the run's folder writable: they are stored there"
        raise FolderError(message, where=one_line(str(root)), hint=hint) from error
    return labels
