"""Extractive question answering: the answer to a question is a part of its context, or empty.

A row is a question, its context and the answers. A context that is too long for one row gives several windows, which
share `task.doc_stride` tokens. In a window without the answer, the model learns to point at the token that represents
the whole row (CLS). To answer a question, the candidates of all of its windows are compared. Rows are never packed.

Sources: Devlin et al., BERT, arXiv:1810.04805, section 4.2 and 4.3; Rajpurkar et al., arXiv:1606.05250 and
arXiv:1806.03822, and their evaluation script for exact match and F1.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config, DataSection
from tui_trainer.data.batching.collate import Batch, Collate, collate_whole
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    kind_of_value,
    listed,
    missing_column,
    refuse_unsupported_rows,
    string_of,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.text_columns import text_of
from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates
from tui_trainer.data.preparing.byte_bpe import CLASSIFIER_SPECIAL_TOKENS
from tui_trainer.data.preparing.token_rows import INPUT_IDS, LABELS, SEGMENTS, Rows, TokenRow
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.heads import Head, Labels
from tui_trainer.models.token_ids import token_ids
from tui_trainer.models.writing import NO_SAMPLING, Sampling, pad_token_id, row_padding_id
from tui_trainer.tasks.contract import Baselines, InputReader, InputRow, Objective, Scorer, Scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.parts.scores import metric_problems, normalised
from tui_trainer.tasks.parts.task import Task
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, quantity

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.micro_batch import MicroBatch

METRICS = ("exact_match", "f1")
# What the column of each setting holds, and its usual names in datasets on the Hub.
_USUAL_COLUMNS = {
    "text_column": ("the question", ("question", "query")),
    "text_pair_column": (
        "the context",
        ("context", "passage", "paragraph", "support", "document", "article", "story", "text"),
    ),
    "target_column": ("the answers", ("answers", "answer", "answers_spans", "answer_text", "correct_answer")),
}
# Number of candidates of a window and of a question. Source: n_best_size of transformers' run_qa.py.
_CANDIDATES = 20
# Field of config.json for a model that may give no answer, with the name in run_qa.py.
_MAY_BE_UNANSWERED = "version_2_with_negative"
# Columns of a row: the numbers of its `_Window`, the characters of its tokens, its text, all true answers.
_WINDOW, _OFFSETS, _TEXT, _ANSWERS = "window", "offsets", "text", "answers"
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class QuestionAnswering(Task):
    """Task of extractive question answering. `tasks/parts/task.py` documents the methods."""

    name = "question_answering"
    title = "Question answering (extractive)"
    head: Head = "question_answering"
    pipeline_tag = "question-answering"
    architectures = ("ForMaskedLM", "ForQuestionAnswering")
    usual_length = (256, 512)
    loss_unit = "nats/position"
    labels_rows = True
    gives_windows = True
    is_only_by_columns = True
    used_settings = ("doc_stride", "max_answer_length")
    used_column_settings = ("text_column", "text_pair_column", "target_column")
    masks_padding = True
    specials = CLASSIFIER_SPECIAL_TOKENS
    metrics = METRICS
    unfit_families = (("splinter", "needs a question token in its input"), ("xlnet", "needs padding on the left"))
    usual_families = "bert or roberta"

    def problems(self, config: Config) -> list[Problem]:
        problems = super().problems(config) + metric_problems(config, METRICS, "for extractive question answering")
        if config.training.label_smoothing_factor:
            key, message = "training.label_smoothing_factor", "label smoothing does not apply to answers"
            problems.append(Problem(message=message, key=key, hint="set it to 0"))
        return problems

    def reader(self, config: Config) -> TableReader:
        return _QuestionReader(config, self._segments(config))

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        return {**super().encoding_settings(config), "segments": self._segments(config)}

    def _segments(self, config: Config) -> int:
        vocabulary = config.model.scratch.vocab_size if config.is_from_scratch else 0
        return int(self.model_config(config, vocabulary).get("type_vocab_size") or 0)

    def frame_tokens(self, config: Config) -> int:
        return 3

    def labels(self, config: Config, data: PreparedData) -> Labels:
        """Return the names of the two logits of each token, whatever labels the model had before."""
        return Labels(("start", "end"))

    def record_settings(self, config: Config, data: PreparedData, model: Any) -> None:
        """Store in the model's config, as run_qa.py does, the settings of windows and whether answers may be empty."""
        setattr(model.config, _MAY_BE_UNANSWERED, bool(data.details["unanswerable"]))
        model.config.doc_stride, model.config.max_answer_length = config.task.doc_stride, config.task.max_answer_length

    def baselines_on(
        self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]
    ) -> Baselines | None:
        """Return scores of two baselines: the sentence with most words of the question, and the empty answer."""
        tokenizer, best_sentences = self.load_tokenizer(config, data), dict[tuple[int, int], tuple[int, str]]()
        true_answers: dict[tuple[int, int], list[str]] = {}
        for index in eval_rows:
            row = held_out.example(index)
            key = _window_of(row).key
            true_answers[key] = json.loads(_int32_to_text(row.model_arguments[_ANSWERS]))
            question_words = set(normalised(_question_in(tokenizer, row)).split())
            for sentence in _SENTENCE.split(_int32_to_text(row.model_arguments[_TEXT])):
                shared_words = len(question_words.intersection(normalised(sentence).split()))
                if shared_words > best_sentences.get(key, (0, ""))[0]:
                    best_sentences[key] = shared_words, sentence
        nearest_sentences = {key: best_sentences.get(key, (0, ""))[1] for key in true_answers}
        answers_of_baselines = {"the sentence nearest to the question": nearest_sentences}
        if data.details["unanswerable"]:
            answers_of_baselines["no answer"] = dict.fromkeys(true_answers, "")
        scores = {
            f"{name} of {baseline}": value
            for baseline, answers in answers_of_baselines.items()
            for name, value in mean_scores([(answers[key], true_answers[key]) for key in true_answers]).items()
        }
        return Baselines(losses={}, eval_tokens=2 * len(eval_rows), scores=scores)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id))

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        return SpanLoss(model)

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        rows, may_be_none = Rows(data.eval_path or data.train_path), bool(data.details["unanswerable"])
        return _SpanScorer(objective, rows, most_tokens=config.task.max_answer_length, may_be_none=may_be_none)

    def compared_logits(self, model: Any, batch: MicroBatch) -> Tensor:
        import torch

        start_BT, end_BT = SpanLoss(model).logits(batch)
        return torch.stack([start_BT, end_BT], -1)[batch.inputs["attention_mask"] > 0]

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """Return the question, and the predicted answer in this window beside the true one."""
        inputs = InputRow(row.tokens, (_int32_to_text(row.model_arguments[_TEXT]), [row]))
        answer = self.predict(config, model, tokenizer, [inputs], NO_SAMPLING)[0]["answer"]
        assert row.labels is not None, "a row has the positions of its answer"
        is_elsewhere = int(row.labels[0]) == _window_of(row).cls
        true_answers = [] if is_elsewhere else json.loads(_int32_to_text(row.model_arguments[_ANSWERS]))
        expected = _words(next(iter(true_answers), ""))
        return _question_in(tokenizer, row), f" -> {_words(answer)} (expected: {expected})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return _Inputs(config.data, needs_answers=False)

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """Return a row for each question: the ids of its longest window, with context and all windows in `content`."""
        questions, contexts = zip(*contents, strict=True)
        has_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        has_segments = has_segments and SEGMENTS in tokenizer.model_input_names
        length, stride = config.data.max_length, config.task.doc_stride
        input_rows = []
        for context, windows in zip(contexts, _windows(tokenizer, questions, contexts, length, stride), strict=True):
            ids = max((window.ids for window in windows), key=len)
            is_cut = any(window.cuts_question for window in windows)
            input_rows.append(InputRow(ids, (context, [window.row(has_segments) for window in windows]), is_cut=is_cut))
        return input_rows

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return for each row the most likely answer ("" for none), where it starts and ends in the context, and its
        probability among the candidates. A forward pass takes as many windows as there are rows."""
        windows = [window for row in rows for window in row.content[1]]
        best_positions = iter(_best_positions_of_windows(model, tokenizer, windows, len(rows)))
        may_be_none = bool(getattr(model.config, _MAY_BE_UNANSWERED, False))
        answers = []
        for row in rows:
            context, row_windows = row.content
            candidates = _Candidates(config.task.max_answer_length, may_be_none=may_be_none)
            for window in row_windows:
                candidates.add(_window_of(window), window.model_arguments[_OFFSETS], context, next(best_positions))
            answers.append(candidates.answer())
        return answers

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return f"{_words(prediction['answer'])} {prediction['probability']:.2f}"


class SpanLoss:
    """Cross entropy of the first and the last token of the answer, summed over both tokens and over B rows. The mean
    over both tokens is the loss of transformers' question answering models.

    Padding is excluded from the softmax, so the loss of a row does not depend on its padding."""

    def __init__(self, model: Any) -> None:
        self._model = model
        base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
        # A decoder would cache keys and values for generation.
        self._options = {"use_cache": False} if "use_cache" in inspect.signature(base_model.forward).parameters else {}

    def __call__(self, batch: MicroBatch) -> Tensor:
        return self.of_logits(self.logits(batch), batch.labels)

    def logits(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the logits of the first and of the last answer token, float32 [B, T] each, -inf for padding."""
        from tui_trainer.losses.micro_batch import skip_mask_checks

        inputs = {name: value for name, value in batch.inputs.items() if name != _WINDOW}
        with skip_mask_checks(batch):
            output = self._model(**inputs, **self._options)
        padding_BT = batch.inputs["attention_mask"] == 0
        start_BT = output.start_logits.float().masked_fill(padding_BT, float("-inf"))
        end_BT = output.end_logits.float().masked_fill(padding_BT, float("-inf"))
        return start_BT, end_BT

    def of_logits(self, logits: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """Return the summed loss. `labels`, int64 [2 B], holds the first and the last answer token of each row."""
        import torch.nn.functional as F

        first_B, last_B = labels.view(-1, 2).unbind(1)
        start_BT, end_BT = logits
        return F.cross_entropy(start_BT, first_B, reduction="sum") + F.cross_entropy(end_BT, last_B, reduction="sum")


def mean_scores(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, float]:
    """Return the mean exact match and F1, from 0 to 1, over pairs of an answer and its true answers. The most similar
    true answer counts; "" is the true answer if there is none. `pairs` is not empty."""
    exact_matches = f1 = 0.0
    for answer, true_texts in pairs:
        scores_of_texts = [_scores(answer, text) for text in [text for text in true_texts if normalised(text)] or [""]]
        exact_matches += max(exact_match for exact_match, _ in scores_of_texts)
        f1 += max(answer_f1 for _, answer_f1 in scores_of_texts)
    return {"exact_match": exact_matches / len(pairs), "f1": f1 / len(pairs)}


def _scores(answer: str, true_answer: str) -> tuple[float, float]:
    words, true_words = normalised(answer).split(), normalised(true_answer).split()
    if not words or not true_words:
        return (float(words == true_words),) * 2
    common_words = (Counter(words) & Counter(true_words)).total()
    return float(words == true_words), 2 * common_words / (len(words) + len(true_words))


class _Window(NamedTuple):
    """A window of a context, number `number` of `windows`. Its tokens are `first` to `end` - 1 of a row, where the
    position `cls` stands for no answer. `low_key` and `high_key` are halves of the question's 64-bit key."""

    low_key: int
    high_key: int
    number: int
    windows: int
    first: int
    end: int
    cls: int

    @property
    def key(self) -> tuple[int, int]:
        return self[:2]


def _window_of(row: TokenRow) -> _Window:
    return _Window(*row.model_arguments[_WINDOW].tolist())


@dataclass(frozen=True, slots=True)
class _Encoding:
    """A window as the tokenizer encodes it. `offsets`, int32 [end - first, 2]: place of each token in the context."""

    ids: list[int]
    segments: list[int]
    window: _Window
    offsets: NDArray[np.int32]
    cuts_question: bool

    def row(self, has_segments: bool) -> TokenRow:
        columns = {SEGMENTS: np.array(self.segments, dtype=np.int32)} if has_segments else {}
        columns |= {_WINDOW: np.array(self.window, dtype=np.int32), _OFFSETS: self.offsets.reshape(-1)}
        return TokenRow(np.array(self.ids, dtype=np.int32), None, columns)

    def tokens_of(self, start: int, end: int) -> tuple[int, int]:
        """Return the first and the last token that cover characters `start` to `end` - 1 of the context, or the
        position of CLS twice if this window does not hold all of them."""
        starts, ends = self.offsets[:, 0], self.offsets[:, 1]
        if len(starts) and starts[0] <= start and end <= ends[-1]:
            # All tokens that overlap the answer: several byte tokens may share the offsets of one character.
            first_token = self.window.first + int(np.searchsorted(ends, start, "right"))
            last_token = self.window.first + int(np.searchsorted(starts, end, "left")) - 1
            if first_token <= last_token:
                return first_token, last_token
        return self.window.cls, self.window.cls

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return the (start, end) characters in the context that tokens `first` to `last` cover."""
        return int(self.offsets[first - self.window.first, 0]), int(self.offsets[last - self.window.first, 1])


def _windows(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], max_length: int, stride: int
) -> list[list[_Encoding]]:
    """Encode each context in windows of `max_length` tokens, each after its question. Adjacent windows share `stride`
    tokens, at most half of the room for context. A question that takes more than half of a row loses its end."""
    tokenizer.truncation_side = "right"
    free_tokens = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    short_questions, are_cut = list[str](), list[bool]()
    questions_by_stride: dict[int, list[int]] = defaultdict(list)
    for question, ids in zip(questions, token_ids(tokenizer, questions, special_tokens=False), strict=True):
        question_limit = max(free_tokens // 2, 1)
        are_cut.append(len(ids) > question_limit)
        if len(ids) > question_limit:
            encoded_question = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            question, ids = question[: encoded_question["offset_mapping"][question_limit - 1][1]], ids[:question_limit]
        questions_by_stride[min(stride, max(free_tokens - len(ids), 0) // 2)].append(len(short_questions))
        short_questions.append(question)
    windows: list[list[_Encoding]] = [[] for _ in questions]
    for batch_stride, question_numbers in questions_by_stride.items():
        encoded = tokenizer(
            [short_questions[index] for index in question_numbers],
            [contexts[index] for index in question_numbers],
            truncation="only_second",
            max_length=max_length,
            stride=batch_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        examples_of_rows = encoded["overflow_to_sample_mapping"]
        window_counts, windows_seen = Counter(examples_of_rows), Counter[int]()
        for row, example in enumerate(examples_of_rows):
            index, ids, sequence_ids = question_numbers[example], encoded["input_ids"][row], encoded.sequence_ids(row)
            has_context = 1 in sequence_ids
            first_token = sequence_ids.index(1) if has_context else 0
            end_token = len(sequence_ids) - sequence_ids[::-1].index(1) if has_context else 0
            cls_position = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
            window = _Window(0, 0, windows_seen[example], window_counts[example], first_token, end_token, cls_position)
            windows_seen[example] += 1
            offsets = np.array(encoded["offset_mapping"][row][first_token:end_token], dtype=np.int32).reshape(-1, 2)
            windows[index].append(_Encoding(ids, encoded.encodings[row].type_ids, window, offsets, are_cut[index]))
    return windows


class _Columns:
    """Columns of question, context and answers: `begin` chooses them, and the other methods read rows."""

    def __init__(self, data: DataSection, *, needs_answers: bool = True) -> None:
        self._data, self._needs_answers = data, needs_answers
        self.question = self.context = self.answers = ""

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns. Raise DataError if one is missing or ambiguous."""
        names, label, columns = columns_of(head), file_of(head), list[str]()
        if self._data.text_column == AUTO:
            refuse_unsupported_rows(head)
        for setting, (content, usual_names) in _USUAL_COLUMNS.items():
            column, key = getattr(self._data, setting), f"data.{setting}"
            is_needed = self._needs_answers or setting != "target_column"
            if column in ("", AUTO):
                candidates = usual_columns(usual_names, names)
                if not candidates and is_needed:
                    hint = f"columns found: {listed(names)}; set {key} to the right one"
                    raise DataError(f"no column holds {content}", where=label, hint=hint)
                columns.append(candidates[0] if candidates else "")
            elif column not in names and is_needed:
                raise missing_column(column, label, names, key=key)
            else:
                columns.append(column)
        self.question, self.context, self.answers = columns

    def read(self, row: Row) -> tuple[str, str]:
        """Return (question, context). The context keeps all of its characters, because answers have positions in it."""
        question, context = text_of(row, self.question).strip(), string_of(row, self.context)
        refuse_surrogates(context, row.where)
        if len(context) > MAX_LINE_BYTES:
            raise DataError(f"the context is longer than {format_bytes(MAX_LINE_BYTES)}", where=row.where)
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise DataError(f"the {name} is empty", where=row.where)
        return question, context

    def answers_of(self, row: Row, context: str) -> tuple[list[tuple[str, int]], bool]:
        """Return (answer, start) of each answer, and whether a missing start was guessed among several occurrences.
        Raise DataError for an answer that is not in the context, and if `is_impossible` contradicts the answers."""
        answers, is_guess = list[tuple[str, int]](), False
        for text, start in _written_answers(row, self.answers, context):
            shown_text = one_line(text, 40)
            if not text.strip():
                message = f"an answer in the column '{one_line(self.answers, 40)}' is blank"
                hint = "write the answer, or an empty list [] if the question has no answer"
                raise DataError(message, where=row.where, hint=hint)
            if start is None:
                start = context.find(text)
                is_guess |= context.find(text, start + 1) >= 0
                if start < 0:
                    hint = "answers must be quoted from their context: correct the answer, or remove the row"
                    raise DataError(f"the answer '{shown_text}' is not in the context", where=row.where, hint=hint)
            elif start < 0 or context[start : start + len(text)] != text:
                actual_text = one_line(context[max(start, 0) : max(start, 0) + len(text)], 40)
                fact = f"which has '{actual_text}' there" if actual_text else f"which has {len(context):,} characters"
                message = f"the answer '{shown_text}' is not at character {start:,} of the context, {fact}"
                raise DataError(message, where=row.where, hint="answer_start counts characters from 0")
            answers.append((text, start))
        flag_text = str(row.values.get("is_impossible")).lower()
        if flag_text == str(bool(answers)).lower():
            fact = "there is an answer" if answers else "there is no answer"
            hint = "correct one of the two, or remove is_impossible"
            raise DataError(f"is_impossible is {flag_text}, but {fact}", where=row.where, hint=hint)
        return answers, is_guess


def _written_answers(row: Row, column: str, context: str) -> Iterator[tuple[str, int | None]]:
    """Yield (text, start or None) of each answer in a column. The value may be `{"text": [...], "answer_start":
    [...]}`, DROP's `{"spans": [...]}`, TriviaQA's `{"value": ..., "aliases": [...]}`, a list of objects or texts, or a
    text, also as JSON or as Python's notation of these. Raise DataError for other values."""
    value = value_of(row, column)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and (parsed := written_value(value)) is not None:
        value = parsed
    if isinstance(value, Mapping) and isinstance(value.get("value"), str):
        spellings = [value["value"], *(alias for alias in value.get("aliases") or () if isinstance(alias, str))]
        value = [next((name for name in spellings if name in context), spellings[0])]
    if isinstance(value, Mapping):
        texts, starts = value.get("text", value.get("spans")), value.get("answer_start")
        if not isinstance(texts, list):
            texts, starts = ([texts], [starts]) if texts else ([], [] if starts is None else starts)
        starts = starts if isinstance(starts, list) else [None] * len(texts)
        if len(starts) != len(texts):
            count_text = quantity(len(starts), "number")
            raise DataError(f"there are {len(texts)} answers, but answer_start has {count_text}", where=row.where)
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=False)]
    if isinstance(value, str):
        value = [{"text": value, "answer_start": row.values.get("answer_start")}] if value else []
    for entry in value if isinstance(value, list) else [] if value is None else [value]:
        text, start = (entry.get("text"), entry.get("answer_start")) if isinstance(entry, Mapping) else (entry, None)
        hint = 'write {"text": ["..."], "answer_start": [0]}, or the text of the answer'
        if not isinstance(text, str):
            message = f"an answer in the column '{one_line(column, 40)}' is {kind_of_value(text)}"
            raise DataError(message, where=row.where, hint=hint)
        yield text, _read_start(start, row.where, hint)


