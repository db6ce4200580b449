"""A trained model in another form: written beside, renamed when it is whole, and compared with what was trained.

For that both are loaded in processes of their own, and asked about held-out rows.
"""

import json
import logging as standard_logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from tui_trainer.data.progress import Progress
from tui_trainer.errors import FolderError, InputError, RunError, system_reason
from tui_trainer.exporting.contract import Format, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel, finish_of
from tui_trainer.files.local_paths import from_the_root, is_here
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.planning.disk import space_words
from tui_trainer.planning.measured_steps import StepKey
from tui_trainer.reporting.facts import CERTIFICATE_FILE, certificates
from tui_trainer.runs.folder import folder_size, make_durable, put_in_place, read_fields, write_atomically
from tui_trainer.runs.json_fields import finite
from tui_trainer.runs.lock import FileLock
from tui_trainer.runs.registry import known_runs
from tui_trainer.runs.result import number, plain
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes, format_number
from tui_trainer.worker.asking import WorkerFailed, ask

ROWS = 200
_TIMEOUT_SECONDS = 3600.0
_SMALL_FILES_BYTES = 16 * MIB
# What the loss of a run may differ by from that of its model on the CPU, as a share, by what the run computed in: its
# base model in 4 bits is not the one that is exported. Below so small a loss, of that loss.
_RUN_SHARES = {"fp32": 0.01, "bf16": 0.03, "fp16": 0.03, "4 bits": 0.1}
_SMALLEST_LOSS = 0.3
# Added where fewer rows are measured than the run measured.
_STANDARD_ERRORS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredExport:
    """One model on held-out rows: `loss` in nats a label, `scores` as the task has them, bytes of its folder."""

    loss: float
    scores: dict[str, float]
    seconds_per_row: float
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """`faults` says what is not as it was trained; it is good where there are none.

    `run_loss` is the held-out loss that the run itself measured of its model; None where it measured none.
    `logit_difference` is the largest one, as a share of the largest logit; `seconds` is how long the whole export took.
    """

    format: str
    rows: int
    logit_difference: float | None
    tolerance: Tolerance
    trained: MeasuredExport
    exported: MeasuredExport | None
    faults: tuple[str, ...]
    seconds: float | None = None
    run_loss: float | None = None

    def lines(self) -> list[str]:
        if self.exported is None:
            return [f"{self.format}: differs from the trained model: {'; '.join(self.faults)}"]
        before, after = self.trained, self.exported
        scores = "".join(
            f", {plain(name)} {number(value)} -> {number(after.scores[name])}" for name, value in before.scores.items()
        )
        logits = f"differ by {self.logit_difference:.1e} of the largest logit (allowed {self.tolerance.logits:.0e})"
        return [
            f"reloaded in a fresh process and compared on {self.rows} held-out rows:",
            f"  logits {logits}",
            f"  held-out loss {before.loss:.4f} -> {after.loss:.4f}{scores}",
            f"  {format_bytes(before.bytes)} -> {format_bytes(after.bytes)}, "
            f"{format_number(1e3 * before.seconds_per_row, 2)} -> {format_number(1e3 * after.seconds_per_row, 2)} "
            f"ms/row on the CPU",
            *(f"  differs from the trained model: {fault}" for fault in self.faults),
        ]

    def text(self) -> str:
        return json.dumps({"is_good": not self.faults, **finite(asdict(self))}, indent=1, allow_nan=False)


class Certifier:
    """Compares exports with one trained model, which is measured once."""

    def __init__(self, trained: TrainedModel) -> None:
        self._trained = trained
        self._before: dict[str, Any] = {}

    def certify(self, export_format: Format, folder: Path) -> Certificate:
        """Raises RunError where the trained model itself cannot be measured."""
        try:
            self._before = before = self._before or self._ask(self._trained.folder, "", None)
        except WorkerFailed as failure:
            raise RunError(f"the trained model cannot be measured: the process {failure}") from None
        tolerance, difference, exported = export_format.tolerance(self._trained), None, None
        try:
            after = self._ask(folder, export_format.name, before["texts"])
        except WorkerFailed as failure:
            faults = [f"it cannot be loaded: {failure.reason or failure}"]
        else:
            difference = _difference(before["logits"], after["logits"])
            exported = MeasuredExport(bytes=folder_size(folder).bytes, **_figures(after))
            faults = _faults(before, after, difference, tolerance)
        # On all rows that it held out, or on those that it chose of them.
        finished = finish_of(self._trained.run)
        run_loss = finished.eval_loss if finished else None
        return Certificate(
            format=export_format.name,
            rows=before["rows"],
            logit_difference=difference,
            tolerance=tolerance,
            trained=MeasuredExport(bytes=self._trained.weight_bytes, **_figures(before)),
            exported=exported,
            faults=(*self._faults_of_the_run(before, run_loss), *faults),
            run_loss=run_loss,
        )

    def _faults_of_the_run(self, before: dict[str, Any], run_loss: float | None) -> list[str]:
        """What the trained model itself is not any more, which the exports would be compared with."""
        if run_loss is None or not math.isfinite(run_loss):
            return []
        config, precision = self._trained.plan.config, self._trained.plan.precision.value
        share = _RUN_SHARES["4 bits" if config.tuning.in_four_bits else precision]
        allowed = share * max(run_loss, _SMALLEST_LOSS) + _STANDARD_ERRORS * before["loss_error"]
        if abs(before["loss"] - run_loss) <= allowed:
            return []
        losses = f"held-out loss {before['loss']:.4f} instead of {run_loss:.4f} (allowed difference {allowed:.4f})"
        return [f"the model in the run's folder itself has changed since the run: {losses}"]

    def _ask(self, folder: Path, name: str, texts: list[str] | None) -> dict[str, Any]:
        question: dict[str, Any] = {
            "run": str(self._trained.run.root),
            "folder": str(folder),
            "format": name,
            "texts": texts,
        }
        with tempfile.TemporaryDirectory() as place:
            question |= {"rows": ROWS, "logits": f"{place}/logits.npy"}
            answer = ask("compare_export", question, timeout_seconds=_TIMEOUT_SECONDS)
            return {**answer, "logits": np.load(f"{place}/logits.npy")}


