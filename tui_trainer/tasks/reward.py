"""Reward models: a decoder with one logit learns to score answers, from pairs of a better and a worse one.

Rows are those of the task `preference`, and may have margins. Each pair becomes two documents, which the model scores
at their last token, as transformers' classifiers do. A document has the tokens of `apply_chat_template`, so that other
programs compute the same scores. Classifiers give one result per row of the batch, so documents are padded and never
packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.data.batching.collate import IGNORE, Batch, Collate, collate_whole
from tui_trainer.data.columns.conversations import Conversation
from tui_trainer.data.columns.preferences import find_margins
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row, file_of, kind_of_rows
from tui_trainer.data.preparing.token_rows import LABELS, Rows, TokenRow
from tui_trainer.errors import DataError, Problem
from tui_trainer.methods.preference_losses import ACCURACY, MARGIN
from tui_trainer.models.chat_rendering import NO_LOSS, Rendered
from tui_trainer.models.heads import CAUSAL, Head, Labels, lacks_head
from tui_trainer.models.token_ids import encode_conversations
from tui_trainer.models.writing import NO_SAMPLING, Sampling, row_padding_id
from tui_trainer.tasks.chat import FormatsConversations, renderer_of
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow, Objective
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.starts_from_model import ConversationInputs, logits_of, stored_model_facts
from tui_trainer.tasks.preference import PreferenceReader, baseline_of_lengths, without_beginning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

_CENTERING = "center_rewards_coefficient"
_HEAD: Head = "sequence_classification"


class RewardTask(FormatsConversations):
    """Task of training a reward model on pairs of answers. `tasks/parts/task.py` documents the methods."""

    name = "reward"
    title = "Reward model"
    head = _HEAD
    loss_unit = "nats/pair"
    used_settings = ("chat_template", _CENTERING)
    used_column_settings = ("text_column", "text_pair_column", "target_column", "label_column")
    metrics = (ACCURACY, MARGIN)
    pipeline_tag = "text-classification"
    architectures = ("ForCausalLM", "LMHeadModel", "ForSequenceClassification")
    masks_padding = labels_rows = scores_answers = True

    def problems(self, config: Config) -> list[Problem]:
        model = config.model
        if config.is_from_scratch:
            message, hint = "a reward model starts from a trained chat model", 'set it to "pretrained"'
            return [Problem(message=message, key="model.init", hint=hint)]
        problems = super().problems(config)
        if model.model_name_or_path and not problems:
            model_type = str(stored_model_facts(config, self.head).config.get("model_type"))
            if lacks_head(model_type, CAUSAL):
                message = f"{model_type} does not read from left to right, and a reward model scores by the last token"
                problems.append(Problem(message=message, key=MODEL_KEY, hint="use a decoder with a chat template"))
        if config.training.label_smoothing_factor:
            key, message = "training.label_smoothing_factor", "label smoothing does not apply to pairs of answers"
            problems.append(Problem(message=message, key=key, hint="set it to 0"))
        return problems

    def reader(self, config: Config) -> TableReader:
        return RewardReader(_without_loss(config))

    def reader_of_inputs(self, config: Config) -> TableReader:
        return RewardReader(_without_loss(config), renders=False)

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        # Rows do not depend on the loss.
        settings = super().encoding_settings(config)
        settings["task"] = {name: value for name, value in settings["task"].items() if name != _CENTERING}
        return settings

    def set_length(self, config: Config, tokenizer: Tokenizer) -> None:
        """Make the tokenizer cut long conversations at their beginning, because the score is that of the end."""
        super().set_length(config, tokenizer)
        tokenizer.truncation_side = "left"

    def labels(self, config: Config, data: PreparedData) -> Labels:
        return Labels(("LABEL_0",), "regression")

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id))

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.reward import RewardLoss

        return RewardLoss(model, centering=config.task.center_rewards_coefficient)

    def rate_factor(self, config: Config) -> tuple[float, str]:
        # 1e-5 and, with LoRA, 1e-4 for 7 to 8 B, whose rates for supervised training are 2e-5 and 2e-4. Source: the
        # default of TRL's RewardConfig, and the full rate of its examples.
        return 0.5, "reward models"

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the accuracy of preferring the longer answer."""
        return baseline_of_lengths(held_out, eval_rows)

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the conversation with the chosen answer, and the scores of both answers."""
        text = tokenizer.decode(row.documents[0].tokens.tolist(), skip_special_tokens=True)
        scores = [
            self.predict(config, model, tokenizer, [InputRow(document.tokens)], NO_SAMPLING)[0]
            for document in row.documents
        ]
        chosen, rejected = map(self.prediction_words, scores)
        return str(text), f" -> {chosen} (rejected answer: {rejected})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return AnswerInputs(config.data, renderer_of(_without_loss(config), tokenizer))

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """Encode conversations. One that is too long loses its beginning, as in training."""
        limit, rows = config.data.max_length, []
        for content, (ids, _) in zip(contents, encode_conversations(tokenizer, contents), strict=True):
            cut = without_beginning(ids, max(len(ids) - limit, 0), limit)
            rows.append(InputRow(cut, content, is_cut=len(ids) > limit))
        return rows

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return the score of each answer."""
        return [{"score": float(f"{score:.6g}")} for score in logits_of(model, tokenizer, rows)[:, 0].tolist()]

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return f"{prediction['score']:.4g}"


