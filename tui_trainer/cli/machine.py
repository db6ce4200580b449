"""Commands that look at this machine, and at a config on it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tui_trainer.cli.application import AsJson, Asked, GpuName, app, option, shares_options
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED
from tui_trainer.runs.json_fields import finite
from tui_trainer.standard_files import show_progress, tell


@app.command()
def diagnose(
    gpu: GpuName = None,
    as_json: AsJson = False,
    try_out: Annotated[
        bool, option("--try", None, "Try it first, in some seconds: precisions, attention, rates, disks.")
    ] = False,
    clear: Annotated[
        list[str] | None,
        option("--clear", "KIND", "Forget what was measured here of this kind, or all of it; may be repeated."),
    ] = None,
) -> None:
    """Show the hardware, the drivers and the libraries, what was tried and measured of them, and what is wrong."""
    from tui_trainer.diagnose import clear_measured, print_diagnosis

    if clear:
        tell(clear_measured(clear))
    if try_out:
        from tui_trainer.hardware.probe import probe
        from tui_trainer.launching.trial import try_machine

        try_machine(probe(), gpu, lambda part: tell(f"trying: {part}"))
    raise typer.Exit(print_diagnosis(gpu=gpu, as_json=as_json))


@app.command()
@shares_options
def check(
    asked: Asked,
    gpu: GpuName = None,
    as_json: AsJson = False,
    fix: Annotated[Path | None, option("--fix", "OUT.toml", "Write a config with every fix applied.")] = None,
    measure: Annotated[
        list[str] | None,
        option("--measure", "NAME", "Measure first what this check gains here, or all of them; may be repeated."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="The most that measuring one of them takes.")] = 300,
) -> None:
    """Go through the checklist: is it ready, and is it fast? Exit code 1 when something fails."""
    from tui_trainer.check import print_checks

    loaded = asked.load_to_start(gpu)
    is_whole = True
    if measure:
        from tui_trainer.bench.gains import GainBench

        is_whole = GainBench(loaded=loaded, names=measure, told=tell, gpu=gpu, seconds=seconds).measure()
    code = print_checks(loaded, as_json=as_json, fix=fix, progress=show_progress, gpu=gpu)
    raise typer.Exit(code if is_whole else EXIT_STOPPED)


@app.command()
@shares_options
def rehearse(asked: Asked, gpu: GpuName = None, as_json: AsJson = False) -> None:
    """Try what a run comes to late: its largest batches, a checkpoint, the final model. Exit code 1 when one fails."""
    from tui_trainer.bench import rehearsal

    def hear(told: dict[str, Any]) -> None:
        if as_json:
            print(json.dumps(told), flush=True)
        elif "trying" in told:
            print(rehearsal.trying_line(told["trying"]), flush=True)
        elif len(told) > 1:
            print(rehearsal.part_line(told["part"], told), flush=True)

    found = rehearsal.rehearse(asked.request, gpu, hear)
    result = finite(found.as_json())
    print(json.dumps(result) if as_json else "\n".join(rehearsal.result_lines(result)))
    if found.faults:
        raise typer.Exit(EXIT_FAILED)
