"""Commands on the results of a run: diagnosis, report, exports, publication, and uploads to trackers."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tui_trainer.cli.application import (
    HELD_LOCKS,
    AsJson,
    RunReference,
    app,
    lock_named_run,
    option,
    print_result,
    run_named,
    trained_model,
)
from tui_trainer.cli.models import labelled, print_done, size_words, transfer_progress, user_confirms
from tui_trainer.errors import EXIT_FAILED, EXIT_STOPPED, FolderError, InputError, system_reason
from tui_trainer.exporting.formats import format_names
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.terminal.standard_files import print_to_stderr, show_progress, write_progress

if TYPE_CHECKING:
    from tui_trainer.exporting.publishing import PublishOffer

_MOST_FILES = 30


@app.command()
def doctor(
    run: RunReference = "last",
    as_json: AsJson = False,
    fix: Annotated[Path | None, option("--fix", "OUT.toml", "Write the run's config with the fixes.")] = None,
) -> None:
    """Show where a run loses time or what is wrong with it, with numbers, and what to change next time."""
    from tui_trainer.lines.doctor import print_verdict

    print_verdict(run_named(run), as_json=as_json, fix=fix)


@app.command()
def report(
    run: RunReference = "last",
    out: Annotated[Path | None, option("--out", "FOLDER", "Write to this folder instead of the run's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report of a run as report.md and report.html; with --json, print the same facts."""
    from tui_trainer.files.local_paths import absolute_path
    from tui_trainer.reporting.facts import facts_of, to_json
    from tui_trainer.reporting.page import write_report

    folder = run_named(run)
    if as_json:
        if out is not None:
            raise InputError("--json cannot be combined with --out", hint="remove one of them")
        print(to_json(facts_of(folder)))
        return
    try:
        if out is not None:
            out = absolute_path(str(out))
            out.mkdir(parents=True, exist_ok=True)
        report_files = write_report(folder, out)
    except OSError as error:
        message = f"could not write the report: {system_reason(error)}"
        raise FolderError(message, where=str(out or folder.root)) from None
    print("\n".join(one_line(str(path)) for path in report_files))


@app.command()
def export(
    run: RunReference = "last",
    to: Annotated[list[str] | None, option("--to", "FORMAT", f"{', '.join(format_names())}; may be repeated.")] = None,
    out: Annotated[Path | None, option("--out", "FOLDER", "Write to this folder instead of RUN/export/FORMAT.")] = None,
    as_json: AsJson = False,
) -> None:
    """Export a run's model to another format, load it again, and compare it with the trained model."""
    from tui_trainer.exporting.contract import find_format

    if not to:
        raise InputError("no format was given", hint=f"--to {', --to '.join(format_names())}")
    if out and len(to) > 1:
        raise InputError("--out can be used with only one format", hint="export the formats one by one")
    formats = [find_format(name) for name in dict.fromkeys(to)]
    folder = lock_named_run(run, "export")
    from tui_trainer.exporting.export import Certifier, expected_seconds, target_lock, target_of
    from tui_trainer.exporting.export import export as write
    from tui_trainer.units import format_bytes, format_seconds

    trained = trained_model(folder)
    certifier = Certifier(trained)
    targets = [target_of(trained, export_format, out) for export_format in formats]
    for target in targets:
        target_lock(target, "").refuse()
    all_match = True
    progress = write_progress if as_json else show_progress
    for export_format, target in zip(formats, targets, strict=True):
        if not as_json:
            seconds = expected_seconds(trained, export_format)
            time = f", about {format_seconds(seconds)}, judging by earlier exports on this machine" if seconds else ""
            size = format_bytes(export_format.needed_bytes(trained))
            print(f"{export_format.name}: about {size}{time}", flush=True)
        with redirect_stdout(sys.stderr):  # libraries print warnings, but with --json standard output must be JSON only
            path, certificate = write(trained, export_format, target, certifier, progress)
        all_match &= not certificate.faults
        if as_json:
            facts = json.loads(certificate.text())
            print(json.dumps({"folder": str(path), "words": certificate.lines(), **facts}))
        else:
            print("\n".join([f"{export_format.title}: {one_line(str(path))}", *certificate.lines()]))
    if not all_match:
        kept_words = "its folder is kept under a name that begins with failed-"
        print_to_stderr(f"the export differs from the trained model; {kept_words}")
        raise typer.Exit(EXIT_FAILED)


