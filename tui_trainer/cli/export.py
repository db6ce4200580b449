"""The command that takes a trained model elsewhere."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import AsJson, RunReference, app, option, run_named
from tui_trainer.errors import EXIT_FAILED
from tui_trainer.standard_files import show_progress, tell, write_progress


@app.command()
def export(
    run: RunReference = "last",
    to: Annotated[
        list[str] | None, option("--to", "FORMAT", "merged, adapter, int8, onnx, onnx-int8 or gguf; may be repeated.")
    ] = None,
    out: Annotated[Path | None, option("--out", "FOLDER", "Instead of RUN/export/FORMAT.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's model in another form, load it again, and compare it with what was trained."""
    from tui_trainer.errors import InputError
    from tui_trainer.exporting.contract import find_format, format_names

    folder = run_named(run)
    if not to:
        raise InputError("no format is named", hint=f"--to {', --to '.join(format_names())}")
    if out and len(to) > 1:
        raise InputError("--out names the folder of one format", hint="export them one by one")
    formats = [find_format(name) for name in dict.fromkeys(to)]
    from tui_trainer.exporting.certificate import Certifier
    from tui_trainer.exporting.export import expected_seconds, target_of
    from tui_trainer.exporting.export import export as write
    from tui_trainer.exporting.trained_model import TrainedModel
    from tui_trainer.units import format_bytes, format_seconds

    trained = TrainedModel.of(folder)
    certifier = Certifier(trained)
    targets = [target_of(trained, one, out) for one in formats]
    is_good = True
    for one, target in zip(formats, targets, strict=True):
        if not as_json:
            seconds = expected_seconds(trained, one)
            takes = f", about {format_seconds(seconds)} as earlier exports took here" if seconds else ""
            print(f"{one.name}: about {format_bytes(one.needed_bytes(trained))}{takes}", flush=True)
        done = write(trained, one, target, certifier, write_progress if as_json else show_progress)
        is_good &= not done.certificate.faults
        if as_json:
            found = json.loads(done.certificate.text())
            print(json.dumps({"folder": str(done.folder), "words": done.certificate.lines(), **found}))
        else:
            print("\n".join([f"{one.title}: {done.folder}", *done.certificate.lines()]))
    if not is_good:
        tell("what was exported is not what was trained; its folder is kept, and its name begins with failed-")
        raise typer.Exit(EXIT_FAILED)
