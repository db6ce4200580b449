"""Commands for models: fetch one from the hub."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import app
from tui_trainer.errors import EXIT_STOPPED, InputError
from tui_trainer.standard_files import show_progress, tell

if TYPE_CHECKING:
    from tui_trainer.models.download import DownloadOffer


@app.command()
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name on the hub, such as org/model.")],
    revision: Annotated[
        str, typer.Option("--revision", metavar="R", help="A branch, a tag or a commit.", show_default=False)
    ] = "main",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Fetch a model from the Hugging Face Hub: says its size and licence, and asks first."""
    from tui_trainer.models.download import download as fetch

    folder = fetch(name, revision, ask=_asker(yes), progress=_progress())
    if folder is None:
        tell("nothing was downloaded")
        raise typer.Exit(EXIT_STOPPED)
    print(f"{name} is in {folder}")


def _asker(yes: bool) -> Callable[[DownloadOffer], bool]:
    def ask(offer: DownloadOffer) -> bool:
        print("\n".join(offer_lines(offer)), flush=True)
        if yes:
            return True
        if sys.stdin is None or not sys.stdin.isatty():
            raise InputError("there is no terminal to ask on", hint="add --yes to download without a question")
        return typer.confirm("download it?", default=False)

    return ask


def offer_lines(offer: DownloadOffer) -> list[str]:
    """What is downloaded, how large it is, under which licence, and where it goes."""
    from tui_trainer.safe_text import one_line
    from tui_trainer.units import format_bytes

    rest = "" if offer.missing_bytes == offer.size_bytes else f", {format_bytes(offer.missing_bytes)} still missing"
    gate = " (only for accounts that accepted it on its page)" if offer.gated else ""
    rows = {
        "model": f"{offer.name}, revision {offer.revision}",
        "size": f"{format_bytes(offer.size_bytes)} in {len(offer.files)} files{rest}",
        "licence": f"{offer.license or 'not stated'}{gate}",
        "folder": str(offer.target),
    }
    return [f"{label:<8} {one_line(text)}" for label, text in rows.items()]


def _progress() -> Callable[[str, float, float | None, str], None]:
    """In place on a terminal; elsewhere a line for each tenth."""
    if sys.stderr is not None and sys.stderr.isatty():
        return show_progress
    tenths = -1

    def tell_tenths(what: str, done: float, total: float | None, unit: str) -> None:
        nonlocal tenths
        now = int(10 * done / total) if total else 0
        if now > tenths:
            tenths = now
            tell(f"{what}: {now * 10} % of {total or done:,.0f} {unit}")

    return tell_tenths
