"""The command that shows what the model would get."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import AsJson, Asked, GpuName, app, shares_options
from tui_trainer.standard_files import show_progress

if TYPE_CHECKING:
    from tui_trainer.launching.preview import Preview
    from tui_trainer.launching.preview_words import Marked, Signs

_MOST_SAMPLES = 1000
_COLOURS = {"head": "1", "trained": "32", "special": "36", "note": "2", "text": ""}
_WIDEST, _LEAST_WIDTH = 120, 40


@app.command()
@shares_options
def preview(
    asked: Asked,
    gpu: GpuName = None,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, max=_MOST_SAMPLES, help="Rows of the batch to show.")
    ] = 3,
    as_json: AsJson = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Mark the trained tokens by brackets.")] = False,
) -> None:
    """Show rows of the batch that the model would get, the trained tokens marked, and numbers about all rows."""
    from tui_trainer.launching.preview import make_preview
    from tui_trainer.launching.preview_words import as_values

    loaded = asked.load(gpu)
    made = make_preview(loaded, samples, show_progress, gpu=gpu)
    if as_json:
        print(json.dumps(as_values(made), indent=1))
        return
    in_colour = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()
    width = max(min(shutil.get_terminal_size((100, 24)).columns, _WIDEST), _LEAST_WIDTH)
    print("\n".join(preview_lines(made, _signs(in_colour), width, in_colour=in_colour)))


def preview_lines(made: "Preview", signs: "Signs", width: int, *, in_colour: bool) -> Iterator[str]:
    """The samples, then the numbers, which stay on the screen."""
    from tui_trainer.launching.preview_words import legend, sample_lines, summary_lines

    yield _printed(legend(signs), in_colour)
    for number, sample in enumerate(made.samples, 1):
        yield ""
        for line in sample_lines(sample, number, len(made.samples), signs, width):
            yield _printed(line, in_colour)
    yield ""
    yield from summary_lines(made, signs)


def _printed(line: "Sequence[Marked]", in_colour: bool) -> str:
    if not in_colour:
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if (code := _COLOURS[mark]) and text else text for text, mark in line)


def _signs(in_colour: bool) -> "Signs":
    """Those that the output's encoding has."""
    from tui_trainer.launching.preview_words import ASCII_SIGNS, NO_SIGNS, UNICODE_SIGNS

    wanted = NO_SIGNS if in_colour else UNICODE_SIGNS
    needed = "".join((*wanted.trained, *wanted.special, wanted.line_break, wanted.bar))
    try:
        needed.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_SIGNS
    return wanted