def _read_start(start: Any, where: str, hint: str) -> int | None:
    """Return an answer_start, also of a table that has 5.0 for 5, or None if it is missing. Raise DataError."""
    if start is None or start == "" or start != start:
        return None
    with suppress(ValueError):
        if not isinstance(start, bool) and isinstance(start, int | float | str) and float(start).is_integer():
            return int(float(start))
    shown_start = one_line(str(start), 40)
    problem = f"answer_start is {kind_of_value(start)} ('{shown_start}'), not a whole number"
    raise DataError(problem, where=where, hint=hint)


class _QuestionReader(TableReader):
    """Reader of questions with their contexts, which it encodes in windows."""

    classes = 2

    def __init__(self, config: Config, segments: int) -> None:
        """Create a reader for a model with `segments` segment types."""
        super().__init__(config, QuestionAnswering.head, QuestionAnswering.specials)
        self._columns = _Columns(config.data)
        self._segments = segments
        self._has_null = False
        self._counts: Counter[str] = Counter()
        self._column_notes: dict[str, None] = {}

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().set_tokenizer(tokenizer, model_config)
        self._has_null = bool(model_config.get(_MAY_BE_UNANSWERED))

    def begin(self, head: Sequence[Row]) -> None:
        columns = self._columns
        columns.begin(head)
        names = {"questions": columns.question, "contexts": columns.context, "answers": columns.answers}
        clauses = (f"{content} are in the column '{one_line(name, 40)}'" for content, name in names.items())
        self._column_notes[", ".join(clauses)] = None

    @property
    def found_columns(self) -> Mapping[str, str]:
        columns = self._columns
        return dict(zip(_USUAL_COLUMNS, (columns.question, columns.context, columns.answers), strict=True))

    def read(self, row: Row) -> Example:
        question, context = self._columns.read(row)
        answers, is_guess = self._columns.answers_of(row, context)
        self._counts["guessed"] += is_guess
        self._counts["several"] += len({text for text, _ in answers}) > 1
        self._counts["none"] += not answers
        self._has_null |= not (answers or self.is_held_out or self.has_trained_model)
        return Example(f"{question}\n{context}", (question, context, answers, row.where))

    def finish_reading(self) -> None:
        self.refuse_no_room("a question and its context", pair=True)
        if not (self.trains_tokenizer or self.tokenizer.is_fast):
            message = "the tokenizer cannot map its tokens to characters, so answers cannot be marked"
            hint = "choose a model with a tokenizer.json"
            raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))
        segments = (SEGMENTS,) if self.distinguishes_pairs and self._segments >= 2 else ()
        self.columns = (INPUT_IDS, LABELS, *segments, _WINDOW, _OFFSETS, _TEXT, _ANSWERS)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        questions, contexts, _, _ = zip(*(example.content for example in examples), strict=True)
        all_windows = _windows(self.tokenizer, questions, contexts, self.max_length, self.config.task.doc_stride)
        encoded = []
        for index, windows in enumerate(all_windows):
            _, context, answers, where = examples[index].content
            answer_text, answer_start = answers[0] if answers else ("", -1)
            end = answer_start + len(answer_text)
            spans = [window.tokens_of(answer_start, end) if answers else (window.window.cls,) * 2 for window in windows]
            has_answer = [first != window.window.cls for (first, _), window in zip(spans, windows, strict=True)]
            is_lost = bool(answers) and not any(has_answer)
            inexact = ""
            if any(has_answer):
                first_window = has_answer.index(True)
                text_start, text_end = windows[first_window].characters(*spans[first_window])
                if (learned_text := context[text_start:text_end].strip()) != answer_text.strip():
                    inexact = f"'{one_line(answer_text, 40)}' is trained on as '{one_line(learned_text, 40)}' ({where})"
            key, all_answers = _key(where), _text_to_int32(json.dumps([answer_text for answer_text, _ in answers]))
            for window, labels in zip(windows, spans, strict=True):
                offsets = window.offsets
                text_start, text_end = (int(offsets[0, 0]), int(offsets[-1, 1])) if len(offsets) else (0, 0)
                columns: dict[str, Sequence[int] | NDArray[np.int32]] = {
                    INPUT_IDS: window.ids,
                    LABELS: labels,
                    SEGMENTS: window.segments,
                    _WINDOW: [*key, *window.window[2:]],
                    _OFFSETS: (offsets - np.int32(text_start)).reshape(-1),
                    _TEXT: _text_to_int32(context[text_start:text_end]),
                    _ANSWERS: all_answers,
                }
                columns, is_cut = {name: columns[name] for name in self.columns}, window.cuts_question
                row = Encoded(columns, 2, is_cut, answer_truncated=is_lost, inexact_reason=inexact, example=index)
                encoded.append(row)
                is_lost, inexact = False, ""  # each is counted once for all windows
        return encoded

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes, "names": ["start", "end"], "unanswerable": self._has_null}

    def notes(self) -> list[str]:
        counts, notes = self._counts, [*self._column_notes]
        if counts["none"]:
            notes.append(f"{quantity(counts['none'], 'question', 'have')} no answer in the context")
        if counts["several"]:
            message = "several answers: training uses the first, scores use the best match"
            notes.append(f"{quantity(counts['several'], 'question', 'have')} {message}")
        if counts["guessed"]:
            message = "more than once in the context: the first occurrence is trained on"
            notes.append(f"{quantity(counts['guessed'], 'answer', 'occur')} {message}")
        return notes


