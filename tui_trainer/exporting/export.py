"""Export a trained model: write it into a temporary folder, compare it with the trained model, then rename the folder.

For the comparison, each of the two models is loaded in a fresh process and evaluated on held-out rows."""

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

from tui_trainer.config.changes import settings_words
from tui_trainer.data.progress import Progress
from tui_trainer.errors import ConfigError, FolderError, InputError, RunError, system_reason
from tui_trainer.exporting.check_serving import SERVING_FILE
from tui_trainer.exporting.contract import Format, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel, config_in, finish_of
from tui_trainer.files.local_paths import absolute_path, path_exists
from tui_trainer.hardware.storage import nearest_existing
from tui_trainer.models.heads import CLASSIFYING_HEADS
from tui_trainer.planning.disk import space_words
from tui_trainer.planning.measured_steps import StepKey
from tui_trainer.reporting.facts import CERTIFICATE_FILE, certificates
from tui_trainer.reporting.manifest import write_manifest
from tui_trainer.runs.folder import folder_size, make_durable, put_in_place, read_fields, write_atomically
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.runs.lock import FileLock
from tui_trainer.runs.registry import known_runs
from tui_trainer.runs.result import display_name, format_score
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes, format_number
from tui_trainer.worker.asking import WorkerFailed, ask

EVALUATED_ROWS = 200
_TIMEOUT_SECONDS = 3600.0
_SMALL_FILES_BYTES = 16 * MIB
# Allowed difference between the held-out loss that the run measured and the loss of its model on the CPU, as a share of
# the loss, by precision of the run. It is larger after QLoRA, because the exported base model is not in 4 bits.
_LOSS_SHARES = {"fp32": 0.01, "bf16": 0.03, "fp16": 0.03, "4 bits": 0.1}
# Smaller losses are treated as this one, because a share of a loss near 0 would allow no difference.
_SMALLEST_LOSS = 0.3
# Standard errors that are added to the allowed difference if the run was evaluated on other rows.
_STANDARD_ERRORS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredExport:
    """Results of one model on held-out rows: loss in nats per label, scores of the task, and bytes of its folder."""

    loss: float
    scores: dict[str, float]
    seconds_per_row: float
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """Result of comparing an export with the trained model. `faults` lists differences that are too large.

    `run_loss` is the held-out loss that the run itself measured; None if it measured none. `logit_difference` is the
    largest difference as a share of the largest logit. `seconds` is the duration of the whole export."""

    format: str
    rows: int
    logit_difference: float | None
    tolerance: Tolerance
    trained: MeasuredExport
    exported: MeasuredExport | None
    faults: tuple[str, ...]
    seconds: float | None = None
    run_loss: float | None = None
    notes: tuple[str, ...] = ()
    """Sentences about the stop tokens of the export, and generation settings of the base model that it leaves out."""

    def lines(self) -> list[str]:
        if self.exported is None:
            return [f"{self.format}: differs from the trained model: {'; '.join(self.faults)}"]
        before, after = self.trained, self.exported
        score_words = "".join(
            f", {display_name(name)} {format_score(value)} -> {format_score(after.scores[name])}"
            for name, value in before.scores.items()
        )
        words = f"differ by {self.logit_difference:.1e} of the largest logit (allowed {self.tolerance.logits:.0e})"
        return [
            f"reloaded in a fresh process and compared on {self.rows} held-out rows:",
            f"  logits {words}",
            f"  held-out loss {before.loss:.4f} -> {after.loss:.4f}{score_words}",
            f"  {format_bytes(before.bytes)} -> {format_bytes(after.bytes)}, "
            f"{format_number(1e3 * before.seconds_per_row, 2)} -> {format_number(1e3 * after.seconds_per_row, 2)} "
            f"ms/row on the CPU",
            *(f"  {note}" for note in self.notes),
            *(f"  differs from the trained model: {fault}" for fault in self.faults),
        ]

    def text(self) -> str:
        return json.dumps({"is_good": not self.faults, **replace_non_finite(asdict(self))}, indent=1, allow_nan=False)


