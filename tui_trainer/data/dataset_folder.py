"""Folders that `save_to_disk` of datasets wrote: which of their files are data.

Beside data-00000-of-00001.arrow lie dataset_info.json and state.json, and often cache-*.arrow files of later work,
which hold the same rows once more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"
ALWAYS_STATE = frozenset({"dataset_info.json", "dataset_infos.json", SPLITS_FILE})


def data_files(folder: Path, names: Sequence[str]) -> list[str]:
    """`names` without the files that describe the data; where a state file lists the data, what it lists."""
    if STATE_FILE in names and any(name.endswith(".arrow") for name in names):
        listed = _listed(folder / STATE_FILE)
        wanted = [name for name in names if name in listed] if listed else list(names)
        names = [name for name in wanted if name != STATE_FILE]
    return [name for name in names if name not in ALWAYS_STATE]


def refuse_several_splits(folder: Path) -> None:
    """Raises DataError for a folder of several splits: nobody wants to train on the test split unasked."""
    content = _content(folder / SPLITS_FILE)
    splits = content.get("splits") if isinstance(content, dict) else None
    if isinstance(splits, list) and len(splits) > 1:
        shown = ", ".join(one_line(str(name), 30) for name in splits[:6])
        raise DataError(
            f"'{one_line(folder.name, 60)}' holds several splits: {shown}",
            hint="name the folder of one in data.path, and that of another in data.eval_path",
        )


def _listed(path: Path) -> frozenset[str]:
    content = _content(path)
    files = content.get("_data_files") if isinstance(content, dict) else None
    if not isinstance(files, list):
        return frozenset()
    return frozenset(str(entry.get("filename")) for entry in files if isinstance(entry, dict))


def _content(path: Path) -> object:
    """What stands in a small JSON file, or None."""
    try:
        if not path.is_file() or path.stat().st_size > MIB:
            return None
        content: object = json.loads(path.read_text(encoding="utf-8"))
        return content
    except (OSError, ValueError, RecursionError):
        return None
