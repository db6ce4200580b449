"""Compare trained models on the same rows: the task's loss and scores, and the rows whose losses differ most.

Models are loaded one after another. The two models whose rows are compared stay in host memory, if they fit, until the
rows that differ most are known."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tui_trainer.data.preparing.cache import PreparedData
from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.data.progress import Progress
from tui_trainer.errors import FolderError, InputError
from tui_trainer.exporting.contract import saved_tokenizer
from tui_trainer.exporting.measured import layout_of, prepared_data, score_rows
from tui_trainer.exporting.trained_model import (
    TrainedModel,
    base_of,
    config_in,
    labels_of,
    load_model,
    load_tokenizer,
    plan_of,
    refuse_changed_base,
)
from tui_trainer.files.local_paths import expand_home, path_exists
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.models.heads import CALIBRATION, CLASSIFYING_HEADS
from tui_trainer.planning.duration import SAMPLE_TOKENS
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import find_run

BASE, NONE = "base", "none"
_SEED = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Model to measure. `folder` has the whole model, or an adapter whose base model is in `base`. `owner` has the
    settings of the run if a run was named, and is None if a folder was named."""

    name: str
    folder: Path
    base: Path | None
    owner: TrainedModel | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModel:
    """Results of one model. `loss` and `row_losses` (one loss per row) are in nats per label."""

    name: str
    loss: float
    scores: Mapping[str, float]
    row_losses: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedRow:
    """One row with the losses and outputs of two models. `number` is the row's position among the evaluated rows."""

    number: int
    text: str
    loss_before: float
    loss_after: float
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEvaluation:
    """Results of `models`, in the order of the command line, and of the `reference` with which they are compared."""

    rows: int
    data: str
    reference: MeasuredModel | None
    models: tuple[MeasuredModel, ...]
    changed: tuple[ChangedRow, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Evaluator:
    """Evaluation on a run's held-out rows, or on a file that is read with the run's settings."""

    trained: TrainedModel
    device: torch.device
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def evaluate(
        self, models: Sequence[str], *, file: str = "", against: str = BASE, rows: int = 0, changed: int = 5
    ) -> ModelEvaluation:
        """Measure models, each named by run or folder. Raises InputError if one cannot be measured on these rows."""
        candidates = [candidate_of(name, self.trained) for name in models]
        reference = reference_of(against, self.trained, self.notes)
        tokenizer = load_tokenizer(self.trained)
        for candidate in [*candidates, *filter(None, [reference])]:
            self._refuse_incomparable(candidate, tokenizer)
        with self._data(file, tokenizer) as (trained, data):
            stored_rows = Rows(data.train_path if file else data.eval_path or data.train_path)
            is_classifier = self.trained.head in CLASSIFYING_HEADS
            if not file and is_classifier and hasattr(config_in(self.trained, self.trained.folder), CALIBRATION):
                message = "thresholds and temperature were chosen on these rows, so scores with them are optimistic"
                self.notes.append(f"{message}; use --data FILE for other rows")
            if not file and data.eval_path is None:
                self.notes.append("the run has no held-out rows, so the models are evaluated on its training rows")
            config_limit = trained.config.evaluation.max_eval_rows
            row_limit = rows or (0 if config_limit == "auto" else config_limit)
            chosen_rows = evenly_spaced(len(stored_rows), row_limit or len(stored_rows))
            measurer = MeasuredRows(trained, data, stored_rows, chosen_rows, self.device, self.progress)
            keep = reference is not None and changed > 0
            before = measurer.measure(reference, keep=keep) if reference else None
            after = measurer.measure(candidates[0], keep=keep)
            changed_rows = list[ChangedRow]()
            if before and reference:
                changed_rows = measurer.changed(reference, candidates[0], before, after, changed)
            results = (after, *map(measurer.measure, candidates[1:]))
            return ModelEvaluation(
                rows=len(chosen_rows),
                data=data.source if file else f"held-out data of {self.trained.run.name}",
                reference=before,
                models=results,
                changed=tuple(changed_rows),
                notes=tuple(self.notes),
            )

    def _refuse_incomparable(self, model: Candidate, run_tokenizer: Any) -> None:
        """Raise InputError if a model cannot be compared, because its tokens or labels differ from the run's."""
        trained, tokenizer = self.trained, saved_tokenizer(self.trained, model.folder)
        model_names = f"{model.name} and {trained.run.name}"
        if tokenizer is None:
            return
        if tokenizer.get_vocab() != run_tokenizer.get_vocab():
            if model.name == BASE:
                return
            raise InputError(f"{model_names} have different tokens, so their losses are not comparable")
        if trained.head in CLASSIFYING_HEADS and labels_of(trained, model.folder) != labels_of(trained, trained.folder):
            raise InputError(f"{model_names} have different labels, so their scores are not comparable")

    @contextmanager
    def _data(self, file: str, tokenizer: Any) -> Iterator[tuple[TrainedModel, PreparedData]]:
        """Yield (trained model with the settings for measuring, prepared data with the rows)."""
        config, task = self.trained.config, self.trained.task
        if not file:
            yield self.trained, prepared_data(self.trained, self.progress)
            return
        if config.task.class_weights != "none":
            self.notes.append("the loss is computed without class weights, because they come from the training rows")
            config = config.model_copy(update={"task": config.task.model_copy(update={"class_weights": "none"})})
        has_labels = self.trained.head in CLASSIFYING_HEADS
        model_config = config_in(self.trained, self.trained.folder).to_dict() if has_labels else {}
        with tempfile.TemporaryDirectory(prefix="evaluate-") as folder:
            data = task.prepare_file(config, file, tokenizer, model_config, Path(folder), self.progress)
            yield replace(self.trained, config=config), data


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Chosen rows on which models are measured. Each row is a separate pass, so that it has its own loss."""

    trained: TrainedModel
    data: PreparedData
    rows: Rows
    chosen: Sequence[int]
    device: torch.device
    progress: Progress
    kept_models: dict[Candidate, Any] = field(default_factory=dict)

    def measure(self, candidate: Candidate, *, keep: bool = False) -> MeasuredModel:
        """Measure one model. With `keep` it stays in host memory for `changed`, if it fits."""
        model, task, config = self._load(candidate), self.trained.task, self.trained.config
        losses: list[float] = []

        def add_pass(batch: MicroBatch, loss: float, labels: int, seconds: float) -> None:
            losses.append(loss / max(labels, 1))
            if len(losses) % 20 == 1:
                self.progress(f"measuring {candidate.name}", len(losses) - 1, len(self.chosen), "rows")

        row_parts, layout = [[index] for index in self.chosen], layout_of(self.trained, model, 1)
        loss, scores = score_rows(self.trained, self.data, model, self.rows, row_parts, layout, add_pass)
        sample_numbers = evenly_spaced(len(self.chosen), task.answer_rows(config))
        if examples := [self.rows.example(self.chosen[number]) for number in sample_numbers]:
            with torch.inference_mode():
                scores |= task.answer_scores(config, model, load_tokenizer(self.trained), examples)
        self.progress(f"measuring {candidate.name}", 1, 1, "rows")
        if keep and memory_available_now() > 2 * model.get_memory_footprint():
            self.kept_models[candidate] = model.to("cpu")
        return MeasuredModel(name=candidate.name, loss=loss, scores=scores, row_losses=losses)

    def changed(
        self, reference: Candidate, candidate: Candidate, before: MeasuredModel, after: MeasuredModel, limit: int
    ) -> list[ChangedRow]:
        """Return the rows whose losses differ most between two models, with the output of each."""
        losses = list(zip(before.row_losses, after.row_losses, strict=True))
        order = sorted(range(len(losses)), key=lambda i: -abs(losses[i][0] - losses[i][1]))[:limit]
        if not order:
            return []
        # The model that was measured last comes first.
        new_samples, old_samples = (self._samples(model, order) for model in (candidate, reference))
        return [
            ChangedRow(number=i, text=text, loss_before=losses[i][0], loss_after=losses[i][1], before=old, after=new)
            for i, (text, old), (_, new) in zip(order, old_samples, new_samples, strict=True)
        ]

    def _samples(self, candidate: Candidate, indices: Sequence[int]) -> list[tuple[str, str]]:
        model, tokenizer = self._load(candidate), load_tokenizer(self.trained)
        sampler, texts = self.trained.task.sample, []
        with torch.inference_mode():
            for index in indices:
                torch.manual_seed(_SEED)
                row = self.rows.example(self.chosen[index])
                texts.append(sampler(self.trained.config, self.data, model, tokenizer, row, new_tokens=SAMPLE_TOKENS))
        return texts

    def _load(self, candidate: Candidate) -> Any:
        if candidate in self.kept_models:
            return self.kept_models.pop(candidate).to(self.device)
        return load_candidate(self.trained, candidate, load_tokenizer(self.trained), self.device, self.progress)


def load_candidate(
    trained: TrainedModel, candidate: Candidate, tokenizer: Any, device: torch.device, progress: Progress
) -> Any:
    """Load a model on a device, for the task of `trained`. On a CPU it is in fp32, unless this takes too much."""
    progress(f"loading {candidate.name}", 0, None, "")
    dtype = trained.compared_dtype if device.type == "cpu" else "auto"
    model = load_model(trained, candidate.folder, candidate.base, dtype=dtype, merge=True)
    if trained.generates_text:
        # The base model gets the generation settings of the trained model.
        trained.task.set_generation(trained.config, model, tokenizer)
    return model.to(device)


def candidate_of(name: str, trained: TrainedModel) -> Candidate:
    """Return the candidate for a run name or a model folder. Raises FolderError, or InputError for another task."""
    folder = expand_home(name)
    if is_model_folder(folder):
        return Candidate(name, folder, _base_of_folder(folder, trained))
    other_model = TrainedModel.of(find_run(name))
    if other_model.task.name != trained.task.name:
        raise InputError(f"{other_model.run.name} was trained for {other_model.task.name}, not for {trained.task.name}")
    return Candidate(other_model.run.name, other_model.folder, other_model.base, other_model)


def reference_of(against: str, trained: TrainedModel, notes: list[str]) -> Candidate | None:
    """Return the model to compare with: "base", a run or a folder; None for "none", and for a missing base model, whose
    reason is added to `notes`. Raises FolderError and InputError as `candidate_of` does."""
    if against == NONE:
        return None
    if against != BASE:
        return candidate_of(against, trained)
    folder, reason = trained.base_model()
    if reason:
        notes.append(f"not compared with the base model: {reason}")
    return Candidate(BASE, folder, None) if folder else None


def run_of(name: str) -> RunFolder:
    """Return the run with this name, or the run whose folder contains this model folder. Raises FolderError."""
    folder = expand_home(name)
    if not is_model_folder(folder):
        return find_run(name)
    if run := _enclosing_run(folder):
        return run
    hint = "name the run before the folder: `tui-trainer evaluate RUN FOLDER`"
    raise FolderError("no run found for this model", where=name, hint=hint)


def _enclosing_run(folder: Path) -> RunFolder | None:
    """Return the run whose folder contains this folder, or None."""
    parents = folder.absolute().parents
    return next((RunFolder.open(parent) for parent in parents if (parent / "plan.json").is_file()), None)


def _base_of_folder(folder: Path, trained: TrainedModel) -> Path | None:
    """Return the folder of the base model of the adapter in `folder`; None for a whole model. Raises FolderError if the
    adapter was trained on another base model."""
    run = _enclosing_run(folder)
    if run and run.model.is_dir() and folder.samefile(run.model):
        return TrainedModel.of(run).base
    plan = plan_of(run) if run else trained.plan
    base = base_of(folder, trained.head, plan.config.model.revision)
    if base and run:
        refuse_changed_base(plan, base)
    return base


def is_model_folder(folder: Path) -> bool:
    return any(path_exists(str(folder / name)) for name in ("config.json", "adapter_config.json"))
