"""Preferences: a causal model learns which of two answers to a prompt is better, with DPO and its variants.

A row is a prompt with a chosen and a rejected answer (`data/columns/preferences.py`). It becomes two documents, which
share a row of the batch. Loss is on the answers. Losses with a reference compare the model with itself before training,
whose log-probabilities are computed once before the first step. A prompt that leaves too little room for the answers
loses its beginning, in both documents alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.preferences import Preference, PreferenceColumns, find_preferences
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.data.preparing.token_rows import DOCUMENT_LENGTHS, INPUT_IDS, LABELS, Rows, TokenRow
from tui_trainer.errors import DataError, Problem
from tui_trainer.methods.preference_losses import ACCURACY, MARGIN, PREFERENCE_LOSSES, PreferenceLossType
from tui_trainer.tasks.chat import Chat, ChatReader
from tui_trainer.tasks.contract import Baselines, Objective, RowPass
from tui_trainer.tasks.parts.free_answers import Prompt
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.reference_model import REFERENCE_KEY, reference_problems, with_reference_as_model
from tui_trainer.units import format_percent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

Document = tuple[list[int], list[int]]
"""Token ids and labels of a prompt with one answer."""


class PreferenceTask(Chat):
    """Task of training on pairs of answers. `tasks/parts/task.py` documents the methods."""

    name = "preference"
    title = "Preferences"
    loss_unit = "nats/pair"
    loss_settings: tuple[str, ...] = ("loss_type", "beta", "simpo_gamma", "label_smoothing", "sft_weight", "reference")
    """Names of the settings of [task] that only the loss uses."""
    used_settings = ("chat_template", *loss_settings)
    metrics = (ACCURACY, MARGIN)
    supports_unsloth = False

    def loss_type(self, config: Config) -> PreferenceLossType:
        """Return the facts about the loss of a run."""
        return PREFERENCE_LOSSES[config.task.loss_type]

    def beta(self, config: Config) -> float:
        """Return `task.beta`, or its usual value for the loss."""
        return self.loss_type(config).beta if config.task.beta == "auto" else config.task.beta

    def problems(self, config: Config) -> list[Problem]:
        task, problems = config.task, super().problems(config)
        if config.training.label_smoothing_factor:
            key, message = "training.label_smoothing_factor", "label smoothing does not apply to preferences"
            hint = 'set it to 0; for pairs that may be swapped, set task.loss_type = "robust" and task.label_smoothing'
            problems.append(Problem(message=message, key=key, hint=hint))
        if "label_smoothing" in self.loss_settings and (task.loss_type == "robust") != (task.label_smoothing > 0):
            message = f"is {task.label_smoothing:g}, but task.loss_type is {task.loss_type}"
            hint = (
                "set it to the share of swapped pairs, such as 0.1" if task.loss_type == "robust"
                else 'set it to 0, or set task.loss_type = "robust"'
            )  # fmt: skip
            problems.append(Problem(message=message, key="task.label_smoothing", hint=hint))
        return problems

    def model_problems(self, config: Config) -> list[Problem]:
        problems, loss_type = super().model_problems(config), self.loss_type(config)
        if problems or not config.task.reference:
            return problems
        if not loss_type.has_reference:
            message = f"{loss_type.label} compares the model with no reference"
            return [Problem(message=message, key=REFERENCE_KEY, hint="remove it, or choose another task.loss_type")]
        return reference_problems(config, super().model_problems)

    def reference_config(self, config: Config) -> Config | None:
        is_used = config.task.reference and self.loss_type(config).has_reference
        return with_reference_as_model(config) if is_used else None

    def reader(self, config: Config) -> TableReader:
        return PreferenceReader(with_completions(config))

    def reader_of_inputs(self, config: Config) -> TableReader:
        return PreferenceReader(with_completions(config), renders=False)

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        # Rows do not depend on the loss.
        settings = super().encoding_settings(config)
        settings["task"] = {name: value for name, value in settings["task"].items() if name not in self.loss_settings}
        return settings

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.preference import LossSettings, PreferenceLoss

        task, loss_type = config.task, self.loss_type(config)
        return PreferenceLoss(
            model,
            task.loss_type,
            LossSettings(self.beta(config), task.simpo_gamma, task.label_smoothing),
            sft_weight=loss_type.sft_weight if task.sft_weight == "auto" else task.sft_weight,
            chunk_tokens=chunk_tokens,
        )

    def loss_figures(self, config: Config) -> dict[str, tuple[float, str]]:
        loss_type, figures = self.loss_type(config), {}
        for name in ("beta", "sft_weight"):
            is_auto = (value := getattr(config.task, name)) == "auto"
            reason = f"the usual value for {loss_type.label}" if is_auto else f"from task.{name}"
            figures[name] = getattr(loss_type, name) if is_auto else value, reason
        return {name: figure for name, figure in figures.items() if name in self.used_settings and figure[0]}

    def row_pass(self, config: Config, data: PreparedData, objective: Any) -> RowPass | None:
        if not self.loss_type(config).has_reference:
            return None
        return RowPass(activity="reference model", width=2, values=objective.reference_values, key={"version": 1})

    def rate_factor(self, config: Config) -> tuple[float, str]:
        loss_type = self.loss_type(config)
        # A model from scratch first learns to write answers, as in supervised training.
        return (1.0, "") if config.is_from_scratch else (loss_type.rate_factor, loss_type.label)

    def choice_count(self, config: Config, data: PreparedData) -> int:
        # DPO begins with ln 2 if the model equals its reference. Other losses have other beginnings.
        task = config.task
        is_known = task.loss_type in ("sigmoid", "sigmoid_norm") and task.sft_weight == "auto" and not task.reference
        return 2 if is_known else 0

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        return baseline_of_lengths(held_out, eval_rows)

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the prompt of a pair, and the model's answer."""
        return super().sample(config, data, model, tokenizer, row.documents[0], new_tokens=new_tokens)

    def prompt_of(self, config: Config, model: Any, tokenizer: Tokenizer, row: TokenRow) -> Prompt | None:
        return super().prompt_of(config, model, tokenizer, row.documents[0])


