"""Folders that the library `datasets` wrote, by `save_to_disk` or as its cache: which of their files are data.

Beside data-00000-of-00001.arrow lie dataset_info.json and state.json, and often cache-*.arrow files of later work,
which hold the same rows once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tui_trainer.units import MIB

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"
ALWAYS_STATE = frozenset({"dataset_info.json", "dataset_infos.json", SPLITS_FILE})
# Source: generate_fingerprint and Dataset.map of `datasets`: 16 hexadecimal digits, then the process where there are
# several.
LATER_WORK = re.compile(r"cache-[0-9a-f]{16}(?:_\d+_of_\d+)?\.arrow")


def data_files(folder: Path, names: Sequence[str]) -> list[str]:
    """`names`, which lie in `folder`, without the files that describe the data; where a state file lists the data, what
    it lists.
    """
    if STATE_FILE in names and any(name.endswith(".arrow") for name in names):
        listed = _listed(folder / STATE_FILE)
        wanted = [name for name in names if name in listed] if listed else list(names)
        names = [name for name in wanted if name != STATE_FILE]
    names = [name for name in names if name not in ALWAYS_STATE]
    first_hand = [name for name in names if not LATER_WORK.fullmatch(name)]
    return first_hand if any(name.endswith(".arrow") for name in first_hand) else names


def saved_splits(folder: Path) -> frozenset[str]:
    """The folders in `folder` that are splits, where a DatasetDict was saved there."""
    content = _content(folder / SPLITS_FILE)
    splits = content.get("splits") if isinstance(content, dict) else None
    return frozenset(name for name in splits if isinstance(name, str)) if isinstance(splits, list) else frozenset()


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
