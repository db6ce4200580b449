"""Commands on this machine, and on a config as it would run here."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tui_trainer.cli.application import AsJson, ConfigOptions, GpuName, app, option, shares_options
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.terminal.standard_files import print_to_stderr, show_progress


@app.command()
def diagnose(
    gpu: GpuName = None,
    as_json: AsJson = False,
    try_out: Annotated[
        bool, option("--try", None, "Run quick tests first: precisions, attention, speed, disks.")
    ] = False,
    clear: Annotated[
        list[str] | None, option("--clear", "KIND", "Delete stored measurements of this kind, or all; may be repeated.")
    ] = None,
) -> None:
    """Show hardware, drivers, libraries, measurements of this machine, and problems."""
    from tui_trainer.lines.diagnose import clear_measured, print_diagnosis

    if clear:
        print_to_stderr(clear_measured(clear))
    if try_out:
        from tui_trainer.hardware.probe import probe
        from tui_trainer.measure.trial import try_machine

        try_machine(probe(), gpu, lambda part: print_to_stderr(f"testing: {part}"))
    raise typer.Exit(print_diagnosis(gpu=gpu, as_json=as_json))


_MEASURE_HELP = "First measure what the fix of a check gains (all: of every check); may be repeated."


@app.command()
@shares_options
def check(
    config: ConfigOptions,
    gpu: GpuName = None,
    as_json: AsJson = False,
    fix: Annotated[Path | None, option("--fix", "OUT.toml", "Write a config with all fixes applied.")] = None,
    measure: Annotated[list[str] | None, option("--measure", "NAME", _MEASURE_HELP)] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit for measuring one check, in seconds.")] = 300,
) -> None:
    """Run the checklist: is the run ready, and is it fast? Exit code 1 if a check fails."""
    from tui_trainer.lines.checklist import print_checks

    loaded = config.load_to_start(gpu)
    is_whole = True
    if measure:
        from tui_trainer.measure.gains import GainBench

        is_whole = GainBench(loaded=loaded, names=measure, notify=print_to_stderr, gpu=gpu, seconds=seconds).measure()
    code = print_checks(loaded, as_json=as_json, fix=fix, progress=show_progress, gpu=gpu)
    raise typer.Exit(code if is_whole else EXIT_STOPPED)


@app.command()
@shares_options
def rehearse(config: ConfigOptions, gpu: GpuName = None, as_json: AsJson = False) -> None:
    """Dry-run the expensive parts: largest batches, a checkpoint, the final model. Exit code 1 if a part fails."""
    from tui_trainer.measure import rehearsal

    def report(figures: dict[str, Any]) -> None:
        for line in [json.dumps(figures)] if as_json else rehearsal.lines_of(figures):
            print(line, flush=True)

    result = replace_non_finite(rehearsal.rehearse(config.request, gpu, report))
    report(result)
    if result["faults"]:
        raise typer.Exit(EXIT_FAILED)


if TYPE_CHECKING:
    from tui_trainer.launching.preview import Marked, Preview, Signs

_MOST_SAMPLES = 1000
_COLOURS = {"head": "1", "trained": "32", "special": "36", "note": "2", "text": ""}
_WIDEST, _LEAST_WIDTH = 120, 40


@app.command()
@shares_options
def preview(
    config: ConfigOptions,
    gpu: GpuName = None,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, max=_MOST_SAMPLES, help="Number of rows of the batch to show.")
    ] = 3,
    as_json: AsJson = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Mark the trained tokens with brackets.")] = False,
) -> None:
    """Show rows of a batch as the model sees them, with trained tokens marked, and statistics of all rows."""
    from tui_trainer.launching.preview import as_values, make_preview

    loaded = config.load(gpu)
    batch_preview = make_preview(loaded, samples, show_progress, gpu=gpu)
    if as_json:
        print(json.dumps(as_values(batch_preview), indent=1))
        return
    in_colour = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()
    width = max(min(shutil.get_terminal_size((100, 24)).columns, _WIDEST), _LEAST_WIDTH)
    print("\n".join(preview_lines(batch_preview, _choose_signs(in_colour), width, in_colour=in_colour)))


def preview_lines(preview: "Preview", signs: "Signs", width: int, *, in_colour: bool) -> Iterator[str]:
    """Yield the lines of the sample rows, and then the statistics, which stay visible above the shell's prompt."""
    from tui_trainer.launching.preview import legend, sample_lines, summary_lines

    yield _coloured(legend(signs, preview.learns), in_colour)
    for number, sample in enumerate(preview.samples, 1):
        yield ""
        for line in sample_lines(sample, number, len(preview.samples), signs, width):
            yield _coloured(line, in_colour)
    yield ""
    yield from summary_lines(preview, signs)


def _coloured(line: "Sequence[Marked]", in_colour: bool) -> str:
    if not in_colour:
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if (code := _COLOURS[mark]) and text else text for text, mark in line)


def _choose_signs(in_colour: bool) -> "Signs":
    """Return the marks for tokens. ASCII marks are used if standard output cannot encode the others."""
    from tui_trainer.launching.preview import ASCII_SIGNS, NO_SIGNS, UNICODE_SIGNS

    signs = NO_SIGNS if in_colour else UNICODE_SIGNS
    characters = "".join((*signs.trained, *signs.special, signs.line_break, signs.bar))
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_SIGNS
    return signs