class RewardReader(PreferenceReader):
    """Reader of preferences with margins. The label of a row is its margin, the bits of a float32."""

    reads_margins = True
    labels_are_tokens = False
    head = _HEAD
    classes = 1

    @property
    def found_columns(self) -> Mapping[str, str]:
        return {**super().found_columns, "label_column": ",".join(self.pair_tables[-1].margin)}

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        super().check_late_row(row, head)
        margin = self.pair_tables[-1].margin
        if late_names := set(find_margins(list(row.values), self.config.data.label_column)).difference(margin):
            message = f"from this row on, '{late_names.pop()}' would hold the margins"
            hint = 'add this column to the first row as well, or use no margins: data.label_column = ""'
            raise DataError(message, where=row.where, hint=hint)

    def read(self, row: Row) -> Example:
        example, margin = super().read(row), self.pair_tables[-1].margin_of(row)
        return replace(example, content=(*example.content, margin)) if self.renders else example

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        margins = [int(np.float32(example.content[-1]).view(np.int32)) for example in examples]
        return [
            replace(row, columns={**row.columns, LABELS: [margin]}, label_count=int(row.label_count > 0))
            for row, margin in zip(super().encode(examples), margins, strict=True)
        ]

    def _encoded(self, *documents: tuple[list[int], list[int]]) -> Encoded:
        # The beginning that both documents have in common may be cut, as that of a prompt.
        chosen, rejected = (ids for ids, _ in documents)
        pairs = enumerate(zip(chosen, rejected, strict=False))
        shorter = min(len(chosen), len(rejected))
        start = next((index for index, (first, second) in pairs if first != second), shorter - 1)
        return super()._encoded(*((ids, [IGNORE] * start + ids[start:]) for ids in (chosen, rejected)))

    def note_of_ends(self) -> str:
        return "an answer is scored at the last token that the chat template writes"

    def details(self) -> dict[str, Any]:
        return {**super().details(), "documents": ["chosen", "rejected"]}

    def notes(self) -> list[str]:
        return [*super().notes(), *dict.fromkeys(columns.margin_note() for columns in self.pair_tables)]


class AnswerInputs(ConversationInputs):
    """Reader of conversations that end with an answer, which is scored."""

    has_answers = True

    def begin(self, head: Sequence[Row]) -> None:
        kind = kind_of_rows(head)
        if kind and RewardTask.name in kind.tasks:
            hint = "use one row for each answer; `tui-trainer evaluate RUN --data FILE` compares the answers of pairs"
            raise DataError(f"the rows are {kind.description}", where=file_of(head), hint=hint)
        super().begin(head)

    def rendered(self, conversation: Conversation, row: Row) -> Rendered:
        conversation.refuse_unlearnable(row, "completion")
        if (role := conversation.messages[-1]["role"]) != "assistant":
            message = f"the conversation ends with a turn of the role {role}, not with an answer to score"
            raise DataError(message, hint="add the answer, or remove the row")
        return self.renderer.render(conversation)


def _without_loss(config: Config) -> Config:
    """Return the config with conversations that are rendered whole, without tokens that carry loss."""
    return config.model_copy(update={"task": config.task.model_copy(update={"loss_on": NO_LOSS})})


def _collate(rows: Sequence[TokenRow], pad_id: int, *, width: int = 0) -> Batch:
    """Collate both documents of each row, and the margins as labels: float32 [rows]."""
    margins = np.stack([row.labels for row in rows if row.labels is not None])
    return collate_whole(rows, pad_id, np.ascontiguousarray(margins).view(np.float32)[:, 0], width=width)


TASK = RewardTask()