@app.command()
def check_serving(
    url: Annotated[str, typer.Argument(metavar="URL", help="The address of llama-server, vLLM or Ollama.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The export of a chat model that is served.")],
    model: Annotated[str, option("--model", "NAME", "The server's name of the model, if it has several.")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the tokens, stops and answers of a running server with those of training. Exit code 1 if they differ."""
    from dataclasses import asdict

    from tui_trainer.exporting import check_serving as serving
    from tui_trainer.files.local_paths import absolute_path

    def show(done: int, total: int) -> None:
        (write_progress if as_json else show_progress)("asking the server", done, total, "conversations")

    check = serving.check_serving(url, serving.read_serving(absolute_path(str(folder))), model, show)
    facts = {"is_same": not check.causes, **asdict(check), "words": check.lines()}
    print_result(facts, list(map(one_line, check.lines())), as_json)
    if check.causes:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def publish(
    run: RunReference = "last",
    to: Annotated[str, option("--to", "OWNER/NAME", "The repository on the hub.")] = "",
    export: Annotated[str, option("--export", "FORMAT", "Publish an export instead of the model.")] = "",
    private: Annotated[bool, typer.Option("--private/--public", help="Visibility of a new repository.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a run's model to the Hugging Face Hub. Shows what would be uploaded, and asks first."""
    from tui_trainer.exporting.publishing import make_offer, source_of
    from tui_trainer.exporting.publishing import publish as send

    folder = lock_named_run(run, "publish")
    if not to:
        hint = f"`tui-trainer publish {shell_word(folder.name)} --to OWNER/NAME`"
        raise InputError("no repository was given", hint=hint)
    source = source_of(folder, export)
    if export:
        from tui_trainer.exporting.export import target_lock

        # Without the lock, a new export could replace the folder during the upload.
        HELD_LOCKS.enter_context(target_lock(source, f"publish {folder.name}"))
    offer = make_offer(folder, source, to, private=private)
    if not user_confirms("publish", _offer_lines(offer), yes=yes, as_json=as_json):
        print_to_stderr("nothing was published")
        raise typer.Exit(EXIT_STOPPED)
    url = send(offer, transfer_progress(as_json))
    print_done([f"{one_line(folder.name)} is published at {url}"], as_json=as_json, url=str(url))


def _offer_lines(offer: "PublishOffer") -> list[str]:
    """Return lines about what would be published and where, who could see it, and what was removed."""
    from tui_trainer.units import format_bytes

    existence_text = "" if offer.exists is None else ", which already exists"
    rows = [
        ("to", f"{offer.name}{existence_text}"),
        ("seen by", "you and people you give access to (private)" if offer.private else "everyone (public)"),
        ("size", size_words(offer)),
        *(("file", f"{format_bytes(file.size_bytes):>10}  {file.name}") for file in offer.files[:_MOST_FILES]),
        ("on", offer.base_model),
        ("licence", (offer.license or "unknown: see the model's page") if offer.base_model else ""),
        *(("note", note) for note in offer.notes),
    ]
    if len(offer.files) > _MOST_FILES:
        rows.append(("file", f"and {len(offer.files) - _MOST_FILES} more"))
    return labelled(rows)


@app.command()
def track(
    run: RunReference = "last",
    to: Annotated[
        list[str] | None, option("--to", "TRACKER", "tensorboard, wandb, mlflow or trackio; may be repeated.")
    ] = None,
) -> None:
    """Upload a finished run to trackers (only what is missing). An active run uses logging.report_to instead."""
    from tui_trainer.runs.lock import lock_hint, read_lock_owner
    from tui_trainer.runs.overview import overview
    from tui_trainer.tracking.contract import find_tracker, tracker_names, tracker_problems
    from tui_trainer.tracking.feeder import Feeder

    folder, names = lock_named_run(run, "track"), list(dict.fromkeys(to or []))
    if not names:
        raise InputError("no tracker was given", hint=f"--to {', --to '.join(tracker_names())}")
    if problems := tracker_problems(names):
        raise InputError(problems)
    if holder := read_lock_owner(folder.lock):
        hint = lock_hint(holder, folder.lock, "an active run reports to the trackers of logging.report_to")
        raise InputError(f"{folder.name} is active: {holder}", hint=hint)

    def notify(*words: str) -> None:
        print_to_stderr("; ".join(filter(None, words)))

    status, has_failed = overview(folder).status, False
    for name in names:
        feeder = Feeder(folder, find_tracker(name), notify, most_failures=1)
        sent_before = feeder.sent_events
        feeder.end(status)
        has_failed |= feeder.given_up
        if not feeder.given_up:
            new_events = feeder.sent_events - sent_before
            print(f"{name}: {new_events} events uploaded" if new_events > 0 else f"{name} is up to date")
    if has_failed:
        raise typer.Exit(EXIT_FAILED)
