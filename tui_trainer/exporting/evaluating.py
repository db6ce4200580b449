"""Trained models beside each other on the same rows: the task's loss and scores, and the rows that differ most.

Each model is loaded when its turn comes, and let go after it. The two whose rows are compared wait in the machine's
memory until it is known which rows those are, where there is room for them.
"""

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
from tui_trainer.exporting.measured import layout_of, prepared_data, scored
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
from tui_trainer.files.local_paths import at_home, is_here
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.models.heads import CLASSIFYING
from tui_trainer.planning.duration import SAMPLE_TOKENS
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import find_run

BASE, NONE = "base", "none"
_SEED = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to measure: a folder with all of it, or an adapter with the folder of the model that it is for."""

    name: str
    folder: Path
    base: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredModel:
    """`loss` in nats a label; `row_losses` the same of each row."""

    name: str
    loss: float
    scores: Mapping[str, float]
    row_losses: Sequence[float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedRow:
    """One row, its loss by two models and what each makes of it. `number` is its place among the rows."""

    number: int
    text: str
    loss_before: float
    loss_after: float
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEvaluation:
    """`models` in the order in which they were named; `reference` is what they are compared with."""

    rows: int
    data: str
    reference: MeasuredModel | None
    models: tuple[MeasuredModel, ...]
    changed: tuple[ChangedRow, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Evaluator:
    """Rows of one run's data, or of a file read as that data was, and the models that are measured on them."""

    trained: TrainedModel
    device: torch.device
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def evaluate(
        self, models: Sequence[str], *, file: str = "", against: str = BASE, rows: int = 0, changed: int = 5
    ) -> ModelEvaluation:
        """Raises InputError for what cannot be measured, or not on these rows."""
        candidates = [candidate_of(name, self.trained) for name in models]
        reference = self._reference(against)
        own = load_tokenizer(self.trained)
        for one in [*candidates, *filter(None, [reference])]:
            self._refuse_others(one, own)
        with self._data(file, own) as (trained, data):
            found = Rows(data.train_path if file else data.eval_path or data.train_path)
            if not file and data.eval_path is None:
                self.notes.append("the run has no held-out rows: the models are evaluated on its training rows")
            limit = trained.config.evaluation.max_eval_rows
            most = rows or (0 if limit == "auto" else limit)
            chosen = evenly_spaced(len(found), most or len(found))
            look = _Look(trained, data, found, chosen, self.device, self.progress)
            compares = reference is not None and changed > 0
            before = look.measure(reference, keeps=compares) if reference else None
            first = look.measure(candidates[0], keeps=compares)
            differing = look.changed(reference, candidates[0], before, first, changed) if before and reference else ()
            measured = (first, *(look.measure(one) for one in candidates[1:]))
            return ModelEvaluation(
                rows=len(chosen),
                data=data.source if file else f"held-out data of {self.trained.run.name}",
                reference=before,
                models=measured,
                changed=tuple(differing),
                notes=tuple(self.notes),
            )

    def _reference(self, against: str) -> Candidate | None:
        if against == NONE:
            return None
        if against != BASE:
            return candidate_of(against, self.trained)
        folder, reason = self.trained.base_model()
        if reason:
            self.notes.append(f"not compared with the base model: {reason}")
        return Candidate(BASE, folder, None) if folder else None

    def _refuse_others(self, one: Candidate, own: Any) -> None:
        """Raises InputError for a model that has other tokens or labels: its figures could not be compared."""
        trained, other = self.trained, saved_tokenizer(self.trained, one.folder)
        if other is None:
            return
        if other.get_vocab() != own.get_vocab():
            if one.name == BASE:
                return
            raise InputError(f"{one.name} and {trained.run.name} have different tokens: the losses are not comparable")
        if trained.head in CLASSIFYING and labels_of(trained, one.folder) != labels_of(trained, trained.folder):
            raise InputError(f"{one.name} and {trained.run.name} have different labels: the scores are not comparable")

    @contextmanager
    def _data(self, file: str, tokenizer: Any) -> Iterator[tuple[TrainedModel, PreparedData]]:
        """The rows, and the trained model with the settings that they are measured by."""
        config, task = self.trained.config, self.trained.task
        if not file:
            yield self.trained, prepared_data(self.trained, self.progress)
            return
        if config.task.class_weights != "none":
            self.notes.append("class weights are not applied to the loss: they come from the training rows")
            config = config.model_copy(update={"task": config.task.model_copy(update={"class_weights": "none"})})
        knows = self.trained.head in CLASSIFYING
        learnt = config_in(self.trained, self.trained.folder).to_dict() if knows else {}
        with tempfile.TemporaryDirectory(prefix="evaluate-") as folder:
            data = task.prepare_file(config, file, tokenizer, learnt, Path(folder), self.progress)
            yield replace(self.trained, config=config), data