class Certifier:
    """Comparison of exports with one trained model, which is measured only once."""

    def __init__(self, trained: TrainedModel) -> None:
        self._trained = trained
        self._trained_answer: dict[str, Any] = {}

    @property
    def serving(self) -> dict[str, Any] | None:
        """Content of `serving.json` of an export that was compared; None if the model holds no conversations."""
        return self._trained_answer.get("serving")

    def certify(self, export_format: Format, folder: Path) -> Certificate:
        """Compare the export in `folder` with the trained model. Raises RunError if the model cannot be measured."""
        try:
            self._trained_answer = self._trained_answer or self._measure(self._trained.folder, "", None)
        except WorkerFailed as failure:
            raise RunError(f"the trained model cannot be measured: the process {failure}") from None
        trained_answer, tolerance = self._trained_answer, export_format.tolerance(self._trained)
        logit_difference, exported = None, None
        try:
            export_answer = self._measure(folder, export_format.name, trained_answer["texts"])
        except WorkerFailed as failure:
            faults = [f"the export cannot be loaded: {failure.reason or failure}"]
        else:
            before, after = trained_answer["logits"], export_answer["logits"]
            largest_logit = max(float(np.abs(before).max()), 1e-9)
            is_comparable = before.shape == after.shape
            logit_difference = float(np.abs(before - after).max() / largest_logit) if is_comparable else math.inf
            exported = _measured_export(export_answer, folder_size(folder).bytes)
            faults = _faults(trained_answer, export_answer, logit_difference, tolerance)
        finish = finish_of(self._trained.run)
        run_loss = (finish.calibrated_loss or finish.eval_loss) if finish else None
        return Certificate(
            format=export_format.name,
            rows=trained_answer["rows"],
            logit_difference=logit_difference,
            tolerance=tolerance,
            trained=_measured_export(trained_answer, self._trained.weight_bytes),
            exported=exported,
            faults=(*self._changes_since_run(trained_answer, run_loss), *faults),
            run_loss=run_loss,
            notes=tuple(generation_notes(self._trained, self.serving)),
        )

    def _changes_since_run(self, before: dict[str, Any], run_loss: float | None) -> list[str]:
        """Return a fault if the loss of the model in the run folder is not the loss that the run measured; else []."""
        if run_loss is None or not math.isfinite(run_loss):
            return []
        config, precision = self._trained.plan.config, self._trained.plan.precision.value
        loss_share = _LOSS_SHARES["4 bits" if config.tuning.in_four_bits else precision]
        margin = loss_share * max(run_loss, _SMALLEST_LOSS) + _STANDARD_ERRORS * before["loss_error"]
        if abs(before["loss"] - run_loss) <= margin:
            return []
        loss_words = f"held-out loss {before['loss']:.4f} instead of {run_loss:.4f} (allowed difference {margin:.4f})"
        return [f"the model in the run's folder itself has changed since the run: {loss_words}"]

    def _measure(self, folder: Path, name: str, texts: list[str] | None) -> dict[str, Any]:
        question: dict[str, Any] = {"run": str(self._trained.run.root), "folder": str(folder), "format": name}
        with tempfile.TemporaryDirectory() as logits_folder:
            question |= {"texts": texts, "rows": EVALUATED_ROWS, "logits": f"{logits_folder}/logits.npy"}
            answer = ask("compare_export", question, timeout_seconds=_TIMEOUT_SECONDS)
            return {**answer, "logits": np.load(f"{logits_folder}/logits.npy")}


def generation_notes(trained: TrainedModel, serving: dict[str, Any] | None) -> Iterator[str]:
    """Yield sentences about the tokens at which an export stops, and the settings of the base model that it lacks."""
    if serving:
        yield f"generation stops at {', '.join(one_line(stop['token'], 60) for stop in serving['stops'])}"
    with suppress(ConfigError):  # the base model may be gone
        if settings := trained.task.shaping_settings(trained.plan.config):
            words = settings_words(settings)
            yield f"left out of the base model's generation settings, as the data contradicts them: {words}"


def _measured_export(answer: dict[str, Any], size_bytes: int) -> MeasuredExport:
    return MeasuredExport(bytes=size_bytes, **{name: answer[name] for name in ("loss", "scores", "seconds_per_row")})


def _faults(before: dict[str, Any], after: dict[str, Any], difference: float, tolerance: Tolerance) -> list[str]:
    faults = []
    if not difference <= tolerance.logits:
        allowed_words = f"more than the allowed {tolerance.logits:.0e}"
        faults.append(f"the logits differ by {difference:.1e} of the largest logit, {allowed_words}")
    if not abs(after["loss"] - before["loss"]) <= tolerance.loss * max(abs(before["loss"]), 1e-3):
        faults.append(f"the held-out loss is {after['loss']:.4f} instead of {before['loss']:.4f}")
    if after["labels"] != before["labels"]:
        faults.append(f"the labels are {', '.join(after['labels'])} instead of {', '.join(before['labels'])}")
    if after["token_ids"] is None:
        faults.append("the export has no tokenizer")
    elif after["token_ids"] != before["token_ids"]:
        faults.append("the tokenizer splits texts differently")
    return faults


def writing_folder(target: Path) -> Path:
    """Return the temporary folder into which an export for `target` is written, `.writing-NAME` beside it."""
    return target.with_name(f".writing-{target.name}")