def _figures(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("loss", "scores", "seconds_per_row")}


def _difference(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(one - other).max() / max(float(np.abs(one).max()), 1e-9))


def _faults(before: dict[str, Any], after: dict[str, Any], difference: float, allowed: Tolerance) -> list[str]:
    faults = []
    if not difference <= allowed.logits:
        faults.append(
            f"its logits differ by {difference:.1e} of the largest logit, more than the allowed {allowed.logits:.0e}"
        )
    if not abs(after["loss"] - before["loss"]) <= allowed.loss * max(abs(before["loss"]), 1e-3):
        faults.append(f"its held-out loss is {after['loss']:.4f} instead of {before['loss']:.4f}")
    if after["labels"] != before["labels"]:
        faults.append(f"its labels are {', '.join(after['labels'])} instead of {', '.join(before['labels'])}")
    if after["token_ids"] is None:
        faults.append("it has no tokenizer")
    elif after["token_ids"] != before["token_ids"]:
        faults.append("its tokenizer splits texts differently")
    return faults


def writing_folder(target: Path) -> Path:
    """Where it lies until it is whole; all that an export writes beside its result lies in it as well."""
    return target.with_name(f".writing-{target.name}")


def target_lock(target: Path, command: str) -> FileLock:
    """One process at a time writes an export to a place, or reads it from there as a whole."""
    return FileLock(target.with_name(f".writing-{target.name}.lock"), command, target)


def remove_unfinished(target: Path) -> None:
    """What an export that was killed could not clean up itself, unless another one is writing there."""
    with suppress(FolderError), target_lock(target, "export"):
        shutil.rmtree(writing_folder(target), ignore_errors=True)


def target_of(trained: TrainedModel, export_format: Format, out: Path | None) -> Path:
    """Where it is going to be. Raises InputError for what can be known before anything is written."""
    if why := export_format.reason_against(trained):
        raise InputError(f"{trained.run.name} cannot be exported to {export_format.name}: {why}")
    target = from_the_root(str(out)) if out else trained.run.exports / export_format.name
    if out and is_here(str(target)) and (not target.is_dir() or any(target.iterdir())):
        raise FolderError("already exists and is not empty", where=str(target), hint="choose a new folder with --out")
    needed = export_format.needed_bytes(trained) + _SMALL_FILES_BYTES
    free = shutil.disk_usage(nearest_existing(target)).free
    if needed > free:
        hint = "choose a folder on another disk with --out"
        raise FolderError(space_words("the export needs", needed, free), where=str(target), hint=hint)
    return target


def expected_seconds(trained: TrainedModel, export_format: Format) -> float | None:
    """How long an export takes here, going by the newest one of such a model to this format; None without one."""
    own = StepKey.read(trained.plan.shape_key)
    for run in reversed(known_runs()):
        key = StepKey.read(read_fields(run.plan).get("shape_key"))
        if own is None or key is None or key.model != own.model:
            continue
        for one in certificates(run).values():
            with suppress(LookupError, TypeError, ValueError):
                if one["format"] == export_format.name:
                    return float(one["seconds"])
    return None


def export(
    trained: TrainedModel, export_format: Format, target: Path, certifier: Certifier, tell: Progress
) -> tuple[Path, Certificate]:
    """Its folder. Raises FolderError, also where another process writes it, and RunError where it cannot be written;
    then nothing is left of it. What its certificate finds faulty stays, under the name `failed-FORMAT`."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot be created: {system_reason(error)}", where=one_line(str(target), 300)) from None
    with target_lock(target, f"export {trained.run.name} --to {export_format.name}"):
        return _export(trained, export_format, target, certifier, tell)


def _export(
    trained: TrainedModel, export_format: Format, target: Path, certifier: Certifier, tell: Progress
) -> tuple[Path, Certificate]:
    started, beside = monotonic(), writing_folder(target)
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(mode=0o700)
    except OSError as error:
        raise FolderError(f"cannot be created: {system_reason(error)}", where=one_line(str(target), 300)) from None
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
