"""results.jsonl of a day with a GPU: what began, what was measured, how it ended; it survives a kill at any byte.

Lines are only ever added: {"call", "machine"} where a call begins; {"name", "state": "started"}, then {"name",
"figures"} as often as there are new ones, then {"name", "state", ...} for an item; {"test", "state"} for a test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = "results.jsonl"


@dataclass
class Outcome:
    """How an item of a call, or a test of pytest, stands. `state`: `started` where the line of its end is missing;
    `done`, `skipped`, `failed`, `stuck`, `interrupted`; `passed` of a test. `call` counts the calls up to the one that
    it last began in."""

    state: str = ""
    call: int = 0
    seconds: float = 0.0
    reason: str = ""
    error: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class Results:
    machines: list[dict[str, Any]] = field(default_factory=list)
    """What each call ran on, as `day.machine_facts` has it."""
    items: dict[str, Outcome] = field(default_factory=dict)
    tests: dict[str, Outcome] = field(default_factory=dict)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line in one write, also behind one that was torn."""
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
        begin = b"\n" if size and file.read(1) != b"\n" else b""
        file.write(begin + json.dumps(line).encode() + b"\n")


def read(path: Path) -> Results:
    """What the lines come to; those that cannot be read do not count. Figures of an earlier attempt are dropped."""
    found = Results()
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                _take(found, line)
    return found


def _take(found: Results, line: dict[str, Any]) -> None:
    if isinstance(line.get("machine"), dict):
        found.machines.append(line["machine"])
    for key, known in (("name", found.items), ("test", found.tests)):
        if not isinstance(name := line.get(key), str):
            continue
        if line.get("state") == "started":
            known[name] = Outcome(call=len(found.machines))
        outcome = known.setdefault(name, Outcome(call=len(found.machines)))
        if isinstance(figures := line.get("figures"), dict):
            for figure, value in figures.items():
                both = isinstance(value, dict) and isinstance(before := outcome.figures.get(figure), dict)
                outcome.figures[figure] = {**before, **value} if both else value
        for attribute in ("state", "seconds", "reason", "error"):
            if isinstance(value := line.get(attribute), type(getattr(outcome, attribute))):
                setattr(outcome, attribute, value)
