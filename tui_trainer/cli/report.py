"""The command that writes down what came of a run."""

from pathlib import Path
from typing import Annotated

from tui_trainer.cli.application import AsJson, RunReference, app, option, run_named
from tui_trainer.errors import FolderError, InputError


@app.command()
def report(
    run: RunReference = "last",
    out: Annotated[Path | None, option("--out", "FOLDER", "Instead of the run's folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write what came of a run, as report.md and as one page, report.html; with --json, print the same facts."""
    from tui_trainer.local_paths import from_the_root
    from tui_trainer.reporting.facts import facts_of
    from tui_trainer.reporting.json_object import to_json
    from tui_trainer.reporting.write import write_report

    folder = run_named(run)
    if as_json:
        if out is not None:
            raise InputError("--json prints the report, and --out writes it", hint="leave one of them out")
        print(to_json(facts_of(folder)))
        return
    try:
        if out is not None:
            out = from_the_root(str(out))
            out.mkdir(parents=True, exist_ok=True)
        written = write_report(folder, out)
    except OSError as error:
        raise FolderError(
            f"the report cannot be written: {error.strerror or error}", where=str(out or folder.root)
        ) from None
    print("\n".join(map(str, written)))
