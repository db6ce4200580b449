"""The command that hands a run that is over to trackers."""

from typing import Annotated

import typer

from tui_trainer.cli.application import RunReference, app, run_named
from tui_trainer.errors import EXIT_FAILED
from tui_trainer.standard_files import tell


@app.command()
def track(
    run: RunReference = "last",
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="TRACKER", help="tensorboard, wandb, mlflow or trackio; may be repeated."),
    ] = None,
) -> None:
    """Hand a run that is over to trackers: what they do not have yet. A run under way does so by logging.report_to."""
    from tui_trainer.errors import InputError
    from tui_trainer.runs.lock import owner
    from tui_trainer.runs.overview import overview
    from tui_trainer.tracking.contract import find_tracker, tracker_names, tracker_problems
    from tui_trainer.tracking.feeder import Feeder

    folder, names = run_named(run), list(dict.fromkeys(to or []))
    if not names:
        raise InputError("to which tracker?", hint=f"--to {', --to '.join(tracker_names())}")
    if problems := tracker_problems(names):
        raise InputError([*problems])
    if owner(folder.lock) is not None:
        raise InputError(f"{folder.name} is under way", hint="its trackers are those of logging.report_to")
    status, failed = overview(folder).status, False
    for name in names:
        feeder = Feeder(
            folder, find_tracker(name), lambda message, hint: tell("; ".join(filter(None, (message, hint))))
        )
        before = feeder.handed
        feeder.most_failures = 1
        feeder.end(status)
        failed |= feeder.given_up
        if not feeder.given_up:
            print(
                f"{name}: {feeder.handed - before} events handed over"
                if feeder.handed > before
                else f"{name} has all of it"
            )
    if failed:
        raise typer.Exit(EXIT_FAILED)
