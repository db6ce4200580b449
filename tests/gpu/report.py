"""The results of `tests.gpu.day` as Markdown: what was measured, on which card, when, and what failed.

python -m tests.gpu.report FOLDER
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.calls import ITEMS
from tests.gpu.results import FILE, Results, read

_LONGEST_CELL = 300
# Measured figures, and those that were planned for them.
_PLANNED = {"step_seconds": "planned_step_seconds", "peak_memory_bytes": "planned_allocated_bytes",
            "host_peak_bytes": "planned_host_bytes"}  # fmt: skip


def cell(value: object, limit: int = _LONGEST_CELL) -> str:
    """Any text as one cell of a table: a line, without what Markdown or a terminal would take for more."""
    text = "".join(x if x.isprintable() else " " for x in str(value))
    text = " ".join(text.split())[:limit]
    return re.sub(r"([\\|`<>\[\]*_#])", r"\\\1", text)


def words_of(value: Any, key: str = "") -> str:
    """A figure in words, with the unit that its name ends with."""
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(name).replace(chr(92) + '_', ' ')} {words_of(x, name)}" for name, x in value.items())
    if isinstance(value, list):
        return ", ".join(words_of(x, key) for x in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return cell(value)
    if key.endswith("bytes"):
        return f"{value / 2**30:.2f} GiB"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return text + " s" * key.endswith("_seconds")


def rows_of(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, words) of the figures of an item; where there are several of one kind, a row each."""
    for key, value in figures.items():
        name = key.replace("_", " ")
        if isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values()):
            yield from ((f"{name}: {cell(what)}", words_of(one)) for what, one in value.items())
        elif key not in _PLANNED.values() and value not in (None, [], {}):
            planned, percent = figures.get(_PLANNED.get(key, "")), ""
            if planned and value:
                percent = f" (planned {words_of(planned, key)}, {(planned / value - 1) * 100:+.0f} %)"
            yield name, words_of(value, key) + percent


def report(results: Results) -> str:
    """Markdown of the results: the figures of each item, then what there is no figure of and why."""
    rows, missing = [], []
    for name in ITEMS:
        outcome = results.items.get(name)
        if outcome is None:
            missing.append(f"{name}: not run")
            continue
        if outcome.state != "done":
            end = [cell(outcome.reason), *map(cell, outcome.error[-1:])]
            missing.append(f"{name}: {cell(outcome.state)} {': '.join(filter(None, end))}".rstrip())
        here = machine_words(results.machines, outcome.call)
        differs = f" (on {here})" if here != machine_words(results.machines, 1) else ""
        rows += [f"| {name}{differs} | {key} | {words} |" for key, words in rows_of(outcome.figures)]
    missing += [f"{cell(name, 120)}: {cell(test.state)} {cell(test.reason)}"
                for name, test in results.tests.items() if test.state not in ("passed", "skipped")]  # fmt: skip
    text = [f"| item | figure | {machine_words(results.machines, 1)} |", "|---|---|---|", *rows]
    text += ["", "Without a figure:", "", *(f"- {words}" for words in missing)] if missing else []
    return "\n".join(text)


def machine_words(machines: Sequence[Mapping[str, Any]], call: int) -> str:
    """The card that a call had (they count from 1), its libraries and the day."""
    facts = machines[call - 1] if 0 < call <= len(machines) else {}
    date, versions, found = cell(facts.get("date", "an unknown day")), facts.get("libraries"), facts.get("card")
    versions = versions if isinstance(versions, Mapping) else {}
    words = ", ".join(f"{name} {cell(versions[name])}" for name in ("torch", "transformers") if versions.get(name))
    if facts.get("dry") is not False or not isinstance(found, Mapping):
        return f"a CPU, in a dry run: figures of no card; {words}, {date}"
    memory, driver = cell(found.get("memory.total")), cell(found.get("driver_version"))
    return f"{cell(found.get('name'))} ({memory} MiB, driver {driver}), {words}, {date}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    results = read(parser.parse_args(arguments).folder / FILE)
    print(report(results) if results.machines else f"this folder has no {FILE} with lines")
    return 0 if results.machines else 2


if __name__ == "__main__":
    sys.exit(main())