@dataclass(frozen=True, slots=True)
class _Look:
    """The chosen rows, one after another, so that each has a loss of its own."""

    trained: TrainedModel
    data: PreparedData
    rows: Rows
    chosen: Sequence[int]
    device: torch.device
    progress: Progress
    waiting: dict[Candidate, Any] = field(default_factory=dict)

    def measure(self, candidate: Candidate, *, keeps: bool = False) -> MeasuredModel:
        """With `keeps` the model waits for `changed`."""
        model, task, config = self._load(candidate), self.trained.task, self.trained.config
        losses: list[float] = []

        def add(batch: MicroBatch, loss: float, labels: int, seconds: float) -> None:
            losses.append(loss / max(labels, 1))
            if len(losses) % 20 == 1:
                self.progress(f"measuring {candidate.name}", len(losses) - 1, len(self.chosen), "rows")

        one_by_one, layout = [[index] for index in self.chosen], layout_of(self.trained, model, 1)
        loss, scores = scored(self.trained, self.data, model, self.rows, one_by_one, layout, add)
        few = evenly_spaced(len(self.chosen), config.evaluation.generate_rows)
        if examples := [self.rows.example(self.chosen[at]) for at in few]:
            with torch.inference_mode():
                scores |= task.answer_scores(config, model, load_tokenizer(self.trained), examples)
        self.progress(f"measuring {candidate.name}", 1, 1, "rows")
        if keeps and memory_available_now() > 2 * model.get_memory_footprint():
            self.waiting[candidate] = model.to("cpu")
        return MeasuredModel(name=candidate.name, loss=loss, scores=scores, row_losses=losses)

    def changed(
        self, one: Candidate, other: Candidate, before: MeasuredModel, after: MeasuredModel, most: int
    ) -> list[ChangedRow]:
        """The rows whose losses differ most, and what both models make of them."""
        pairs = list(zip(before.row_losses, after.row_losses, strict=True))
        order = sorted(range(len(pairs)), key=lambda at: -abs(pairs[at][0] - pairs[at][1]))[:most]
        # The newest first: it lies on the device.
        now, was = (self._samples(candidate, order) for candidate in (other, one)) if order else ([], [])
        return [
            ChangedRow(number=at, text=given, loss_before=pairs[at][0], loss_after=pairs[at][1], before=old, after=new)
            for at, (given, old), (_, new) in zip(order, was, now, strict=True)
        ]

    def _samples(self, candidate: Candidate, places: Sequence[int]) -> list[tuple[str, str]]:
        model, tokenizer = self._load(candidate), load_tokenizer(self.trained)
        sample, found = self.trained.task.sample, []
        with torch.inference_mode():
            for at in places:
                torch.manual_seed(_SEED)
                row = self.rows.example(self.chosen[at])
                found.append(sample(self.trained.config, self.data, model, tokenizer, row, new_tokens=SAMPLE_TOKENS))
        return found

    def _load(self, candidate: Candidate) -> Any:
        dtype = self.trained.compared_dtype if self.device.type == "cpu" else "auto"
        if candidate in self.waiting:
            return self.waiting.pop(candidate).to(self.device)
        self.progress(f"loading {candidate.name}", 0, None, "")
        model = load_model(self.trained, candidate.folder, candidate.base, dtype=dtype, merge=True)
        if self.trained.writes:
            # The base model writes as the trained one does; an adapter comes with the settings of its own.
            self.trained.task.set_generation(self.trained.config, model, load_tokenizer(self.trained))
        return model.to(self.device)


def candidate_of(name: str, trained: TrainedModel) -> Candidate:
    """A run, or a folder with a model of the same kind. Raises FolderError, and InputError for another task."""
    folder = at_home(name)
    if is_model_folder(folder):
        return Candidate(name, folder, _base_of_folder(folder, trained))
    found = TrainedModel.of(find_run(name))
    if found.task.name != trained.task.name:
        raise InputError(f"{found.run.name} was trained for {found.task.name}, not for {trained.task.name}")
    return Candidate(found.run.name, found.folder, found.base)


def run_of(name: str) -> RunFolder:
    """The run that is named, or in whose folder a model lies. Raises FolderError."""
    folder = at_home(name)
    if not is_model_folder(folder):
        return find_run(name)
    if run := _run_around(folder):
        return run
    hint = "name the run before the folder: `tui-trainer evaluate RUN FOLDER`"
    raise FolderError("no run found for this model", where=name, hint=hint)


def _run_around(folder: Path) -> RunFolder | None:
    """The run in whose folder this one lies."""
    parents = folder.absolute().parents
    return next((RunFolder.open(parent) for parent in parents if (parent / "plan.json").is_file()), None)


def _base_of_folder(folder: Path, trained: TrainedModel) -> Path | None:
    """As `base_of`; of a model in the folder of a run it is checked as where the run is named."""
    run = _run_around(folder)
    if run and run.model.is_dir() and folder.samefile(run.model):
        return TrainedModel.of(run).base
    plan = plan_of(run) if run else trained.plan
    base = base_of(folder, trained.head, plan.config.model.revision)
    if base and run:
        refuse_changed_base(plan, base)
    return base


def is_model_folder(folder: Path) -> bool:
    return any(is_here(str(folder / name)) for name in ("config.json", "adapter_config.json"))
