"""Commands that download or install: models and data sets of the hub, libraries, Unsloth, llama.cpp's converter."""

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import AsJson, app, option, print_json, print_result
from tui_trainer.errors import EXIT_STOPPED, DataError, InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.terminal.standard_files import print_to_stderr, show_progress, write_progress

if TYPE_CHECKING:
    from tui_trainer.data.progress import Progress
    from tui_trainer.downloading.hub import DownloadOffer
    from tui_trainer.exporting.publishing import PublishOffer


@app.command()
def download(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A model's name on the hub, such as org/model.")] = "",
    data: Annotated[str, option("--data", "PATH", "Download a data set instead: owner/name[@revision][/folder].")] = "",
    revision: Annotated[str, option("--revision", "R", "A branch, a tag or a commit.")] = "main",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download a model or a data set from the Hugging Face Hub. Shows its size and licence, and asks first."""
    if bool(name) == bool(data):
        hint = "`tui-trainer download org/model`, or `tui-trainer download --data owner/name`"
        raise InputError("give the name of one model or of one data set", hint=hint)
    from tui_trainer.downloading.hub import download_model

    def ask(offer: "DownloadOffer") -> bool:
        return user_confirms("download", offer_lines(offer), yes=yes, as_json=as_json)

    progress = transfer_progress(as_json)
    if data and (lines := _fetch_data(data, revision, ask, progress)):
        print_done(lines, as_json=as_json)
        return
    if name and (folder := download_model(name, revision, ask=ask, progress=progress)) is not None:
        print_done([one_line(f"{name} is in {folder}")], as_json=as_json)
        return
    print_to_stderr("nothing was downloaded")
    raise typer.Exit(EXIT_STOPPED)


@app.command()
def install(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="unsloth, gguf, an extra such as gpu, or a library.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Install what a check suggests: an extra of tui-trainer, a library, unsloth in its own environment, or what an
    export such as gguf needs. Shows the commands, and asks first."""
    from tui_trainer.downloading import converter, environment
    from tui_trainer.exporting.formats.gguf import Gguf, converter_folder
    from tui_trainer.models.unsloth import PACKAGE_NAME, environment_folder, installed_version

    is_unsloth = names == [PACKAGE_NAME]
    if is_unsloth:
        folder = environment_folder()
        note = f", replacing {installed_version()}" if installed_version() else ""
        contents = f"{PACKAGE_NAME} with its own torch, about {environment.SIZE_GIB:g} GiB,"
        heading = f"{contents} would be installed in {folder}{note}:"
        commands = environment.creation_commands(folder)
    else:
        heading = f"this command would install into the environment of tui-trainer, {sys.prefix}:"
        commands = [environment.install_command(names)]
    lines = [heading, *(f"  {shlex.join(command)}" for command in commands)]
    needs_converter = any(name.startswith(Gguf.name) for name in names)
    if needs_converter:
        lines.append(f"llama.cpp's converter would be fetched from {one_line(converter.index_url())}")
        lines.append(f"  a source package of {converter.SIZE_MIB} MiB, of which 2 MiB stay in {converter_folder()}")
    if not user_confirms("install", lines, yes=yes, as_json=as_json):
        print_to_stderr("nothing was installed")
        raise typer.Exit(EXIT_STOPPED)
    if is_unsloth:
        version = environment.make_environment(print_to_stderr)
        setting = f"set model.provider = {PACKAGE_NAME} to train with it"
        result_lines = [f"{PACKAGE_NAME} {version} is in {folder}; {setting}"]
    else:
        result_lines = [*environment.install_here(commands[0], print_to_stderr), "restart tui-trainer if it is running"]
    if needs_converter:
        folder = converter.fetch_converter(transfer_progress(as_json))
        result_lines.append(one_line(f"llama.cpp's converter is in {folder}"))
    print_done(result_lines, as_json=as_json)


def user_confirms(verb: str, lines: Sequence[str], *, yes: bool, as_json: bool = False) -> bool:
    """Print what would be done, and return whether the user confirms it. Raises InputError without a terminal.

    With `as_json` nobody is asked: the lines are printed as JSON, and the command ends."""
    if not as_json:
        print("\n".join(lines), flush=True)
    if yes:
        return True
    if as_json:
        print_json({"offer": list(lines), "hint": f"add --yes to {verb} it"})
        raise typer.Exit(EXIT_STOPPED)
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("cannot ask for confirmation without a terminal", hint=f"add --yes to {verb} without asking")
    return typer.confirm(f"{verb} it?", default=False)


def print_done(lines: Sequence[str], *, as_json: bool, **more: str) -> None:
    print_result({"words": list(lines), **more}, lines, as_json)


def _fetch_data(path: str, revision: str, ask: "Callable[[DownloadOffer], bool]", progress: "Progress") -> list[str]:
    """Download a data set. Return lines about its folder, splits and data.path; empty if the user declines."""
    from tui_trainer.config.editing import toml_text
    from tui_trainer.data.sources.hub import parse_hub_path
    from tui_trainer.data.sources.source import open_source
    from tui_trainer.downloading.hub import download_data

    hub_path = parse_hub_path(path, revision)
    folder = download_data(hub_path, ask=ask, progress=progress)
    if folder is None:
        return []
    lines = [one_line(f"{hub_path.name} is in {folder}")]
    try:
        source = open_source(str(hub_path))
    except DataError as error:
        lines.append(one_line(str(error)))
    else:
        if source.other_splits:
            labels = ", ".join(one_line(split.label, 60) for split in (source.split, *source.other_splits) if split)
            uses = "train is used for training, validation for evaluation, test is not used;"
            lines += [f"the splits are {labels}: {uses}", "set data.split and data.eval_split to use other splits"]
    return [*lines, f"data.path = {toml_text(str(hub_path))}"]


def offer_lines(offer: "DownloadOffer") -> list[str]:
    """Return lines about what would be downloaded: name, size, licence, source and target."""
    from tui_trainer.downloading.hub import host
    from tui_trainer.hardware.storage import read_place
    from tui_trainer.units import format_bytes

    free_bytes = read_place("model cache", offer.target).free_bytes
    note = "" if offer.missing_bytes == offer.size_bytes else f", {format_bytes(offer.missing_bytes)} still to download"
    gate_note = " (only for accounts that accepted the licence on the hub)" if offer.gated else ""
    return labelled([
        (offer.kind.word, f"{offer.name}, revision {offer.revision}"),
        ("size", f"{size_words(offer)}{note}"),
        ("skipped", offer.left_out_words),
        ("licence", f"{offer.license or 'not stated'}{gate_note}"),
        ("from", host()),
        ("folder", str(offer.target)),
        ("disk", f"{format_bytes(free_bytes)} free" if free_bytes is not None else ""),
    ])  # fmt: skip


def size_words(offer: "DownloadOffer | PublishOffer") -> str:
    """Return the size of a transfer in words, such as `1.2 GiB in 4 files`."""
    from tui_trainer.units import format_bytes, quantity

    return f"{format_bytes(offer.size_bytes)} in {quantity(len(offer.files), 'file')}"


def labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each pair of label and text, safe for a terminal. Pairs without text are left out."""
    return [f"{label:<8} {one_line(text)}" for label, text in rows if text]


def transfer_progress(as_json: bool = False) -> "Progress":
    """Return the function that shows progress: as JSON, in place on a terminal, or as a line for each tenth."""
    if as_json:
        return write_progress
    if sys.stderr is not None and sys.stderr.isatty():
        return show_progress
    shown_tenths = -1

    def print_tenths(action: str, done: float, total: float | None, unit: str) -> None:
        nonlocal shown_tenths
        tenth = int(10 * done / total) if total else 0
        if tenth > shown_tenths:
            shown_tenths = tenth
            print_to_stderr(f"{action}: {tenth * 10} % of {total or done:,.0f} {unit}")

    return print_tenths