class _Inputs(_Columns):
    """Reader of inputs (question, context)."""

    def of_text(self, text: str) -> tuple[str, str]:
        """Split a typed text into question and context at a tab, else after the first question mark."""
        question, separator, context = text.partition("\t")
        if not separator:
            question, separator, context = text.partition("?")
            question += separator
        if not question.strip() or not context.strip():
            raise DataError("there is no text to search", hint="type a question that ends with ?, then the text")
        return question.strip(), context.strip()


class _Candidates:
    """The candidate answers to one question in all of its windows. The score of an answer is the sum of its two logits.
    The score of "no answer" is the lowest among the windows, as in run_qa.py of transformers: a window without the
    answer does not exclude that another has it."""

    def __init__(self, most_tokens: int, *, may_be_none: bool) -> None:
        self._most_tokens, self._may_be_none = most_tokens, may_be_none
        self._candidates: list[tuple[float, int, int, str]] = []
        self._null = float("inf")

    def add(self, window: _Window, offsets: NDArray[np.int32], text: str, positions: Sequence[NDArray[Any]]) -> None:
        """Add the candidates of a window of the context `text`. `positions` is a result of `_best_positions`;
        `offsets` holds the start and the end of each context token in `text`, in characters."""
        starts, start_scores, ends, end_scores, null_score = positions
        self._null = min(self._null, float(null_score))
        token_counts = ends[None, :] - starts[:, None] + 1
        scores = start_scores[:, None] + end_scores[None, :]
        scores = np.where((token_counts >= 1) & (token_counts <= self._most_tokens), scores, -np.inf)
        for index in np.argsort(-scores, axis=None, kind="stable")[:_CANDIDATES].tolist():
            start_index, end_index = divmod(index, scores.shape[1])
            if not np.isfinite(scores[start_index, end_index]):
                break
            low = int(offsets[2 * (starts[start_index] - window.first)])
            high = int(offsets[2 * (ends[end_index] - window.first) + 1])
            self._candidates.append((float(scores[start_index, end_index]), low, high, text[low:high]))

    def answer(self) -> dict[str, Any]:
        """Return {"answer", "start", "end", "probability"} of the best answer; no start and end for an empty one."""
        best_candidates = sorted(self._candidates, key=lambda candidate: -candidate[0])[:_CANDIDATES]
        scores = [score for score, *_ in best_candidates]
        scores += [self._null] if self._may_be_none or not best_candidates else []
        weights = np.exp(np.array(scores) - max(scores))
        best_index = int(np.argmax(scores))
        probability = round(float(weights[best_index] / weights.sum()), 6)
        if best_index == len(best_candidates):
            return {"answer": "", "start": None, "end": None, "probability": probability}
        _, answer_start, _, text = best_candidates[best_index]
        answer_start += len(text) - len(text.lstrip())
        text = text.strip()
        return {"answer": text, "start": answer_start, "end": answer_start + len(text), "probability": probability}