class PreferenceReader(ChatReader):
    """Reader of preferences, which renders both conversations of a row with the chat template."""

    columns = (INPUT_IDS, LABELS, DOCUMENT_LENGTHS)
    # A row that contradicts an earlier one is refused, so rows are read in order.
    reads_in_processes = reads_margins = False

    def __init__(self, config: Config, *, renders: bool = True) -> None:
        super().__init__(config, renders=renders)
        self.pair_tables: list[PreferenceColumns] = []
        """Columns of each table that was begun."""
        self._seen: dict[int, tuple[int, str]] = {}
        """Hash of the chosen answer and position of the first row, by the hash of a prompt with both answers."""
        self._rows = self._longer_chosen = self._longer_rejected = 0

    def begin(self, head: Sequence[Row]) -> None:
        data = self.config.data
        margin_columns = data.label_column if self.reads_margins else ""
        columns = find_preferences(
            head, data.text_column, data.target_column, data.text_pair_column, margin_columns=margin_columns
        )
        self.pair_tables.append(columns)

    @property
    def found_columns(self) -> Mapping[str, str]:
        columns = self.pair_tables[-1]
        first, second = (*columns.question_columns, "", "")[:2]
        return {"text_column": first, "text_pair_column": second, "target_column": columns.target_column}

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        self.pair_tables[-1] = self.pair_tables[-1].with_columns_of(row)

    def read(self, row: Row) -> Example:
        preference = self.pair_tables[-1].read(row)
        sides = (preference.chosen, preference.rejected)
        for conversation in sides:
            refuse_surrogates(conversation.text, row.where)
        self._refuse_contradiction(preference, row.where)
        chosen_characters, rejected_characters = (len(side.messages[-1]["content"]) for side in sides)
        self._rows += 1
        self._longer_chosen += chosen_characters > rejected_characters
        self._longer_rejected += chosen_characters < rejected_characters
        if not self.renders:
            return Example("\n".join(conversation.text for conversation in sides), preference)
        rendered = [self.rendered(conversation, row.where) for conversation in sides]
        texts = [conversation.text for conversation in (sides if self.trains_tokenizer else rendered)]
        return Example("\n".join(texts), rendered)

    def _refuse_contradiction(self, preference: Preference, where: str) -> None:
        """Raise DataError if an earlier row has the same prompt and answers, but prefers the other answer."""
        hashes = hash(preference.chosen.text), hash(preference.rejected.text)
        chosen_hash, earlier = self._seen.setdefault(hash(frozenset(hashes)), (hashes[0], where))
        if chosen_hash != hashes[0]:
            message = f"the row prefers the answer that {earlier} rejects, for the same prompt"
            raise DataError(message, where=where, hint="remove one of the two rows")

    def finish_reading(self) -> None:
        self._seen.clear()

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        sides = [self.encode_conversations([example.content[side] for example in examples]) for side in (0, 1)]
        return [self._encoded(chosen, rejected) for chosen, rejected in zip(*sides, strict=True)]

    def _encoded(self, *documents: Document) -> Encoded:
        """Return both documents as one row, cut to `max_length` tokens each."""
        cut, removed = cut_prompts(documents, self.max_length)
        excess = max(len(ids) for ids, _ in documents) - self.max_length
        label_counts = [count_labels(document) for document in cut]
        is_labelled, is_equal = min(label_counts) > 0, cut[0] == cut[1]
        return Encoded(
            columns_of_documents(cut),
            sum(label_counts) if is_labelled and not is_equal else 0,
            truncated=excess > 0,
            answer_truncated=excess > removed,
            first_label_tokens=0 if is_labelled else max(len(ids) for ids, _ in documents),
            has_equal_answers=is_labelled and is_equal,
        )

    def notes(self) -> list[str]:
        notes = [*dict.fromkeys(columns.note() for columns in self.pair_tables), *super().notes()]
        if self._rows:
            chosen, rejected = (format_percent(n / self._rows) for n in (self._longer_chosen, self._longer_rejected))
            note = f"the longer answer is the chosen one in {chosen} of the pairs, and the rejected one in {rejected}"
            is_equal = not self._longer_chosen + self._longer_rejected
            notes.append("both answers of each pair have the same number of characters" if is_equal else note)
        return notes


