"""Trained models beside each other on the same rows, for people."""

from collections.abc import Mapping
from typing import Any

from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.runs.result import plain
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

_NAME, _TEXT, _MADE = 40, 100, 150


def evaluation_lines(found: Mapping[str, Any], width: int = 160) -> list[str]:
    """A table with as many columns as fit, and the rows that changed most; `found` as `evaluate --json` prints it."""
    reference, models = found["reference"], found["models"]
    names = list(models[0]["scores"])
    table = [["", "loss", *map(plain, names)]]

    def add(label: str, values: list[float], sign: str = "") -> None:
        table.append([label, *(f"{value:{sign}.4f}" for value in values)])

    def values(one: Mapping[str, Any]) -> list[float]:
        return [float(one["loss"]), *(float(one["scores"][name]) for name in names)]

    if reference:
        add(one_line(reference["name"], _NAME), values(reference))
    for one in models:
        add(one_line(one["name"], _NAME), values(one))
        if reference:
            pairs = zip(values(one), values(reference), strict=True)
            add("  difference", [after - before for after, before in pairs], "+")
    lines = [
        f"{quantity(found['rows'], 'row')}: {one_line(found['data'])}",
        *table_lines(table, width, right=table[0][1:]),
    ]
    if found["changed"] and reference:
        names_of = f"{one_line(reference['name'], _NAME)} to {one_line(models[0]['name'], _NAME)}"
        lines += ["", f"largest changes from {names_of}:"]
        for row in found["changed"]:
            losses = f"loss {row['loss_before']:.3f} -> {row['loss_after']:.3f}"
            lines.append(f"  row {row['number']}: {losses}  {one_line(row['text'].strip(), _TEXT)}")
            lines.append(f"    before {one_line(row['before'].strip(), _MADE)}")
            lines.append(f"    after  {one_line(row['after'].strip(), _MADE)}")
    return lines
