"""The command that says what ails a run."""

from pathlib import Path
from typing import Annotated

import typer

from tui_trainer.cli.application import AsJson, RunReference, app, run_named


@app.command()
def doctor(
    run: RunReference = "last",
    as_json: AsJson = False,
    fix: Annotated[
        Path | None,
        typer.Option("--fix", metavar="OUT.toml", help="Write its config with the remedies.", show_default=False),
    ] = None,
) -> None:
    """Say what a run loses its time to, or what is wrong with it: with numbers, and what to do in the next one."""
    from tui_trainer.verdict import print_verdict

    print_verdict(run_named(run), as_json=as_json, fix=fix)
