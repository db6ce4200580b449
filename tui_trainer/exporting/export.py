"""A trained model in another form: written beside, renamed when it is whole, and compared with what was trained."""

import logging as standard_logging
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import monotonic

from tui_trainer.errors import FolderError, InputError, RunError
from tui_trainer.exporting.certificate import Certificate, Certifier
from tui_trainer.exporting.contract import Format, Tell
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.hardware.places import nearest_existing
from tui_trainer.local_paths import from_the_root, is_here
from tui_trainer.reporting.facts import CERTIFICATE_FILE, certificates
from tui_trainer.runs.folder import make_durable, put_in_place, write_atomically
from tui_trainer.runs.registry import known_runs
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

_SMALL_FILES_BYTES = 16 * MIB


def writing_folder(target: Path) -> Path:
    """Where it lies until it is whole; all that an export writes beside its result lies in it as well."""
    return target.with_name(f".writing-{target.name}")


def target_of(trained: TrainedModel, export_format: Format, out: Path | None) -> Path:
    """Where it is going to be. Raises InputError for what can be known before anything is written."""
    if why := export_format.refusal(trained):
        raise InputError(f"{trained.run.name} cannot be exported to {export_format.name}: {why}")
    target = from_the_root(str(out)) if out else trained.run.exports / export_format.name
    if out and is_here(str(target)) and (not target.is_dir() or any(target.iterdir())):
        raise FolderError("is there already, and not empty", where=str(target), hint="name a new folder with --out")
    needed = export_format.needed_bytes(trained) + _SMALL_FILES_BYTES
    free = shutil.disk_usage(nearest_existing(target)).free
    if needed > free:
        hint = "name a folder on another disk with --out"
        message = f"{format_bytes(needed)} would be written and {format_bytes(free)} are free"
        raise FolderError(message, where=str(target), hint=hint)
    return target


def expected_seconds(trained: TrainedModel, export_format: Format) -> float | None:
    """How long an export takes here, going by an earlier one to this format, of the model nearest in size; None where
    there was none."""
    times, own = dict[float, float](), trained.weight_bytes
    for run in known_runs():
        for one in certificates(run).values():
            with suppress(LookupError, TypeError, ValueError):
                before, seconds = float(one["trained"]["bytes"]), float(one["seconds"])
                if one["format"] == export_format.name and before > 0:
                    times[before] = seconds
    nearest = min(times, key=lambda before: abs(math.log(before / own)), default=None)
    return None if nearest is None else times[nearest] * max(1.0, own / nearest)


def export(
    trained: TrainedModel, export_format: Format, target: Path, certifier: Certifier, tell: Tell
) -> tuple[Path, Certificate]:
    """Its folder. Raises FolderError, and RunError where it cannot be written; then nothing is left of it. What its
    certificate finds faulty stays, under the name `failed-FORMAT`."""
    started, beside = monotonic(), writing_folder(target)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise FolderError(f"cannot be made: {error.strerror}", where=one_line(str(target), 300)) from None
    try:
        with _quiet():
            export_format.write(trained, beside, tell)
        make_durable(beside)
    except BaseException as error:  # Ctrl+C as well
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        kind = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
        reason = f"{kind}{one_line(str(error), 300)}"
        raise RunError(f"{trained.run.name} could not be exported to {export_format.name}: {reason}") from error
    tell("comparing with the trained model", 0, None, "")
    try:
        found = replace(certifier.certify(export_format, beside), seconds=monotonic() - started)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    write_atomically(beside / CERTIFICATE_FILE, found.text().encode())
    target = target.with_name(f"failed-{target.name}") if found.faults else target
    put_in_place(beside, target)
    return target, found


@contextmanager
def _quiet() -> Iterator[None]:
    """Libraries tell their own steps, on standard output as well, where JSON may be wanted."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    standard_logging.disable(standard_logging.WARNING)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        standard_logging.disable(standard_logging.NOTSET)
        logging.set_verbosity(before)
        logging.enable_progress_bar()
