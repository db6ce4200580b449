"""The command that sends a trained model to the hub."""

from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import RunReference, app, option, run_named
from tui_trainer.cli.models import agrees, transfer_progress
from tui_trainer.errors import EXIT_STOPPED, InputError
from tui_trainer.standard_files import tell

if TYPE_CHECKING:
    from tui_trainer.publishing import PublishOffer

_MOST_FILES = 30


@app.command()
def publish(
    run: RunReference = "last",
    to: Annotated[str, option("--to", "OWNER/NAME", "The repository on the hub.")] = "",
    export: Annotated[str, option("--export", "FORMAT", "An export instead of the model.")] = "",
    private: Annotated[bool, typer.Option("--private/--public", help="Who may see a new repository.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Send a run's model to the Hugging Face Hub: shows what would go there, and asks first."""
    from tui_trainer.publishing import make_offer, source_of
    from tui_trainer.publishing import publish as send

    folder = run_named(run)
    if not to:
        raise InputError("to where?", hint=f"`tui-trainer publish {folder.name} --to OWNER/NAME`")
    offer = make_offer(folder, source_of(folder, export), to, private=private)
    print("\n".join(offer_lines(offer)), flush=True)
    if not agrees("publish", yes):
        tell("nothing was published")
        raise typer.Exit(EXIT_STOPPED)
    print(f"{folder.name} is at {send(offer, transfer_progress())}")


def offer_lines(offer: "PublishOffer") -> list[str]:
    """What would go where, who could see it, and what was taken out."""
    from tui_trainer.downloading.hub import counted
    from tui_trainer.safe_text import one_line
    from tui_trainer.units import format_bytes

    there = "" if offer.exists is None else ", which is there already"
    rows = [
        ("to", f"{offer.name}{there}"),
        ("seen by", "you and those you allow (private)" if offer.private else "everybody (public)"),
        ("size", f"{format_bytes(offer.size_bytes)} in {counted(offer.files)}"),
        *(("file", f"{format_bytes(file.size_bytes):>10}  {file.name}") for file in offer.files[:_MOST_FILES]),
        ("on", offer.base_model),
        ("licence", (offer.license or "not known: look at its page") if offer.base_model else ""),
        *(("note", note) for note in offer.notes),
    ]
    if len(offer.files) > _MOST_FILES:
        rows.append(("file", f"and {len(offer.files) - _MOST_FILES} more"))
    return [f"{label:<8} {one_line(text)}" for label, text in rows if text]