def cut_prompts(documents: Sequence[Document], max_length: int) -> tuple[list[Document], int]:
    """Return the documents with `max_length` tokens each, and the number of tokens that all their prompts have lost.

    Prompts lose their beginnings, the same tokens in all documents. Answers that are still too long lose their ends."""
    starts = [next(index for index, label in enumerate(labels) if label != IGNORE) for _, labels in documents]
    excess = max(len(ids) for ids, _ in documents) - max_length
    removed = min(max(excess, 0), min(starts) - 1)
    cut = [
        (without_beginning(ids, removed, max_length), without_beginning(labels, removed, max_length))
        for ids, labels in documents
    ]
    return cut, removed


def columns_of_documents(documents: Sequence[Document]) -> dict[str, list[int]]:
    """Return the columns of a row that has these documents."""
    return {
        INPUT_IDS: [token for ids, _ in documents for token in ids],
        LABELS: [label for _, labels in documents for label in labels],
        DOCUMENT_LENGTHS: [len(ids) for ids, _ in documents],
    }


def count_labels(document: Document) -> int:
    return sum(label != IGNORE for label in document[1])


def with_completions(config: Config) -> Config:
    """Return the config with loss on the last answer only."""
    return config.model_copy(update={"task": config.task.model_copy(update={"loss_on": "completion"})})


def baseline_of_lengths(held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
    """Return the accuracy of preferring the longer answer. Both documents of a row begin with the same prompt."""
    rows = [held_out.example(int(index)).documents for index in eval_rows]
    lengths = [(len(chosen), len(rejected)) for chosen, rejected in rows]
    right = sum((chosen > rejected) + 0.5 * (chosen == rejected) for chosen, rejected in lengths)
    scores = {"accuracy of the longer answer": right / len(lengths)}
    return Baselines(losses={}, eval_tokens=len(lengths), scores=scores)


def without_beginning(values: list[int], count: int, limit: int) -> list[int]:
    """Return the first `limit` tokens or labels after removing `count` of them.

    The first one stays, because models attend to it or need it as the beginning of the text."""
    return [*values[:1], *values[1 + count :]][:limit]


TASK = PreferenceTask()