def _best_positions(logits: tuple[Tensor, Tensor], window_BW: Tensor) -> tuple[Tensor, ...]:
    """Return the K best first and last tokens of an answer in each window, within the context: (first tokens int64 [B,
    K], their logits, last tokens, their logits, scores of no answer [B]). Nothing waits for the device."""
    import torch

    start_BT, end_BT = logits
    positions = torch.arange(start_BT.shape[1], device=start_BT.device)
    outside_BT = (positions < window_BW[:, 4:5]) | (positions >= window_BW[:, 5:6])
    tensors: list[Tensor] = []
    for logits_BT in (start_BT, end_BT):
        top_logits = logits_BT.masked_fill(outside_BT, float("-inf")).topk(min(_CANDIDATES, logits_BT.shape[1]), dim=1)
        tensors += [top_logits.indices, top_logits.values]
    null_B = (start_BT.gather(1, window_BW[:, 6:7]) + end_BT.gather(1, window_BW[:, 6:7])).squeeze(1)
    return (*tensors, null_B)


def _best_positions_of_windows(
    model: Any, tokenizer: Any, windows: Sequence[TokenRow], rows_at_a_time: int
) -> Iterator[Sequence[NDArray[Any]]]:
    """Yield the result of `_best_positions` for each window, with `rows_at_a_time` windows in a forward pass."""
    import torch

    from tui_trainer.losses.micro_batch import micro_batch

    loss, pad_id = SpanLoss(model), row_padding_id(model, pad_token_id(tokenizer))
    for start in range(0, len(windows), rows_at_a_time):
        window_rows = [replace(row, labels=np.zeros(2, np.int32)) for row in windows[start : start + rows_at_a_time]]
        batch = micro_batch(_collate(window_rows, pad_id)).to(model.device)
        with torch.no_grad():
            tensors = _best_positions(loss.logits(batch), batch.inputs[_WINDOW])
            best_positions = [tensor.cpu().numpy() for tensor in tensors]
        yield from (tuple(values[row] for values in best_positions) for row in range(len(window_rows)))


