"""The guides of the package, as `tui_trainer/guides/TOPIC.md` has them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import tui_trainer
from tui_trainer.cli.application import app
from tui_trainer.errors import InputError, name_hint
from tui_trainer.safe_text import one_line

FOLDER = Path(tui_trainer.__file__).parent / "guides"
# Prose is hard to read in longer lines.
WIDEST_COLUMNS = 120


@app.command()
def guide(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="A guide, or nothing to list all.", show_default=False)
    ] = "",
) -> None:
    """Print a guide on one topic, or list the topics."""
    guides = {path.stem: path for path in sorted(FOLDER.glob("*.md"))}
    if not topic:
        longest = max(map(len, guides))
        for name, path in guides.items():
            with path.open(encoding="utf-8") as file:
                title = file.readline().strip("# \n")
            print(f"{name:<{longest}}  {title}")
        print("\n`tui-trainer guide TOPIC` prints one; begin with start")
        return
    # Guides link to each other by their files.
    name = topic.lower().removesuffix(".md")
    if name not in guides:
        raise InputError(f"there is no guide {one_line(topic, 40)!r}", hint=name_hint(name, guides))
    text = guides[name].read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    # The terminal's own colours: rich's are for a dark background.
    console = Console(theme=Theme({"markdown.code": "bold"}))
    # Links as text, since their files are not on a terminal's screen to be clicked.
    shown = Markdown(text, code_theme="ansi_light", hyperlinks=False)
    console.print(shown, width=min(console.width, WIDEST_COLUMNS))
