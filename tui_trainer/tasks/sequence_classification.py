"""Text classification: a text or a pair of texts gets one label, several labels, or a number.

Encoders and decoders are supported as in transformers: a decoder classifies by its last token before the padding. Rows
are never packed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import Batch, Collate, collate_whole
from tui_trainer.data.columns.labels import (
    MULTI_LABEL,
    Kind,
    LabelReader,
    first_label_values,
    flag_columns,
    infer_label_kind,
    label_columns,
    other_label_columns,
    refuse_text_labels,
    sort_class_names,
)
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    listed,
    missing_column,
    refuse_rejected,
    refuse_unsupported_rows,
)
from tui_trainer.data.columns.text_columns import (
    NUMBER,
    SECOND_TEXT_KEY,
    ColumnChoices,
    pair_of_texts,
    strings_of,
    text_of,
)
from tui_trainer.data.preparing.byte_bpe import CLASSIFIER_SPECIAL_TOKENS
from tui_trainer.data.preparing.cache import PreparedContent, PreparedData
from tui_trainer.data.preparing.prepare import LABEL_ROWS
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, SEGMENTS, Rows, TokenRow
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import CALIBRATION, ENCODER_DECODER, Head, Labels, types_with
from tui_trainer.models.token_ids import cut_token_ids
from tui_trainer.models.writing import NO_SAMPLING, Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, Calibration, DataFacts, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.calibration import calibrate, calibrated_scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import (
    ALL_METRICS,
    METRICS_OF,
    MOST_TABLE_CLASSES,
    balanced_weights,
    class_scores,
    class_values,
    metric_problems,
    multi_label_scores,
    number_scores,
    positive_weights,
)
from tui_trainer.tasks.parts.starts_from_model import logits_of
from tui_trainer.tasks.parts.task import Task
from tui_trainer.tasks.parts.thresholds import label_words, thresholds_of
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.losses.classification import ClassificationLoss
    from tui_trainer.losses.micro_batch import MicroBatch

_SHOWN_LABELS, _SHOWN_CLASSES = 5, 12
# A column of this many rows does not hold classes if more than half of its values differ, or all of them.
_MIN_ROWS_HALF_DIFFER, _MIN_ROWS_ALL_DIFFER = 20, 10
_NO_TEXT = "write a text, or remove the row"
_REMOVE_HINT = "remove the row, or add rows with this label to data.path"


class SequenceClassification(Task):
    """Task of text classification. `tasks/parts/task.py` documents the methods."""

    name = "sequence_classification"
    title = "Text classification"
    used_settings = ("problem_type", "class_weights")
    used_column_settings = ("text_column", "text_pair_column", "label_column")
    masks_padding = True
    loads_to_score = ("sklearn.metrics",)
    head: Head = "sequence_classification"
    pipeline_tag = "text-classification"
    architectures = ("ForMaskedLM", "ForSequenceClassification")
    usual_length = (128, 512)
    loss_unit = ""
    labels_rows = True
    specials = CLASSIFIER_SPECIAL_TOKENS
    metrics = ALL_METRICS
    # Unlike other decoders, XLNet does not look for the last token before the padding, and its tokenizer pads on the
    # left.
    unfit_families = (("xlnet", "classifies by the last position of a row, which is padding in shorter rows"),)
    usual_families = "bert, roberta or deberta-v2"

    def problems(self, config: Config) -> list[Problem]:
        problems = super().problems(config)
        if config.task.problem_type == "auto":
            return problems
        try:
            refuse_settings(config, config.task.problem_type)
        except ConfigError as error:
            return [*problems, *error.problems]
        return problems

    def reader(self, config: Config) -> TableReader:
        return LabelledTexts(config, self._model_config(config))

    def _model_config(self, config: Config) -> Mapping[str, Any]:
        return self.model_config(config, config.model.scratch.vocab_size if config.is_from_scratch else 0)

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        """Return what decides a row's tokens and labels: settings, and the model's labels and segment types."""
        model_config = self._model_config(config)
        model_labels = {str(number): name for number, name in (model_config.get("id2label") or {}).items()}
        segment_types = int(model_config.get("type_vocab_size") or 0)
        return {**super().encoding_settings(config), "model_labels": model_labels, "segments": segment_types}

    def labels(self, config: Config, data: PreparedData) -> Labels:
        kind: Kind = data.details["problem_type"]
        return Labels(tuple(data.details["names"]) or ("LABEL_0",), kind)

    def facts(self, config: Config, data: PreparedContent) -> DataFacts:
        facts = super().facts(config, data)
        if not isinstance(data, PreparedData) or data.details["problem_type"] != MULTI_LABEL:
            return facts
        rows_of_labels = _rows_of_labels(data.train_path, data.eval_path)
        label_rows = dict(zip(data.details["names"], rows_of_labels, strict=True))
        return replace(facts, details={**facts.details, LABEL_ROWS: label_rows})

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the scores of giving the same answer for every row: the most frequent one in the training rows."""
        kind = data.details["problem_type"]
        train_labels = _labels_of(Rows(data.train_path), kind)
        eval_labels = _labels_of(held_out, kind)[list(eval_rows)]
        values, description = _same_answer(kind, train_labels, eval_labels, data.details["names"])
        scores = {f"{name} of {description}": value for name, value in values.items()}
        return Baselines(losses={}, eval_tokens=len(eval_rows), scores=scores)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id), kind=model.config.problem_type)

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.classification import ClassificationLoss

        kind = data.details["problem_type"]
        weights: list[float] = []
        if config.task.class_weights == "balanced":
            weights = class_weights(Rows(data.train_path), kind, len(data.details["names"])).tolist()
        return ClassificationLoss(model, kind, weights=weights, smoothing=config.training.label_smoothing_factor)

    def choice_count(self, config: Config, data: PreparedData) -> int:
        is_choice = data.details["problem_type"] == "single_label_classification"
        return len(data.details["names"]) if is_choice and config.task.class_weights == "none" else 0

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        return _ClassScorer(objective, data.details["problem_type"], data.details["names"])

    def calibrates(self, data: PreparedData) -> bool:
        return bool(data.details["problem_type"] != "regression")

    def calibrate(
        self,
        data: PreparedData,
        model: Any,
        objective: Any,
        observed: Sequence[tuple[Tensor, ...]],
        batch: MicroBatch | None,
    ) -> Calibration:
        """Divide the last layer by a temperature, and store it with the thresholds of several labels in the config."""
        import torch

        def divide(temperature: float) -> bool:
            return batch is not None and bool(objective.divide_logits(temperature, batch))

        labels, logits_NC = (torch.cat(parts).cpu() for parts in zip(*observed, strict=True))
        if not logits_NC.isfinite().all():
            return Calibration()
        arrays, details = (logits_NC.double().numpy(), labels.long().numpy()), data.details
        calibration, scores = calibrate(*arrays, details["problem_type"], details["names"], divide)
        setattr(model.config, CALIBRATION, calibration)
        if calibration["temperature"] == 1:
            return Calibration(scores=scores)
        loss_sum = objective.of_logits(logits_NC / calibration["temperature"], labels)
        return Calibration(scores=scores, loss=float(loss_sum) / labels.numel())

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the text, and the predicted label beside the true one."""
        text = tokenizer.decode(row.tokens.tolist(), skip_special_tokens=True)
        inputs = [InputRow(row.tokens, model_arguments=row.model_arguments)]
        predicted_label = _words_of(self.predict(config, model, tokenizer, inputs, NO_SAMPLING)[0], 1)[0]
        assert row.labels is not None, "a row of a classifier has a label"
        return str(text), f" -> {predicted_label} (expected: {_true_words(row.labels, self.labels(config, data))})"

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        columns, model_type = zip(*contents, strict=True), getattr(model.config, "model_type", "")
        first_texts, *other_texts = (break_end_tokens(texts, tokenizer, model_type) for texts in columns)
        pair_texts = other_texts[0] if other_texts else None
        # As in training, segments are only for models with more than one segment type.
        reads_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        has_segments = pair_texts is not None and reads_segments and SEGMENTS in tokenizer.model_input_names
        encoded = cut_token_ids(tokenizer, first_texts, config.data.max_length, pairs=pair_texts, segments=has_segments)
        segments = encoded.segments or [[] for _ in contents]
        arguments = [{SEGMENTS: row_segments} if has_segments else {} for row_segments in segments]
        all_ids = [ids or [pad_token_id(tokenizer)] for ids in encoded.ids]
        rows = zip(all_ids, contents, arguments, encoded.is_cut, strict=True)
        return [InputRow(ids, *fields) for ids, *fields in rows]

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return for each row the probabilities and the predicted label or labels; for a regression, the number."""
        logits_BC, kind = logits_of(model, tokenizer, rows), model.config.problem_type
        if kind == "regression":
            return [{"number": float(f"{number:.6g}")} for number in logits_BC[:, 0].tolist()]
        names = [model.config.id2label[number] for number in range(logits_BC.shape[-1])]
        thresholds = thresholds_of(getattr(model.config, CALIBRATION, None), names) if kind == MULTI_LABEL else []
        probabilities_BC = logits_BC.sigmoid() if kind == MULTI_LABEL else logits_BC.softmax(-1)
        return [_prediction(row, names, thresholds) for row in probabilities_BC.tolist()]

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return "\n".join(_words_of(prediction, _SHOWN_LABELS))


