"""An evaluation of several models on the same rows, as lines."""

from collections.abc import Mapping
from typing import Any

from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.runs.result import display_name
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

_NAME_WIDTH, _TEXT_WIDTH, _ANSWER_WIDTH = 40, 100, 150


def evaluation_lines(evaluation: Mapping[str, Any], width: int = 160) -> list[str]:
    """Return the table of the models, and the rows whose loss changed most. `evaluation` is as in `evaluate --json`."""
    reference, models = evaluation["reference"], evaluation["models"]
    score_names = list(models[0]["scores"])
    table = [["", "loss", *map(display_name, score_names)]]

    def add(label: str, values: list[float], sign: str = "") -> None:
        table.append([label, *(f"{value:{sign}.4f}" for value in values)])

    def values(model: Mapping[str, Any]) -> list[float]:
        return [float(model["loss"]), *(float(model["scores"][name]) for name in score_names)]

    if reference:
        add(one_line(reference["name"], _NAME_WIDTH), values(reference))
    for model in models:
        add(one_line(model["name"], _NAME_WIDTH), values(model))
        if reference:
            pairs = zip(values(model), values(reference), strict=True)
            add("  difference", [after - before for after, before in pairs], "+")
    title = f"{quantity(evaluation['rows'], 'row')}: {one_line(evaluation['data'])}"
    lines = [title, *table_lines(table, width, right=table[0][1:])]
    if evaluation["changed"] and reference:
        old_name, new_name = (one_line(model["name"], _NAME_WIDTH) for model in (reference, models[0]))
        lines += ["", f"largest changes from {old_name} to {new_name}:"]
        for row in evaluation["changed"]:
            loss_text = f"loss {row['loss_before']:.3f} -> {row['loss_after']:.3f}"
            lines.append(f"  row {row['number']}: {loss_text}  {one_line(row['text'].strip(), _TEXT_WIDTH)}")
            lines.append(f"    before {one_line(row['before'].strip(), _ANSWER_WIDTH)}")
            lines.append(f"    after  {one_line(row['after'].strip(), _ANSWER_WIDTH)}")
    return lines
