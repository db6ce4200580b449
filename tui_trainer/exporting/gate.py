"""Let trained models answer the rows of a suite, and judge their answers beside those of the base model.

`suite.py` reads the suite and judges. Models are loaded one after another, and answer greedily."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import saved_tokenizer
from tui_trainer.exporting.evaluating import BASE, NONE, Candidate, candidate_of, load_candidate, reference_of
from tui_trainer.exporting.predicting import Predictor
from tui_trainer.exporting.trained_model import TrainedModel, config_in, labels_of, load_tokenizer
from tui_trainer.hardware.out_of_memory import free_memory
from tui_trainer.models.writing import Sampling
from tui_trainer.tasks.contract import InputRow
from tui_trainer.tasks.parts.next_token import LearnsNextToken
from tui_trainer.tasks.parts.suite import (
    NO_ANSWERS,
    ModelVerdict,
    Reply,
    SuiteRow,
    inputs_of,
    judge,
    read_suite,
    refuse_task,
    refuse_unsuitable,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """Verdicts on `models`, in the order of the command line. `reference` is the name of the model with which they are
    compared; empty without one. Answers have at most `new_tokens` tokens."""

    suite: str
    rows: int
    reference: str
    new_tokens: int
    models: tuple[ModelVerdict, ...]
    notes: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        return not any(model.failures for model in self.models)


class _Replier(Predictor):
    """Predictor whose predictions are replies: a text and how it ends, or the labels of a classifier."""

    def forward(self, rows: Sequence[InputRow]) -> list[dict[str, Any]]:
        if isinstance(self.task, LearnsNextToken):
            answers = self.task.greedy_answers(self.model, self.tokenizer, rows, self.sampling)
            return [{"reply": Reply.of(answer)} for answer in answers]
        row_labels = [it["labels"] if "labels" in it else [it["label"]] for it in super().forward(rows)]
        return [{"reply": Reply(text=", ".join(labels), labels=tuple(labels))} for labels in row_labels]


@dataclass(slots=True)
class Gate:
    """Judge of the models of a run, or of others for the same task."""

    trained: TrainedModel
    device: torch.device
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def judge(
        self, models: Sequence[str], *, suite: str = "", against: str = BASE, max_new_tokens: int, **allowed: int
    ) -> GateResult:
        """Judge models, each named by run or folder, on a suite, or on the general one if `suite` is empty. `allowed`
        has the limits `allow_broken` and `allow_missing`, in rows.

        Raises InputError if the suite or a model cannot be used, before any model is loaded."""
        reference, task = reference_of(against, self.trained, self.notes), self.trained.task
        refuse_task(task, suite, has_reference=reference is not None or against == NONE)
        labels = self._labels()
        rows = read_suite(suite)
        refuse_unsuitable(rows, task.name, labels, holds_conversations=task.holds_conversations)
        candidates = [candidate_of(name, self.trained) for name in models]
        if reference is None:
            self.notes.append("there are no answers from before: each wrong answer to a `keep` row counts")
        limit = max([max_new_tokens, *(row.checks.get("max_tokens", 0) + 1 for row in rows)])
        sampling = Sampling(max_new_tokens=limit, temperature=0, seed=0)
        contents = [self._contents(candidate, rows) for candidate in [*candidates, *filter(None, [reference])]]
        before = self._replies(reference, contents[-1], sampling) if reference else None
        verdicts = [
            judge(candidate.name, rows, before, self._replies(candidate, row_contents, sampling), **allowed)
            for candidate, row_contents in zip(candidates, contents, strict=False)
        ]
        return GateResult(
            suite=suite or "the general suite",
            rows=len(rows),
            reference=reference.name if reference else "",
            new_tokens=limit,
            models=tuple(verdicts),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _labels(self) -> list[str]:
        """Return the labels of a classifier; [] for a model that writes. Raises InputError for a regression."""
        trained = self.trained
        if not trained.task.labels_rows:
            return []
        if config_in(trained, trained.folder).problem_type == "regression":
            raise InputError(f"{trained.run.name} predicts {NO_ANSWERS}")
        return labels_of(trained, trained.folder)

    def _tokenizer(self, candidate: Candidate) -> Any:
        """Return the tokenizer of a run or an export or, for the base model, that of the first run."""
        owner = candidate.owner or self.trained
        saved = None if candidate.name == BASE else saved_tokenizer(owner, candidate.folder)
        tokenizer = saved or load_tokenizer(owner)
        owner.task.set_length(owner.config, tokenizer)
        return tokenizer

    def _contents(self, candidate: Candidate, rows: Sequence[SuiteRow]) -> list[Any]:
        """Return the input of each row as the task reads it. Raises DataError for conversations that cannot be read."""
        owner = candidate.owner or self.trained
        reader = owner.task.input_reader(owner.config, self._tokenizer(candidate))
        return inputs_of(rows, reader, owner.config.data.text_column)

    def _replies(self, candidate: Candidate, contents: Sequence[Any], sampling: Sampling) -> list[Reply]:
        owner, tokenizer, done_rows = candidate.owner or self.trained, self._tokenizer(candidate), 0
        model = load_candidate(owner, candidate, tokenizer, self.device, self.progress)

        def add(rows: int) -> None:
            nonlocal done_rows
            done_rows += rows
            self.progress(f"answers of {candidate.name}", done_rows, len(contents), "rows")

        add(0)
        replier = _Replier(owner.task, owner.config, model, tokenizer, sampling)
        predictions = replier.predict(contents, add)
        if cut_count := sum("truncated" in prediction for prediction in predictions):
            self.notes.append(f"{candidate.name} read {cut_count:,} prompts only in part: they are too long for it")
        del replier, model
        free_memory()
        return [prediction["reply"] for prediction in predictions]