def target_lock(target: Path, command: str) -> FileLock:
    """Return the lock that a process holds while it writes the export at `target` or reads all of it."""
    return FileLock(target.with_name(f".writing-{target.name}.lock"), command, target)


def remove_unfinished(target: Path) -> None:
    """Remove the temporary folder of a killed export to `target`, unless another process is writing there."""
    with suppress(FolderError), target_lock(target, "export"):
        shutil.rmtree(writing_folder(target), ignore_errors=True)


def target_of(trained: TrainedModel, export_format: Format, out: Path | None) -> Path:
    """Return the folder for an export. Raises InputError if the model cannot be exported or written there."""
    if reason := export_format.reason_against(trained):
        raise InputError(f"{trained.run.name} cannot be exported to {export_format.name}: {reason}")
    target = absolute_path(str(out)) if out else trained.run.exports / export_format.name
    if out and path_exists(str(target)) and (not target.is_dir() or any(target.iterdir())):
        raise FolderError("already exists and is not empty", where=str(target), hint="choose a new folder with --out")
    needed_bytes = export_format.needed_bytes(trained) + _SMALL_FILES_BYTES
    free_bytes = shutil.disk_usage(nearest_existing(target)).free
    if needed_bytes > free_bytes:
        hint = "choose a folder on another disk with --out"
        raise FolderError(space_words("the export needs", needed_bytes, free_bytes), where=str(target), hint=hint)
    return target


def expected_seconds(trained: TrainedModel, export_format: Format) -> float | None:
    """Return the seconds that the newest export of such a model to this format took on this machine, or None."""
    trained_key = StepKey.read(trained.plan.shape_key)
    for run in reversed(known_runs()):
        run_key = StepKey.read(read_fields(run.plan).get("shape_key"))
        if trained_key is None or run_key is None or run_key.model != trained_key.model:
            continue
        for certificate in certificates(run).values():
            with suppress(LookupError, TypeError, ValueError):
                if certificate["format"] == export_format.name:
                    return float(certificate["seconds"])
    return None


def export(
    trained: TrainedModel, export_format: Format, target: Path, certifier: Certifier, progress: Progress
) -> tuple[Path, Certificate]:
    """Write an export, compare it with the trained model and return (its folder, its certificate).

    Raises FolderError if the folder cannot be used, and RunError if the export fails; no files remain then. If the
    export differs from the trained model, its folder is renamed to `failed-NAME`."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"cannot be created: {system_reason(error)}", where=one_line(str(target), 300)) from None
    with target_lock(target, f"export {trained.run.name} --to {export_format.name}"):
        return _export_locked(trained, export_format, target, certifier, progress)


def _export_locked(
    trained: TrainedModel, export_format: Format, target: Path, certifier: Certifier, progress: Progress
) -> tuple[Path, Certificate]:
    started_at, temporary_folder = monotonic(), writing_folder(target)
    shutil.rmtree(temporary_folder, ignore_errors=True)
    try:
        temporary_folder.mkdir(mode=0o700)
    except OSError as error:
        raise FolderError(f"cannot be created: {system_reason(error)}", where=one_line(str(target), 300)) from None
    try:
        with _quiet():
            export_format.write(trained, temporary_folder, progress)
            if trained.head in CLASSIFYING_HEADS:
                write_manifest(temporary_folder, trained.plan, config_in(trained, trained.folder))
        make_durable(temporary_folder)
    except BaseException as error:  # Ctrl+C as well
        shutil.rmtree(temporary_folder, ignore_errors=True)
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        error_prefix = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
        reason = f"{error_prefix}{one_line(str(error), 300)}"
        raise RunError(f"{trained.run.name} could not be exported to {export_format.name}: {reason}") from error
    progress("comparing with the trained model", 0, None, "")
    try:
        certificate = replace(certifier.certify(export_format, temporary_folder), seconds=monotonic() - started_at)
    except BaseException:
        shutil.rmtree(temporary_folder, ignore_errors=True)
        raise
    if certifier.serving:
        content = json.dumps(certifier.serving, ensure_ascii=False, indent=1)
        write_atomically(temporary_folder / SERVING_FILE, content.encode())
    write_atomically(temporary_folder / CERTIFICATE_FILE, certificate.text().encode())
    target = target.with_name(f"failed-{target.name}") if certificate.faults else target
    put_in_place(temporary_folder, target)
    return target, certificate


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context that suppresses the output of libraries, which would disturb JSON on standard output."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    standard_logging.disable(standard_logging.WARNING)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        standard_logging.disable(standard_logging.NOTSET)
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
