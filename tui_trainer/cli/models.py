"""The commands that fetch: a model or a data set from the hub, and an environment."""

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import app, option
from tui_trainer.errors import EXIT_STOPPED, InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.terminal.standard_files import show_progress, tell

if TYPE_CHECKING:
    from tui_trainer.downloading.hub import DownloadOffer
    from tui_trainer.exporting.publishing import PublishOffer


@app.command()
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model's name on the hub, such as org/model.")] = "",
    data: Annotated[str, option("--data", "PATH", "A data set instead: owner/name[@revision][/folder].")] = "",
    revision: Annotated[str, option("--revision", "R", "A branch, a tag or a commit.")] = "main",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Fetch a model or a data set from the Hugging Face Hub: says its size and licence, and asks first."""
    if bool(name) == bool(data):
        hint = "`tui-trainer download org/model`, or `tui-trainer download --data owner/name`"
        raise InputError("one model or one data set is fetched at a time", hint=hint)
    from tui_trainer.downloading.hub import download_model

    def ask(offer: "DownloadOffer") -> bool:
        print("\n".join(offer_lines(offer)), flush=True)
        return agrees("download", yes)

    if data and _fetch_data(data, revision, ask):
        return
    if name and (folder := download_model(name, revision, ask=ask, progress=transfer_progress())) is not None:
        print(one_line(f"{name} is in {folder}"))
        return
    tell("nothing was downloaded")
    raise typer.Exit(EXIT_STOPPED)


@app.command()
def install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="unsloth.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make the environment in which runs with model.provider = unsloth train: shows the commands, and asks first."""
    from tui_trainer.downloading.environment import SIZE_GIB, commands, make_environment
    from tui_trainer.errors import name_hint
    from tui_trainer.models.unsloth import NAME, environment_folder, version_here

    if name != NAME:
        raise InputError(f"there is nothing to install by the name {name[:40]!r}", hint=name_hint(name, [NAME]))
    folder = environment_folder()
    there = f", in the place of {version_here()}" if version_here() else ""
    print(f"{NAME} with torch of its own, about {SIZE_GIB:g} GiB, in {folder}{there}:")
    for command in commands(folder):
        print("  " + shlex.join(command))
    if not agrees("install", yes):
        tell("nothing was installed")
        raise typer.Exit(EXIT_STOPPED)
    print(f"{NAME} {make_environment(tell)} is in {folder}; model.provider = {NAME} trains with it")


def agrees(verb: str, yes: bool) -> bool:
    """Whether the user wants it. Raises InputError where nobody can be asked."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("there is no terminal to ask on", hint=f"add --yes to {verb} without a question")
    return typer.confirm(f"{verb} it?", default=False)


def _fetch_data(path: str, revision: str, ask: "Callable[[DownloadOffer], bool]") -> bool:
    """Ends with the lines to use, and what else can be chosen of the data set."""
    from tui_trainer.config.editing import toml_text
    from tui_trainer.data.sources.hub import parse_hub_path
    from tui_trainer.data.sources.source import open_source
    from tui_trainer.downloading.hub import download_data
    from tui_trainer.errors import DataError
    from tui_trainer.terminal.safe_text import one_line

    wanted = parse_hub_path(path, revision)
    folder = download_data(wanted, ask=ask, progress=transfer_progress())
    if folder is None:
        return False
    print(one_line(f"{wanted.name} is in {folder}"))
    try:
        found = open_source(str(wanted))
    except DataError as error:
        print(one_line(str(error)))
    else:
        if found.others:
            labels = ", ".join(one_line(split.label, 60) for split in (found.split, *found.others) if split)
            print(f"its splits are {labels}: train trains, validation evaluates, test is left alone;")
            print("data.split and data.eval_split choose others")
    print(f"data.path = {toml_text(str(wanted))}")
    return True


def offer_lines(offer: "DownloadOffer") -> list[str]:
    """What is downloaded, how large it is, under which licence, from where, and where it goes."""
    from tui_trainer.downloading.hub import host
    from tui_trainer.units import format_bytes

    rest = "" if offer.missing_bytes == offer.size_bytes else f", {format_bytes(offer.missing_bytes)} still missing"
    gate = " (only for accounts that accepted it on its page)" if offer.gated else ""
    rows = [
        (offer.kind.word, f"{offer.name}, revision {offer.revision}"),
        ("size", f"{size_words(offer)}{rest}"),
        ("left out", offer.left_out),
        ("licence", f"{offer.license or 'not stated'}{gate}"),
        ("from", host()),
        ("folder", str(offer.target)),
    ]
    return labelled(rows)


def size_words(offer: "DownloadOffer | PublishOffer") -> str:
    """`1.2 GiB in 4 files`."""
    from tui_trainer.downloading.hub import counted
    from tui_trainer.units import format_bytes

    return f"{format_bytes(offer.size_bytes)} in {counted(offer.files)}"


def labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each pair that says something, safe to show."""
    return [f"{label:<8} {one_line(text)}" for label, text in rows if text]


def transfer_progress() -> Callable[[str, float, float | None, str], None]:
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
