"""The command that says what ails a run."""

from pathlib import Path
from typing import Annotated

from tui_trainer.cli.application import AsJson, RunReference, app, option, run_named


@app.command()
def doctor(
    run: RunReference = "last",
    as_json: AsJson = False,
    fix: Annotated[Path | None, option("--fix", "OUT.toml", "Write its config with the remedies.")] = None,
) -> None:
    """Say what a run loses its time to, or what is wrong with it: with numbers, and what to do in the next one."""
    from tui_trainer.verdict import print_verdict

    print_verdict(run_named(run), as_json=as_json, fix=fix)