class _SpanScorer:
    """Scorer that leaves the best positions of each window on the device until the evaluation is over.

    If only some windows are evaluated, only questions whose windows are all evaluated count. Without such questions,
    all questions count, with the windows that were evaluated."""

    def __init__(self, loss: SpanLoss, rows: Rows, *, most_tokens: int, may_be_none: bool) -> None:
        self._loss, self._rows, self._most_tokens, self._may_be_none = loss, rows, most_tokens, may_be_none
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits, window_BW = self._loss.logits(batch), batch.inputs[_WINDOW]
        self.seen.append((window_BW, *_best_positions(logits, window_BW)))
        return self._loss.of_logits(logits, batch.labels)

    def scores(self) -> Scores:
        window_ids = self._rows.values(_WINDOW).reshape(-1, 7)[:, :3].tolist()
        rows_by_window = {tuple(window_id): row for row, window_id in enumerate(window_ids)}
        candidates: dict[tuple[int, int], _Candidates] = {}
        true_answers: dict[tuple[int, int], list[str]] = {}
        missing_windows: dict[tuple[int, int], int] = {}
        for batch in self.seen:
            for window_fields, *best_positions in zip(*(tensor.cpu().numpy() for tensor in batch), strict=True):
                window = _Window(*window_fields.tolist())
                row = self._rows.example(rows_by_window[window[:3]])
                if window.key not in candidates:
                    candidates[window.key] = _Candidates(self._most_tokens, may_be_none=self._may_be_none)
                    true_answers[window.key] = json.loads(_int32_to_text(row.model_arguments[_ANSWERS]))
                    missing_windows[window.key] = window.windows
                missing_windows[window.key] -= 1
                text = _int32_to_text(row.model_arguments[_TEXT])
                candidates[window.key].add(window, row.model_arguments[_OFFSETS], text, best_positions)
        complete_keys = [key for key in candidates if missing_windows[key] <= 0] or list(candidates)
        pairs = [(str(candidates[key].answer()["answer"]), true_answers[key]) for key in complete_keys]
        answered, unanswered = ([pair for pair in pairs if bool(pair[1]) == has_answer] for has_answer in (True, False))
        parts = {"with an answer": answered, "without one": unanswered}
        rows = {name: [*mean_scores(group).values(), len(group)] for name, group in parts.items() if group}
        columns = (*METRICS, "questions")
        return Scores(values=mean_scores(pairs), table_title="questions", table_columns=columns, table_rows=rows)


