"""The command that writes down what came of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import RunReference, app
from tui_trainer.errors import FolderError


@app.command()
def report(
    run: RunReference = "last",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Instead of the run's folder.", show_default=False)
    ] = None,
) -> None:
    """Write what came of a run, as report.md and as one page, report.html."""
    from tui_trainer.reporting.write import write_report
    from tui_trainer.runs.registry import find_run

    folder = find_run(run)
    try:
        if out is not None:
            out = out.expanduser().absolute()
            out.mkdir(parents=True, exist_ok=True)
        written = write_report(folder, out)
    except OSError as error:
        raise FolderError(
            f"the report cannot be written: {error.strerror or error}", where=str(out or folder.root)
        ) from None
    print("\n".join(map(str, written)))
