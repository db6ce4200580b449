"""A text, or a pair of texts, gets one label, any number of labels, or a number.

Encoders and decoders alike, as transformers has them: a decoder's answer is read off its last token before the
padding. Rows are read whole; none shares its row with another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import Batch, Collate, collate_whole
from tui_trainer.data.columns.labels import Kind
from tui_trainer.data.preparing.byte_bpe import FOR_CLASSES
from tui_trainer.data.preparing.token_rows import LABELS, Rows, TokenRow
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.heads import Head, Labels
from tui_trainer.models.token_ids import cut_token_ids
from tui_trainer.models.writing import NO_SAMPLING, Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.labelled_texts import SEGMENTS, LabelledTexts, refuse_settings, without_spelt_ends
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import (
    ALL_METRICS,
    MOST_CLASSES,
    balanced_weights,
    class_scores,
    class_values,
    multi_label_scores,
    number_scores,
    ones_weights,
)
from tui_trainer.tasks.parts.starts_from_model import logits_of, model_of
from tui_trainer.tasks.parts.task import Task

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.classification import ClassificationLoss
    from tui_trainer.losses.micro_batch import MicroBatch

_SHOWN_LABELS = 5
# Decoders that classify look for the last token before the padding; this one does not, and its own tokenizer pads at
# the left.
_READS_LAST_POSITION = "xlnet"


class SequenceClassification(Task):
    """See `tasks/parts/task.py` for what each part promises."""

    name = "sequence_classification"
    title = "Text classification"
    reads = ("problem_type", "class_weights")
    reads_columns = ("text_column", "text_pair_column", "label_column")
    tells_padding = True
    loads_to_score = ("sklearn.metrics",)
    head: Head = "sequence_classification"
    pipeline_tag = "text-classification"
    architectures = ("ForMaskedLM", "ForSequenceClassification")
    usual_length = (128, 512)  # of short texts 128
    loss_unit = ""
    labels_rows = True
    specials = FOR_CLASSES
    metrics = ALL_METRICS

    def problems(self, config: Config) -> list[Problem]:
        found = super().problems(config)
        if not config.is_from_scratch and config.model.model_name_or_path:
            family = model_of(config, self.head).config.get("model_type")
            if family == _READS_LAST_POSITION:
                message = f"{family} classifies by the last position of a row, which is padding in shorter rows"
                hint = "use another encoder, such as bert, roberta or deberta-v2"
                found.append(Problem(message=message, key="model.model_name_or_path", hint=hint))
        if config.task.problem_type == "auto":
            return found
        try:
            refuse_settings(config, config.task.problem_type)
        except ConfigError as error:
            return [*found, *error.problems]
        return found

    def reader(self, config: Config) -> TableReader:
        return LabelledTexts(config, self.head, self.specials, self._its_config(config))

    def _its_config(self, config: Config) -> Mapping[str, Any]:
        return self.model_config(config, config.model.scratch.vocab_size if config.is_from_scratch else 0)

    def reading(self, config: Config) -> dict[str, Any]:
        """The numbers of the classes may come from the model, and the columns of a row depend on what it reads."""
        model = self._its_config(config)
        its_labels = {str(number): name for number, name in (model.get("id2label") or {}).items()}
        about = {"model_labels": its_labels, "segments": int(model.get("type_vocab_size") or 0)}
        return {**super().reading(config), **about}

    def labels(self, config: Config, data: PreparedData) -> Labels:
        kind: Kind = data.details["problem_type"]
        return Labels(tuple(data.details["names"]) or ("LABEL_0",), kind)

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        """With a token that fills rows up: a decoder that classifies looks for the last token before it."""
        tokenizer = super().load_tokenizer(config, data)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        return tokenizer

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """What the same answer for every row reaches: the most frequent one of the training rows."""
        kind = data.details["problem_type"]
        learnt = _labels_of(Rows(data.train_path), kind)
        labels = _labels_of(held_out, kind)[list(eval_rows)]
        values, of = _same_answer(kind, learnt, labels, data.details["names"])
        return Baselines(
            losses={}, eval_tokens=len(eval_rows), scores={f"{name} of {of}": value for name, value in values.items()}
        )

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id), kind=model.config.problem_type)

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.classification import ClassificationLoss

        kind = data.details["problem_type"]
        weights: list[float] = []
        if config.task.class_weights == "balanced":
            weights = class_weights(Rows(data.train_path), kind, len(data.details["names"])).tolist()
        return ClassificationLoss(model, kind, weights=weights, smoothing=config.training.label_smoothing_factor)

    def choices(self, config: Config, data: PreparedData) -> int:
        is_choice = data.details["problem_type"] == "single_label_classification"
        return len(data.details["names"]) if is_choice and config.task.class_weights == "none" else 0

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        return _ClassScorer(objective, data.details["problem_type"], data.details["names"])

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """The text, and the label that the model gives it beside the true one."""
        text = tokenizer.decode(row.tokens.tolist(), skip_special_tokens=True)
        asked = [InputRow(row.tokens, more=row.more)]
        told = _words_of(self.predict(config, model, tokenizer, asked, NO_SAMPLING)[0], 1)[0]
        assert row.labels is not None, "a row of a classifier has a label"
        return str(text), f" -> {told} (expected: {_true_words(row.labels, self.labels(config, data))})"

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        columns, kind = zip(*contents, strict=True), getattr(model.config, "model_type", "")
        first, *second = (without_spelt_ends(texts, tokenizer, kind) for texts in columns)
        pairs = second[0] if second else None
        # As in training: a model that cannot tell two texts apart by segments is given none.
        reads_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        has_segments = pairs is not None and reads_segments and SEGMENTS in tokenizer.model_input_names
        found = cut_token_ids(tokenizer, first, config.data.max_length, pairs=pairs, segments=has_segments)
        segments = found.segments or [[] for _ in contents]
        return [
            InputRow(ids or [pad_token_id(tokenizer)], content, {SEGMENTS: of_ids} if has_segments else {}, is_cut)
            for content, ids, of_ids, is_cut in zip(contents, found.ids, segments, found.is_cut, strict=True)
        ]

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """The likeliest label, all labels that are more likely than not, or the number; and the probabilities."""
        logits_BC, kind, names = logits_of(model, tokenizer, rows), model.config.problem_type, model.config.id2label
        if kind == "regression":
            return [{"number": float(f"{number:.6g}")} for number in logits_BC[:, 0].tolist()]
        several = kind == "multi_label_classification"
        chances_BC = logits_BC.sigmoid() if several else logits_BC.softmax(-1)
        return [_prediction(chances, names, several=several) for chances in chances_BC.tolist()]

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return "\n".join(_words_of(prediction, _SHOWN_LABELS))


def _prediction(chances: Sequence[float], names: Mapping[int, str], *, several: bool) -> dict[str, Any]:
    order = sorted(range(len(chances)), key=lambda at: -chances[at])
    likely = [names[at] for at in order if chances[at] > 0.5]
    shown = {names[at]: round(chances[at], 6) for at in order[: max(MOST_CLASSES, len(likely))]}
    if several:
        return {"labels": likely, "probabilities": shown}
    best = names[order[0]]
    return {"label": best, "probability": shown[best], "probabilities": shown}


def _words_of(prediction: Mapping[str, Any], most: int) -> list[str]:
    """`joy 0.93`, the likeliest labels first; with several labels a row all that are more likely than not, too."""
    if "number" in prediction:
        return [f"{prediction['number']:.4g}"]
    shown = max(most, len(prediction.get("labels", ())))
    return [f"{name} {chance:.2f}" for name, chance in list(prediction["probabilities"].items())[:shown]]


class _ClassScorer:
    """Predictions stay where they were computed until the evaluation is over."""

    def __init__(self, loss: ClassificationLoss, kind: Kind, names: Sequence[str]) -> None:
        self._loss, self._kind, self._names = loss, kind, names
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits_BC = self._loss.logits(batch)
        if self._kind == "regression":
            answers = logits_BC.squeeze(-1)
        else:
            answers = logits_BC > 0 if self._kind == "multi_label_classification" else logits_BC.argmax(-1)
        self.seen.append((batch.labels, answers))
        return self._loss.of_logits(logits_BC, batch.labels)

    def scores(self) -> Scores:
        import torch

        labels, predicted = (torch.cat(parts).cpu().numpy() for parts in zip(*self.seen, strict=True))
        if self._kind == "regression":
            return number_scores(labels.astype(np.float64), predicted.astype(np.float64))
        score = multi_label_scores if self._kind == "multi_label_classification" else class_scores
        return score(labels.astype(np.int64), predicted.astype(np.int64), self._names)


def class_weights(rows: Rows, kind: Kind, classes: int) -> NDArray[np.float64]:
    """Of the classes of the training rows, or with several labels a row of the ones of each class."""
    labels = _labels_of(rows, kind)
    return ones_weights(labels) if kind == "multi_label_classification" else balanced_weights(labels, classes)


def _labels_of(rows: Rows, kind: Kind) -> NDArray[Any]:
    """Of all rows: int64 [N], int64 [N, C], or float64 [N]."""
    values = rows.values(LABELS).reshape(len(rows), -1)
    if kind == "regression":
        return values.view(np.float32).astype(np.float64)[:, 0]
    return values.astype(np.int64) if kind == "multi_label_classification" else values.astype(np.int64)[:, 0]


def _same_answer(
    kind: Kind, learnt: NDArray[Any], labels: NDArray[Any], names: Sequence[str]
) -> tuple[Mapping[str, float], str]:
    """(scores of one answer for all rows, what that answer is)."""
    if kind == "regression":
        errors = number_scores(labels, np.full(len(labels), learnt.mean())).values
        return {name: errors[name] for name in ("mse", "mae")}, "the mean of the training rows"
    if kind == "multi_label_classification":
        usual = (2 * learnt.sum(axis=0) > len(learnt)).astype(np.int64)
        found = multi_label_scores(labels, np.tile(usual, (len(labels), 1)), names).values
        return found, "the most frequent answer for each class"
    usual = np.full(len(labels), np.bincount(learnt).argmax())
    values = class_values(labels, usual)
    return {name: values[name] for name in ("accuracy", "macro_f1")}, "the most frequent class"


def _collate(rows: Sequence[TokenRow], pad_id: int, kind: Kind, *, width: int = 0) -> Batch:
    """Labels int64 [B], or float32: [B, C] of 0 and 1 for several labels, [B] for a number."""
    stored = np.stack([row.labels for row in rows if row.labels is not None])
    if kind == "regression":
        return collate_whole(rows, pad_id, np.ascontiguousarray(stored).view(np.float32)[:, 0], width=width)
    several = kind == "multi_label_classification"
    return collate_whole(
        rows, pad_id, stored.astype(np.float32) if several else stored[:, 0].astype(np.int64), width=width
    )


def _true_words(labels: NDArray[np.int32], known: Labels) -> str:
    if known.problem_type == "regression":
        return f"{float(labels.view(np.float32)[0]):.4g}"
    if known.problem_type == "multi_label_classification":
        return ", ".join(name for name, has in zip(known.names, labels, strict=True) if has) or "none of them"
    return known.names[int(labels[0])]


TASK = SequenceClassification()
