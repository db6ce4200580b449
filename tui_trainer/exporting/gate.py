"""Let trained models answer the rows of a suite, and judge their answers beside those of the base model.

`suite.py` reads the suite and judges. Models are loaded one after another, and answer greedily."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tui_trainer.data.columns.row import AUTO, Row
from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import saved_tokenizer
from tui_trainer.exporting.evaluating import (
    BASE,
    Candidate,
    candidate_of,
    is_model_folder,
    load_candidate,
    reference_of,
)
from tui_trainer.exporting.predicting import Predictor
from tui_trainer.exporting.suite import (
    MESSAGES,
    ModelVerdict,
    Reply,
    SuiteRow,
    judge,
    read_suite,
    refuse_unsuitable,
)
from tui_trainer.exporting.trained_model import TrainedModel, config_in, labels_of, load_tokenizer
from tui_trainer.files.local_paths import at_home
from tui_trainer.hardware.out_of_memory import free_memory
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.registry import find_run
from tui_trainer.tasks.contract import InputRow
from tui_trainer.tasks.parts.free_answers import ANSWER_TOKENS, is_looping
from tui_trainer.tasks.parts.next_token import LearnsNextToken

_GENERAL = "the general suite"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """Verdicts on `models`, in the order of the command line. `reference` is the name of the model whose answers are
    those before; empty without one. Answers have at most `new_tokens` tokens."""

    suite: str
    rows: int
    reference: str
    new_tokens: int
    models: tuple[ModelVerdict, ...]
    notes: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        return not any(model.failures for model in self.models)


class _Answerer(Predictor):
    """Predictor whose predictions of a generating model also say how each answer ends."""

    def forward(self, rows: Sequence[InputRow]) -> list[dict[str, Any]]:
        if not isinstance(self.task, LearnsNextToken):
            return super().forward(rows)
        answers = self.task.greedy_answers(self.model, self.tokenizer, rows, self.sampling)
        return [
            {"text": answer.text, "tokens": len(answer.ids), "has_stopped": answer.has_stopped,
             "is_looping": is_looping(answer.ids)}
            for answer in answers
        ]  # fmt: skip


def _reply(prediction: dict[str, Any]) -> Reply:
    """Return the reply in a prediction of a text, of a label, or of several labels."""
    if "text" in prediction:
        return Reply(**{name: value for name, value in prediction.items() if name != "truncated"})
    labels = [prediction["label"]] if "label" in prediction else prediction["labels"]
    return Reply(text=", ".join(labels), labels=tuple(labels))


@dataclass(slots=True)
class Gate:
    """Judge of the models of a run, or of others for the same task."""

    trained: TrainedModel
    device: torch.device
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def judge(
        self,
        models: Sequence[str],
        *,
        suite: str = "",
        against: str = BASE,
        max_new_tokens: int = ANSWER_TOKENS,
        allow_broken: int = 0,
        allow_missing: int = 0,
    ) -> GateResult:
        """Judge models, each named by run or folder, on a suite, or on the general one if `suite` is empty.

        Raises InputError if the suite or a model cannot be used, before any model is loaded."""
        labels = self._labels()
        if labels and not suite:
            message = "the general suite has no labels, so it cannot judge a classifier"
            raise InputError(message, hint='name a file with --suite: {"prompt": "...", "must": "keep", "label": "x"}')
        rows = read_suite(suite)
        refuse_unsuitable(
            rows, self.trained.task.name, labels, holds_conversations=self.trained.task.holds_conversations
        )
        candidates = [self._with_owner(name) for name in models]
        reference = reference_of(against, self.trained, self.notes)
        if reference is None:
            self.notes.append("there are no answers from before: each wrong answer to a `keep` row counts")
        limit = max([max_new_tokens, *(row.checks.get("max_tokens", 0) + 1 for row in rows)])
        sampling = Sampling(max_new_tokens=limit, temperature=0, seed=0)
        judged = [*candidates, *([self._with_owner(against, reference)] if reference else [])]
        contents = [self._contents(owner, candidate, rows) for owner, candidate in judged]
        before = self._replies(*judged[-1], contents[-1], sampling) if reference else None
        verdicts = [
            judge(
                candidate.name,
                rows,
                before,
                self._replies(owner, candidate, row_contents, sampling),
                allow_broken=allow_broken,
                allow_missing=allow_missing,
            )
            for (owner, candidate), row_contents in zip(candidates, contents, strict=False)
        ]
        return GateResult(
            suite=suite or _GENERAL,
            rows=len(rows),
            reference=reference.name if reference else "",
            new_tokens=limit,
            models=tuple(verdicts),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _labels(self) -> list[str]:
        """Return the labels of a classifier; [] for a model that writes. Raises InputError for other models."""
        trained = self.trained
        if isinstance(trained.task, LearnsNextToken):
            return []
        is_classifier = trained.head == "sequence_classification"
        if not is_classifier or config_in(trained, trained.folder).problem_type == "regression":
            raise InputError(
                f"{trained.run.name} was trained for {trained.task.name}, and predicts neither texts nor labels",
                hint="`tui-trainer evaluate` compares such models",
            )
        return labels_of(trained, trained.folder)

    def _with_owner(self, name: str, candidate: Candidate | None = None) -> tuple[TrainedModel, Candidate]:
        """Return the run whose settings and tokens a model has, and the model. A folder has those of the first run."""
        candidate = candidate or candidate_of(name, self.trained)
        is_own = candidate.name == BASE or is_model_folder(at_home(name))
        return self.trained if is_own else TrainedModel.of(find_run(name)), candidate

    def _tokenizer(self, owner: TrainedModel, candidate: Candidate) -> Any:
        """Return the tokenizer of an export or, for runs and base models, that of the run."""
        own_tokenizer = None if candidate.name == BASE else saved_tokenizer(owner, candidate.folder)
        tokenizer = own_tokenizer or load_tokenizer(owner)
        owner.task.set_length(owner.config, tokenizer)
        return tokenizer

    def _contents(self, owner: TrainedModel, candidate: Candidate, rows: Sequence[SuiteRow]) -> list[Any]:
        """Return the input of each row as the task reads it. Raises DataError for conversations that cannot be read."""
        reader = owner.task.input_reader(owner.config, self._tokenizer(owner, candidate))
        column = owner.config.data.text_column
        contents = []
        for row in rows:
            if row.messages:
                table_row = Row(row.where, {MESSAGES if column == AUTO else column: list(row.messages)})
                reader.begin([table_row])
                contents.append(reader.read(table_row))
            else:
                contents.append(reader.of_text(row.prompt))
        return contents

    def _replies(
        self, owner: TrainedModel, candidate: Candidate, contents: Sequence[Any], sampling: Sampling
    ) -> list[Reply]:
        tokenizer, done = self._tokenizer(owner, candidate), 0
        model = load_candidate(owner, candidate, tokenizer, self.device, self.progress)

        def add(rows: int) -> None:
            nonlocal done
            done += rows
            self.progress(f"answers of {candidate.name}", done, len(contents), "rows")

        add(0)
        answerer = _Answerer(owner.task, owner.config, model, tokenizer, sampling)
        predictions = answerer.predict(contents, add)
        if cut_count := sum("truncated" in prediction for prediction in predictions):
            self.notes.append(f"{candidate.name} read {cut_count:,} prompts only in part: they are too long for it")
        del answerer, model
        free_memory()
        return [_reply(prediction) for prediction in predictions]