class LabelledTexts(TableReader):
    """Reader of texts with labels. `data/columns/reader.py` documents the methods."""

    def __init__(self, config: Config, model_config: Mapping[str, Any]) -> None:
        """Create a reader for a model with the labels and segment types of `model_config`."""
        super().__init__(config, SequenceClassification.head, SequenceClassification.specials)
        self.kind: Kind = "single_label_classification"
        self._model_config = model_config
        self._pair_column = config.data.text_pair_column
        self._choices = ColumnChoices(config.data.text_column, self._pair_column, has_answers=False)
        self._columns: dict[tuple[str, frozenset[str]], str] = {}
        self._labels: LabelReader | None = None
        self._text_column = ""
        self._other_label_columns: tuple[str, ...] = ()
        self._counts: Counter[str] = Counter()
        self._names: tuple[str, ...] = ()

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().set_tokenizer(tokenizer, model_config)
        self.kind = model_config["problem_type"]
        if self.kind == "regression":
            return
        self._names = tuple(model_config["id2label"].values())
        self._counts, self.classes = Counter(dict.fromkeys(self._names, 0)), len(self._names)

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns. Raise DataError if they are ambiguous, ConfigError for unsuitable settings."""
        file_name = file_of(head)
        data, text_columns = self.config.data, strings_of(head)
        if data.text_column == AUTO:
            refuse_unsupported_rows(head)
        columns = label_columns(data.label_column, head, file_name, (data.text_column, self._pair_column))
        if self._pair_column and self._pair_column not in text_columns:
            raise missing_column(self._pair_column, file_name, text_columns, key=SECOND_TEXT_KEY)
        chooses_text = data.text_column == AUTO and not (self._pair_column or self.has_trained_model)
        pair = pair_of_texts(head) if chooses_text else None
        if pair and not {*columns}.intersection(pair):
            first_name, second_name = (one_line(name, 40) for name in pair)
            hint = f"set data.text_column and {SECOND_TEXT_KEY} to use both, or only data.text_column to use one"
            raise DataError(f"the rows have two texts, '{first_name}' and '{second_name}'", where=file_name, hint=hint)
        file_and_columns = file_name, frozenset(text_columns)
        if file_and_columns not in self._columns:
            self._columns[file_and_columns] = self._choices.choose(head, excluded=(*columns, self._pair_column))
        self._text_column = self._columns[file_and_columns]
        if self._labels is None:
            requested = self.config.task.problem_type
            values = first_label_values(head, *columns)
            if not self.has_trained_model:
                self.kind = infer_label_kind(values, file_name, columns[0]) if requested == "auto" else requested
                refuse_text_labels(values, file_name, columns[0])
            self._labels = LabelReader(columns, self.kind, values)
            other_columns = (*other_label_columns(columns_of(head), columns[0]), *flag_columns(head))
            self._other_label_columns = tuple(name for name in dict.fromkeys(other_columns) if name not in columns)
            refuse_settings(self.config, self.kind)
            if not self.has_trained_model and self.kind != "regression":
                self._counts.update(dict.fromkeys(self._labels.classes, 0))
            self.classes = 1 if self.kind == "regression" else len(self._names)
        elif {*columns} != {*self._labels.columns} and max(len(columns), len(self._labels.columns)) > 1:
            message = f"the label columns are {listed(columns)}, but {listed(self._labels.columns)} in earlier files"
            raise DataError(message, where=file_name, hint="use the same columns in each file")
        else:
            self._labels.columns = columns

    @property
    def found_columns(self) -> Mapping[str, str]:
        label_column = ", ".join(self._labels.columns) if self._labels else ""
        return {"text_column": self._text_column, "text_pair_column": self._pair_column, "label_column": label_column}

    def read(self, row: Row) -> Example:
        assert self._labels is not None, "`begin` comes first"
        refuse_rejected(row)
        texts = [text_of(row, self._text_column), *([text_of(row, self._pair_column)] if self._pair_column else [])]
        for column, text in zip((self._text_column, self._pair_column), texts, strict=False):
            if not text.strip():
                raise DataError(f"the column '{one_line(column, 40)}' is empty", where=row.where, hint=_NO_TEXT)
        if self.kind == "regression":
            return Example("\n".join(texts), (texts, self._labels.number(row)))
        names = self._labels.names(row)
        if self.is_held_out or self.has_trained_model:
            self.refuse_outside("label", names, self._counts, row.where, _REMOVE_HINT)
        elif not self._names:
            self._counts.update(names)
            self.classes = len(self._counts)
        return Example("\n".join(texts), (texts, names), stratum=names[0] if names else "")

    def finish_reading(self) -> None:
        if self.kind != "regression" and not self.has_trained_model:
            self._choose_classes()
        self.refuse_no_room("a text", pair=bool(self._pair_column))
        segment_types = int(self._model_config.get("type_vocab_size") or 0)
        if self._pair_column and segment_types >= 2 and self.distinguishes_pairs:
            self.columns = (INPUT_IDS, LABELS, SEGMENTS)

    def _choose_classes(self) -> None:
        assert self._labels is not None, "rows were read"
        column, row_count = one_line(self._labels.columns[0], 40), sum(self._counts.values())
        required_classes = 2 if self.kind == "single_label_classification" else 1
        if len(self._counts) < required_classes:
            only_label = f": '{one_line(next(iter(self._counts)), 40)}'" if self._counts else ""
            message = f"the column '{column}' holds {len(self._counts)} label{'' if only_label else 's'}{only_label}"
            hint = "a classifier needs at least two classes"
            if set(self._counts) == {"-1"}:
                hint = "in datasets on the Hub, -1 often marks the hidden labels of a test split: choose another split"
            raise DataError(message, where=self._source(), hint=hint)
        all_differ = row_count >= _MIN_ROWS_ALL_DIFFER and len(self._counts) == row_count
        if all_differ or (row_count >= _MIN_ROWS_HALF_DIFFER and 2 * len(self._counts) > row_count):
            message = f"the column '{column}' holds {len(self._counts):,} different labels in {row_count:,} rows"
            hint = 'set data.label_column to the column of classes, or task.problem_type = "regression"'
            raise DataError(message, where=self._source(), hint=hint)
        self._names = sort_class_names(self._counts, self._model_config.get("id2label"))

    def _source(self) -> str:
        return next(iter(self._columns))[0]

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        has_segments, model_type = SEGMENTS in self.columns, self._model_config.get("model_type")
        texts_by_column = zip(*(example.content[0] for example in examples), strict=True)
        first_texts, *pairs = (break_end_tokens(texts, self.tokenizer, model_type) for texts in texts_by_column)
        pair = pairs[0] if pairs else None
        encoded = cut_token_ids(self.tokenizer, first_texts, self.max_length, pairs=pair, segments=has_segments)
        # One number; 0 or 1 for each class if a row has several labels; the bits of a float32 for a regression.
        row_labels = [example.content[1] for example in examples]
        class_numbers = {name: number for number, name in enumerate(self._names)}
        match self.kind:
            case "regression":
                labels = [[int(np.float32(value).view(np.int32))] for value in row_labels]
            case "multi_label_classification":
                labels = [[int(name in names) for name in class_numbers] for names in map(set, row_labels)]
            case _:
                labels = [[class_numbers[name]] for (name,) in row_labels]
        columns_of_rows = [{INPUT_IDS: ids, LABELS: label} for ids, label in zip(encoded.ids, labels, strict=True)]
        for row, segments in zip(columns_of_rows, encoded.segments, strict=False):
            row[SEGMENTS] = segments
        # A decoder's tokenizer may return no token for a text of unusual characters.
        return [
            Encoded(
                row,
                label_count=len(row[LABELS]) if row[INPUT_IDS] else 0,
                truncated=is_cut,
                spells_special_tokens=is_marked,
            )
            for row, is_cut, is_marked in zip(columns_of_rows, encoded.is_cut, encoded.is_marked, strict=True)
        ]

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes, "problem_type": self.kind, "names": list(self._names)}

    def notes(self) -> list[str]:
        assert self._labels is not None, "rows were read"
        kind_name = self.kind.replace("_", " ")
        reason = "inferred from the first rows" if self.config.task.problem_type == AUTO else "set by task.problem_type"
        columns, label_note = self._labels.columns, self._labels.note()
        clause = f"the labels are in the column '{one_line(columns[0], 40)}'"
        if columns[1:]:
            clause = f"each of the columns {listed(columns)} is a class; 1 means that the row has it"
        others = self._other_label_columns
        candidate_note = f" (other candidates: {listed(others)}; set data.label_column to choose)" if others else ""
        notes = [*self._choices.notes(), *self.language_notes(), f"{clause}: {kind_name}, {reason}{candidate_note}"]
        notes += [label_note] if label_note else []
        return [*notes, ", ".join(self._class_words()), *self._similar_class_notes()] if self._names else notes

    def _similar_class_notes(self) -> list[str]:
        """Return a note about class names that differ only in case, blanks, Unicode form, or notation of a number."""
        names_by_form: dict[str | float, list[str]] = {}
        for name in self._names:
            form = "".join(filter(str.isprintable, normalize("NFKC", name).casefold())).replace(" ", "")
            number = float(form) if NUMBER.fullmatch(form) and "," not in form and form.count(".") < 2 else None
            names_by_form.setdefault(form if number is None else number, []).append(f"'{one_line(name, 30)}'")
        same_names = next((names for names in names_by_form.values() if len(names) > 1), None)
        if same_names is None:
            return []
        return [f"{' and '.join(same_names)} are different classes; if they mean the same, use one spelling"]

    def _class_words(self) -> Iterator[str]:
        """Yield the parts of the text `3 classes: joy: 812 rows, anger: 90, ...`, the largest class first."""
        shown_classes = self._counts.most_common(_SHOWN_CLASSES)
        for index, (name, count) in enumerate(shown_classes):
            prefix, unit = ("", "") if index else (f"{len(self._names)} classes: ", " rows")
            yield f"{prefix}{one_line(name, 30)}: {count:,}{unit}"
        if hidden_count := len(self._names) - len(shown_classes):
            yield f"and {hidden_count:,} more"


def break_end_tokens(texts: Sequence[str], tokenizer: Any, model_type: object) -> Sequence[str]:
    """Return the texts with a blank inside of each end token (</s>) that they spell, for encoder-decoders only: these
    classify by their end token, and require one in each row."""
    end_token = tokenizer.eos_token
    if not end_token or model_type not in types_with(ENCODER_DECODER):
        return texts
    return [text.replace(end_token, f"{end_token[0]} {end_token[1:]}") for text in texts]


def refuse_settings(config: Config, kind: Kind) -> None:
    """Raise ConfigError for settings that do not apply to labels of this kind."""
    problems = metric_problems(config, METRICS_OF[kind], f"for a {kind.replace('_', ' ')}")
    if kind == "regression" and config.training.label_smoothing_factor:
        key = "training.label_smoothing_factor"
        problems.append(Problem(message="label smoothing does not apply to regression", key=key, hint="set it to 0"))
    if kind == "regression" and config.task.class_weights != "none":
        message = "a regression has no classes to weight"
        problems.append(Problem(message=message, key="task.class_weights", hint='set it to "none"'))
    if problems:
        raise ConfigError(problems)


def _prediction(probabilities: Sequence[float], names: Sequence[str], thresholds: Sequence[float]) -> dict[str, Any]:
    """Return the prediction for a row. `thresholds` has one number for each of several labels, else none."""
    class_order = sorted(range(len(probabilities)), key=lambda number: -probabilities[number])
    predicted = [number for number in class_order if thresholds and probabilities[number] > thresholds[number]]
    shown_classes = class_order[:MOST_TABLE_CLASSES]
    shown_classes += [number for number in class_order[MOST_TABLE_CLASSES:] if number in predicted]
    shown_probabilities = {names[number]: round(probabilities[number], 6) for number in shown_classes}
    if thresholds:
        return {"labels": [names[number] for number in predicted], "probabilities": shown_probabilities}
    best_name = names[class_order[0]]
    return {"label": best_name, "probability": shown_probabilities[best_name], "probabilities": shown_probabilities}


def _words_of(prediction: Mapping[str, Any], limit: int) -> list[str]:
    """Return text such as `joy 0.93` for the `limit` most likely labels, and for all that are predicted."""
    if "number" in prediction:
        return [f"{prediction['number']:.4g}"]
    return label_words(prediction["probabilities"], prediction.get("labels", ()), limit)


class _ClassScorer:
    """Scorer of the labels and logits of each row, which stay on the device until the evaluation is over.

    Several labels are predicted where their logit is positive, in all evaluations. The scores with thresholds are those
    of a calibrated model, which has no training ahead."""

    def __init__(self, loss: ClassificationLoss, kind: Kind, names: Sequence[str]) -> None:
        self._loss, self._kind, self._names = loss, kind, names
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits_BC = self._loss.logits(batch)
        self.seen.append((batch.labels, logits_BC))
        return self._loss.of_logits(logits_BC, batch.labels)

    def scores(self) -> Scores:
        import torch

        label_tensor, logits = (torch.cat(parts).cpu() for parts in zip(*self.seen, strict=True))
        labels, logits_NC = label_tensor.numpy(), logits.double().numpy()
        if self._kind == "regression":
            return number_scores(labels.astype(np.float64), logits_NC[:, 0])
        labels, is_multi_label = labels.astype(np.int64), self._kind == MULTI_LABEL
        predicted = (logits > 0).long().numpy() if is_multi_label else logits.argmax(-1).numpy()
        scores = (multi_label_scores if is_multi_label else class_scores)(labels, predicted, self._names)
        if (calibration := self._loss.calibration) is None:
            return scores
        calibrated_values = calibrated_scores(logits_NC, labels, self._kind, self._names, calibration)
        return replace(scores, values={**scores.values, **calibrated_values})


def class_weights(rows: Rows, kind: Kind, classes: int) -> NDArray[np.float64]:
    """Return the weight of each class in the training rows; of its positive labels if a row has several labels."""
    labels = _labels_of(rows, kind)
    return positive_weights(labels) if kind == MULTI_LABEL else balanced_weights(labels, classes)


@lru_cache(maxsize=8)  # plans ask for it again, and prepared rows never change
def _rows_of_labels(train_path: Path, eval_path: Path | None) -> list[tuple[int, int | None]]:
    """Return (training rows, held-out rows) of each of several labels; None without held-out rows."""
    train_rows = _labels_of(Rows(train_path), MULTI_LABEL).sum(axis=0).tolist()
    eval_rows = _labels_of(Rows(eval_path), MULTI_LABEL).sum(axis=0).tolist() if eval_path else [None] * len(train_rows)
    return list(zip(train_rows, eval_rows, strict=True))


def _labels_of(rows: Rows, kind: Kind) -> NDArray[Any]:
    """Return the labels of all rows: int64 [N], int64 [N, C] for several labels, or float64 [N] for a regression."""
    values = rows.values(LABELS).reshape(len(rows), -1)
    if kind == "regression":
        return values.view(np.float32).astype(np.float64)[:, 0]
    return values.astype(np.int64) if kind == MULTI_LABEL else values.astype(np.int64)[:, 0]


def _same_answer(
    kind: Kind, train_labels: NDArray[Any], labels: NDArray[Any], names: Sequence[str]
) -> tuple[Mapping[str, float], str]:
    """Return the scores of the answer that fits `train_labels` best, given for all rows, and a description of it."""
    if kind == "regression":
        errors = number_scores(labels, np.full(len(labels), train_labels.mean())).values
        return {name: errors[name] for name in ("mse", "mae")}, "the mean of the training rows"
    if kind == MULTI_LABEL:
        answer = (2 * train_labels.sum(axis=0) > len(train_labels)).astype(np.int64)
        scores = multi_label_scores(labels, np.tile(answer, (len(labels), 1)), names).values
        return scores, "the most frequent answer for each class"
    answer = np.full(len(labels), np.bincount(train_labels).argmax())
    values = class_values(labels, answer)
    return {name: values[name] for name in ("accuracy", "macro_f1")}, "the most frequent class"


def _collate(rows: Sequence[TokenRow], pad_id: int, kind: Kind, *, width: int = 0) -> Batch:
    """Collate rows and labels: int64 [B], for several labels float32 [B, C] of 0 and 1, for a number float32 [B]."""
    stored_labels = np.stack([row.labels for row in rows if row.labels is not None])
    if kind == "regression":
        return collate_whole(rows, pad_id, np.ascontiguousarray(stored_labels).view(np.float32)[:, 0], width=width)
    is_multi_label = kind == MULTI_LABEL
    labels = stored_labels.astype(np.float32) if is_multi_label else stored_labels[:, 0].astype(np.int64)
    return collate_whole(rows, pad_id, labels, width=width)


def _true_words(labels: NDArray[np.int32], classes: Labels) -> str:
    if classes.problem_type == "regression":
        return f"{float(labels.view(np.float32)[0]):.4g}"
    if classes.problem_type == MULTI_LABEL:
        return ", ".join(name for name, flag in zip(classes.names, labels, strict=True) if flag) or "no class"
    return classes.names[int(labels[0])]


TASK = SequenceClassification()
