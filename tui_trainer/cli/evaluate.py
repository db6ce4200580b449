"""The command that measures trained models beside each other."""

from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import AsJson, GpuName, app, option, print_json
from tui_trainer.standard_files import show_progress, tell

if TYPE_CHECKING:
    from tui_trainer.exporting.evaluating import ChangedRow, Evaluation, Measured


@app.command()
def evaluate(
    models: Annotated[
        list[str], typer.Argument(metavar="RUN|FOLDER...", help="Runs, or folders with models of the same kind.")
    ],
    data: Annotated[str, option("--data", "FILE", "Instead of the held-out rows of the run.")] = "",
    against: Annotated[
        str, typer.Option("--against", metavar="MODEL", help="base, a run, a folder, or none.")
    ] = "base",
    rows: Annotated[int, typer.Option(min=0, help="At most so many rows, evenly spaced; 0: as in the run.")] = 0,
    changed: Annotated[int, typer.Option(min=0, max=1000, help="How many of the rows that changed most.")] = 5,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Measure trained models on held-out rows, or on a file: loss and scores beside those of the base model."""
    from dataclasses import asdict

    from tui_trainer.exporting.device import inference_device
    from tui_trainer.exporting.evaluating import Evaluator, run_of
    from tui_trainer.exporting.trained_model import TrainedModel

    trained = TrainedModel.of(run_of(models[0]))
    evaluator = Evaluator(trained, inference_device(gpu), show_progress)
    found = evaluator.evaluate(models, file=data, against=against, rows=rows, changed=changed)
    for note in found.notes:
        tell(note)
    if as_json:
        print_json(asdict(found))
    else:
        print("\n".join(_lines(found)))


def _lines(found: "Evaluation") -> list[str]:
    from tui_trainer.lines import table_lines
    from tui_trainer.runs.score_words import plain
    from tui_trainer.safe_text import one_line

    names = list(found.models[0].scores)
    table = [["", "loss", *map(plain, names)]]

    def row(label: str, values: list[float], sign: str = "") -> None:
        table.append([label, *(f"{value:{sign}.4f}" for value in values)])

    def values(one: "Measured") -> list[float]:
        return [one.loss, *(one.scores[name] for name in names)]

    if found.reference:
        row(one_line(found.reference.name, 40), values(found.reference))
    for one in found.models:
        row(one_line(one.name, 40), values(one))
        if found.reference:
            pairs = zip(values(one), values(found.reference), strict=True)
            row("  difference", [after - before for after, before in pairs], "+")
    lines = [f"{found.rows:,} rows: {one_line(found.data)}", *table_lines(table, 160, right=table[0][1:])]
    if found.changed and found.reference:
        lines += [
            "",
            f"changed most from {one_line(found.reference.name, 40)} to {one_line(found.models[0].name, 40)}:",
        ]
        lines += [line for one in found.changed for line in _changed_lines(one)]
    return lines


def _changed_lines(one: "ChangedRow") -> list[str]:
    from tui_trainer.safe_text import one_line

    return [
        f"  row {one.number}: loss {one.loss_before:.3f} -> {one.loss_after:.3f}  {one_line(one.text.strip(), 100)}",
        f"    before {one_line(one.before.strip(), 150)}",
        f"    after  {one_line(one.after.strip(), 150)}",
    ]
