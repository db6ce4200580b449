"""An evaluation of several models on the same rows, as lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.runs.result import display_name
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

_NAME_WIDTH, _TEXT_WIDTH, _ANSWER_WIDTH = 40, 100, 150
_GAP = 2


def evaluation_lines(evaluation: Mapping[str, Any], width: int = 160) -> list[str]:
    """Return the table of the models, and the rows whose loss changed most. `evaluation` is as in `evaluate --json`."""
    reference, models = evaluation["reference"], evaluation["models"]
    # Only calibrated models have scores with thresholds.
    all_scores = [model["scores"] for model in (*models, *filter(None, [reference]))]
    score_names = [name for name in models[0]["scores"] if all(name in scores for scores in all_scores)]
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
    lines = [title]
    for columns in _columns_that_fit(table, width):
        lines += table_lines(
            [[row[0], *(row[column] for column in columns)] for row in table], width, right=table[0][1:]
        )
    if evaluation["changed"] and reference:
        old_name, new_name = (one_line(model["name"], _NAME_WIDTH) for model in (reference, models[0]))
        lines += ["", f"largest changes from {old_name} to {new_name}:"]
        for row in evaluation["changed"]:
            loss_text = f"loss {row['loss_before']:.3f} -> {row['loss_after']:.3f}"
            lines.append(f"  row {row['number']}: {loss_text}  {one_line(row['text'].strip(), _TEXT_WIDTH)}")
            lines.append(f"    before {one_line(row['before'].strip(), _ANSWER_WIDTH)}")
            lines.append(f"    after  {one_line(row['after'].strip(), _ANSWER_WIDTH)}")
    return lines


def _columns_that_fit(table: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return groups of columns that fit into the width, each beside the first column."""
    groups: list[list[int]] = [[]]
    first_width = used_width = max(len(row[0]) for row in table)
    for column in range(1, len(table[0])):
        column_width = _GAP + max(len(row[column]) for row in table)
        if groups[-1] and used_width + column_width > width:
            groups.append([])
            used_width = first_width
        groups[-1].append(column)
        used_width += column_width
    return groups
