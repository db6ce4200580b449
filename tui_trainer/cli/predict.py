"""The command that lets a trained model predict the rows of a file."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

import typer

from tui_trainer.cli.application import AsJson, GpuName, RunReference, app, option, run_in_use, trained_model
from tui_trainer.errors import EXIT_STOPPED, DataError, InputError
from tui_trainer.safe_text import one_line
from tui_trainer.standard_files import show_progress, tell

_SECONDS_BETWEEN_LINES = 30.0


@app.command()
def predict(
    run: RunReference,
    data: Annotated[str, option("--data", "FILE", "What is predicted: any data that can be trained on.")],
    out: Annotated[Path, option("--out", "FILE", "JSON lines: each row with its prediction.")],
    batch_size: Annotated[str, typer.Option("--batch-size", metavar="N", help="Rows at a time, or auto.")] = "auto",
    max_new_tokens: Annotated[
        int | None,
        option("--max-new-tokens", None, "Of what a model writes: 200, or task.max_target_length.", min=1, max=100_000),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=10, help="0 takes the likeliest token.")] = 0,
    beams: Annotated[int, typer.Option(min=1, max=64, help="Texts that go on at once; the likeliest is taken.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="The same seed writes the same texts.")] = 0,
    column: Annotated[list[str] | None, option("--column", "NAME", "The column of the text; of a pair, twice.")] = None,
    field: Annotated[
        str, option("--field", "NAME", "Under which the prediction stands.", show_default=True)
    ] = "prediction",
    on_bad_rows: Annotated[
        Literal["stop", "skip"], typer.Option("--on-bad-rows", help="What to do with rows that cannot be used.")
    ] = "stop",
    overwrite: Annotated[bool, option("--overwrite", None, "Replace the file, or what was begun otherwise.")] = False,
    gpu: GpuName = None,
    as_json: AsJson = False,
) -> None:
    """Let a trained model predict every row of a file. Killed, the same command goes on."""
    if temperature and beams > 1:
        raise InputError("--beams takes the likeliest text, and --temperature draws one", hint="leave one of them out")
    if column and len(column) > 2:
        raise InputError("--column names the text and at the most a second one")
    size = _batch_size(batch_size)
    folder = run_in_use(run, "predict")
    from tui_trainer.exporting.predicting import Requested, inference_device, predict_file
    from tui_trainer.local_paths import from_the_root
    from tui_trainer.models.writing import Sampling
    from tui_trainer.units import format_seconds

    trained = trained_model(folder)
    config = trained.plan.config
    usual = config.task.max_target_length if "max_target_length" in trained.task.reads else 200
    sampling = Sampling(max_new_tokens=max_new_tokens or usual, temperature=temperature, seed=seed, num_beams=beams)
    asked = Requested(
        data=data,
        out=from_the_root(str(out)),
        sampling=sampling,
        batch_size=size,
        columns=tuple(column or ()),
        field=field,
        skips_bad_rows=on_bad_rows == "skip",
        overwrite=overwrite,
    )
    try:
        done = predict_file(trained, asked, lambda: inference_device(gpu), _told_now_and_then())
    except DataError as error:
        named = (replace(one, hint=one.hint.replace("data.text_column", "--column")) for one in error.problems)
        raise DataError(named) from None
    except KeyboardInterrupt:
        show_progress("", 1, 1, "")
        tell(f"interrupted; the same command goes on with {out}")
        raise typer.Exit(EXIT_STOPPED) from None
    for note in done.notes:
        tell(note)
    rate = (done.rows - done.rows_before) / max(done.seconds, 1e-9)
    if as_json:
        print(json.dumps({"out": str(out), "rows": done.rows, "rows_before": done.rows_before,
                          "seconds": round(done.seconds, 3), "rows_per_second": round(rate, 2)}))  # fmt: skip
        return
    before = f", {done.rows_before:,} of them were there" if done.rows_before else ""
    print(f"{one_line(str(out))}: {done.rows:,} rows{before}, {format_seconds(done.seconds)}, {rate:,.0f} rows/s")


def _told_now_and_then() -> Callable[[str, float, float | None, str], None]:
    """In place on a terminal; else a line after each half minute."""
    if sys.stderr is not None and sys.stderr.isatty():
        return show_progress
    last = monotonic()

    def told(what: str, done: float, total: float | None, unit: str) -> None:
        nonlocal last
        if monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = monotonic()
            tell(f"{what} {done:,.0f} of {total:,.0f} {unit}" if total else f"{what} {done:,.0f} {unit}")

    return told


def _batch_size(word: str) -> int:
    """0 for auto."""
    if word == "auto":
        return 0
    if not (word.isascii() and word.isdigit() and 0 < int(word) <= 65_536):
        raise InputError(f"--batch-size takes a number of rows, or auto, and not {word[:40]!r}")
    return int(word)