def _collate(rows: Sequence[TokenRow], pad_id: int, *, width: int = 0) -> Batch:
    """Collate windows. Labels, int64 [B, 2], hold the first and the last token of the answer. The arguments include the
    `_Window` of each row, int64 [B, 7], which is for the loss and not for the model."""
    model_rows = []
    for row in rows:
        segments = {name: values for name, values in row.model_arguments.items() if name == SEGMENTS}
        model_rows.append(replace(row, model_arguments=segments))
    labels = np.stack([row.labels for row in rows if row.labels is not None]).astype(np.int64)
    batch = collate_whole(model_rows, pad_id, labels, width=width)
    window_numbers = np.stack([row.model_arguments[_WINDOW] for row in rows]).astype(np.int64)
    return replace(batch, model_arguments={**batch.model_arguments, _WINDOW: window_numbers})


def _key(where: str) -> tuple[int, int]:
    """Return the two int32 halves of a 64-bit hash, which identifies a question by the location of its row."""
    import xxhash

    low_half, high_half = np.frombuffer(xxhash.xxh3_64_digest(where.encode()), dtype=np.int32).tolist()
    return low_half, high_half


def _text_to_int32(text: str) -> NDArray[np.int32]:
    """Return a text as int32, the type of rows on disk: its number of UTF-8 bytes, then four bytes in each number."""
    text_bytes = text.encode()
    padded_bytes = text_bytes + b"\0" * (-len(text_bytes) % 4)
    return np.concatenate([np.array([len(text_bytes)], dtype=np.int32), np.frombuffer(padded_bytes, dtype=np.int32)])


def _int32_to_text(numbers: NDArray[np.int32]) -> str:
    return numbers[1:].tobytes()[: int(numbers[0])].decode()


def _question_in(tokenizer: Any, row: TokenRow) -> str:
    """Return the question of a window, decoded from the tokens before its context."""
    return str(tokenizer.decode(row.tokens[: _window_of(row).first].tolist(), skip_special_tokens=True)).strip()


def _words(answer: str) -> str:
    return answer or "(no answer)"


TASK = QuestionAnswering()
