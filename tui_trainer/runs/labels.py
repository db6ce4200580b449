"""The tags and the one-line note that a user gives a run, in a small file of the run's folder.

The training does not read the file, so it may be written at any time.
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
    """The labels of a run. Tags are in lower case, without the `#` that the screens put before them."""

    tags: tuple[str, ...] = ()
    note: str = ""


def tag_words(tags: tuple[str, ...]) -> str:
    """Return the tags as text: `#baseline #fp8`."""
    return " ".join(f"#{tag}" for tag in tags)


def parsed_tags(text: str) -> tuple[str, ...]:
    """Parse the tags in a text, with or without `#`. Raises InputError if one is invalid or there are too many."""
    words = [word.strip("#").lower() for word in text.replace(",", " ").split()]
    tags = tuple(dict.fromkeys(filter(None, words)))
    if invalid_tag := next((tag for tag in tags if not _TAG.fullmatch(tag)), ""):
        hint = "use up to 30 letters, digits and . _ - + : / ="
        raise InputError(f"{one_line(invalid_tag, 40)!r} cannot be a tag", hint=hint)
    if len(tags) > _MOST_TAGS:
        raise InputError(f"a run can have up to {_MOST_TAGS} tags, not {len(tags)}")
    return tags


def parsed_note(text: str) -> str:
    """Return the text as a note of one line. Raises InputError if it is too long."""
    note = one_line(text.strip())
    if len(note) > _NOTE_CHARACTERS:
        raise InputError(f"a note can have up to {_NOTE_CHARACTERS} characters, not {len(note)}")
    return note


def labels_of(folder: RunFolder) -> RunLabels:
    """Read the labels of a run, without invalid tags and control characters. A damaged file counts as empty."""
    content = read_fields(folder.labels)
    tags, note = content.get("tags"), content.get("note")
    valid_tags = [tag for tag in tags if isinstance(tag, str) and _TAG.fullmatch(tag)] if isinstance(tags, list) else []
    note_text = one_line(note, _NOTE_CHARACTERS) if isinstance(note, str) else ""
    return RunLabels(tags=tuple(valid_tags[:_MOST_TAGS]), note=note_text)


def label(root: Path, *, tags: tuple[str, ...] | None = None, note: str | None = None) -> RunLabels:
    """Replace the tags, the note or both; None keeps the present value. Raises FolderError if saving fails."""
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
        hint = "make the run's folder writable, because tags and note are stored there"
        raise FolderError(message, where=one_line(str(root)), hint=hint) from error
    return labels
