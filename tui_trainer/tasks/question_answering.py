"""A question about a text is answered with a part of it, or with nothing where the text does not answer it.

A row is a question, its context and the answers to it. A context that is too long for one row gives several windows,
which share `task.doc_stride` tokens; where the answer is in no window the model learns to point at the token that
stands for the whole row (CLS). Answers of all windows of a question compete when it is answered. Rows are read whole;
none shares its row with another.

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
    refuse_unlearnt,
    string_of,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.text_columns import text_of
from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates
from tui_trainer.data.preparing.byte_bpe import FOR_CLASSES
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS, SEGMENTS, Rows, TokenRow
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
# Usual names of `question`, `context` and `answers` in datasets on the Hub.
_USUAL = {
    "text_column": ("the question", ("question", "query")),
    "text_pair_column": (
        "the context",
        ("context", "passage", "paragraph", "support", "document", "article", "story", "text"),
    ),
    "target_column": ("the answers", ("answers", "answer", "answers_spans", "answer_text", "correct_answer")),
}
# Candidates of a window and of a question. Source: n_best_size of transformers' run_qa.py.
_BEST = 20
# In the config.json of a model that may leave a question without an answer, as run_qa.py calls it.
_NULL = "version_2_with_negative"
# What stands beside the tokens of a window: `_Window.numbers`, characters of its tokens, its text, all true answers.
_WINDOW, _OFFSETS, _TEXT, _ANSWERS = "window", "offsets", "text", "answers"
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class QuestionAnswering(Task):
    """See `tasks/parts/task.py` for what each part promises."""

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
    reads = ("doc_stride", "max_answer_length")
    reads_columns = ("text_column", "text_pair_column", "target_column")
    tells_padding = True
    specials = FOR_CLASSES
    metrics = METRICS
    unfit_families = (("splinter", "needs a question token in its input"), ("xlnet", "pads rows on the left"))
    usual_families = "bert or roberta"

    def problems(self, config: Config) -> list[Problem]:
        found = super().problems(config) + metric_problems(config, METRICS, "for extractive question answering")
        if config.training.label_smoothing_factor:
            key, message = "training.label_smoothing_factor", "label smoothing does not apply to answers"
            found.append(Problem(message=message, key=key, hint="set it to 0"))
        return found

    def reader(self, config: Config) -> TableReader:
        return _QuestionReader(config, self._segments(config))

    def reading(self, config: Config) -> dict[str, Any]:
        return {**super().reading(config), "segments": self._segments(config)}

    def _segments(self, config: Config) -> int:
        vocabulary = config.model.scratch.vocab_size if config.is_from_scratch else 0
        return int(self.model_config(config, vocabulary).get("type_vocab_size") or 0)

    def frame_tokens(self, config: Config) -> int:
        return 3

    def labels(self, config: Config, data: PreparedData) -> Labels:
        """The model's two numbers for each token, whatever a classifier was before."""
        return Labels(("start", "end"))

    def record_settings(self, config: Config, data: PreparedData, model: Any) -> None:
        """How contexts are read in windows, and whether one may have no answer, by the names that run_qa.py has."""
        setattr(model.config, _NULL, bool(data.details["unanswerable"]))
        model.config.doc_stride, model.config.max_answer_length = config.task.doc_stride, config.task.max_answer_length

    def baselines_on(
        self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]
    ) -> Baselines | None:
        """The sentence that shares most words with the question; and no answer at all, where that can be true."""
        tokenizer, best = self.load_tokenizer(config, data), dict[tuple[int, int], tuple[int, str]]()
        truth: dict[tuple[int, int], list[str]] = {}
        for index in eval_rows:
            row = held_out.example(index)
            key = _window_of(row).key
            truth[key] = json.loads(_unpacked(row.more[_ANSWERS]))
            asked = set(normalised(_question_in(tokenizer, row)).split())
            for sentence in _SENTENCE.split(_unpacked(row.more[_TEXT])):
                shared = len(asked.intersection(normalised(sentence).split()))
                if shared > best.get(key, (0, ""))[0]:
                    best[key] = shared, sentence
        found = {"the sentence nearest to the question": {key: best.get(key, (0, ""))[1] for key in truth}}
        if data.details["unanswerable"]:
            found["no answer"] = dict.fromkeys(truth, "")
        scores = {
            f"{name} of {what}": value
            for what, answers in found.items()
            for name, value in mean_scores([(answers[key], truth[key]) for key in truth]).items()
        }
        return Baselines(losses={}, eval_tokens=2 * len(eval_rows), scores=scores)

    def collate(self, model: Any, pad_id: int) -> Collate:
        return partial(_collate, pad_id=row_padding_id(model, pad_id))

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        return SpanLoss(model)

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer:
        return _SpanScorer(
            objective,
            Rows(data.eval_path or data.train_path),
            most_tokens=config.task.max_answer_length,
            may_be_none=bool(data.details["unanswerable"]),
        )

    def compared_logits(self, model: Any, batch: MicroBatch) -> Tensor:
        import torch

        start_BT, end_BT = SpanLoss(model).logits(batch)
        return torch.stack([start_BT, end_BT], -1)[batch.inputs["attention_mask"] > 0]

    def sample(
        self, config: Config, data: PreparedData, model: Any, tokenizer: Tokenizer, row: TokenRow, *, new_tokens: int
    ) -> tuple[str, str]:
        """The question, and the answer in this window beside the true one."""
        asked = InputRow(row.tokens, (_unpacked(row.more[_TEXT]), [row]))
        told = self.predict(config, model, tokenizer, [asked], NO_SAMPLING)[0]["answer"]
        assert row.labels is not None, "a row has the places of its answer"
        is_elsewhere = int(row.labels[0]) == _window_of(row).cls
        true = [] if is_elsewhere else json.loads(_unpacked(row.more[_ANSWERS]))
        return _question_in(tokenizer, row), f" -> {_words(told)} (expected: {_words(true[0] if true else '')})"

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        return _Inputs(config.data, needs_answers=False)

    def encode_inputs(
        self, config: Config, model: Any, tokenizer: Tokenizer, contents: Sequence[Any], sampling: Sampling
    ) -> list[InputRow]:
        """The longest window of each; all of them are in `content`."""
        questions, contexts = zip(*contents, strict=True)
        has_segments = int(getattr(model.config, "type_vocab_size", 0) or 0) >= 2
        has_segments = has_segments and SEGMENTS in tokenizer.model_input_names
        length, stride = config.data.max_length, config.task.doc_stride
        rows = []
        for context, windows in zip(contexts, _windows(tokenizer, questions, contexts, length, stride), strict=True):
            ids = max((window.ids for window in windows), key=len)
            is_cut = any(window.cuts_question for window in windows)
            rows.append(InputRow(ids, (context, [window.row(has_segments) for window in windows]), is_cut=is_cut))
        return rows

    def predict(
        self, config: Config, model: Any, tokenizer: Tokenizer, rows: Sequence[InputRow], sampling: Sampling
    ) -> list[dict[str, Any]]:
        """The likeliest answer and its characters in the context, how likely it is beside the other candidates, and
        empty for none; as many windows at a time as there are rows."""
        windows = [window for row in rows for window in row.content[1]]
        best = iter(_best_of(model, tokenizer, windows, len(rows)))
        may_be_none = bool(getattr(model.config, _NULL, False))
        found = []
        for row in rows:
            context, own = row.content
            one = _Candidates(config.task.max_answer_length, may_be_none=may_be_none)
            for window in own:
                one.add(_window_of(window), window.more[_OFFSETS], context, next(best))
            found.append(one.answer())
        return found

    def prediction_words(self, prediction: Mapping[str, Any]) -> str:
        return f"{_words(prediction['answer'])} {prediction['probability']:.2f}"


class SpanLoss:
    """`loss(batch)`: cross entropy of the first and of the last token of the answer, summed over both of B rows, with
    the graph behind it. So its mean is what transformers' models for question answering give: the mean of both.

    Padding takes no part in the softmax: the loss of a row is that of the row alone.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        whole = model.get_base_model() if hasattr(model, "get_base_model") else model
        # A decoder would keep keys and values for a next token that is never asked for.
        self._more = {"use_cache": False} if "use_cache" in inspect.signature(whole.forward).parameters else {}

    def __call__(self, batch: MicroBatch) -> Tensor:
        return self.of_logits(self.logits(batch), batch.labels)

    def logits(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """float32 [B, T] each, of the first and of the last token; -inf where a row is filled up."""
        from tui_trainer.losses.micro_batch import known_masks

        inputs = {name: value for name, value in batch.inputs.items() if name != _WINDOW}
        with known_masks(batch):
            found = self._model(**inputs, **self._more)
        padding_BT = batch.inputs["attention_mask"] == 0
        start_BT, end_BT = (
            one.float().masked_fill(padding_BT, float("-inf")) for one in (found.start_logits, found.end_logits)
        )
        return start_BT, end_BT

    def of_logits(self, logits: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """`labels`: int64 [2 B], the first and the last token of each row."""
        import torch.nn.functional as F

        first_B, last_B = labels.view(-1, 2).unbind(1)
        start_BT, end_BT = logits
        return F.cross_entropy(start_BT, first_B, reduction="sum") + F.cross_entropy(end_BT, last_B, reduction="sum")


def mean_scores(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, float]:
    """Exact match and F1 of answers, each beside the true ones of its question (none: it has no answer); of the true
    ones the nearest counts. Both are between 0 and 1, where SQuAD's script gives percent. There is one pair or more."""
    exact = f1 = 0.0
    for answer, true in pairs:
        scored = [_scores(answer, one) for one in [one for one in true if normalised(one)] or [""]]
        exact += max(one for one, _ in scored)
        f1 += max(one for _, one in scored)
    return {"exact_match": exact / len(pairs), "f1": f1 / len(pairs)}


def _scores(answer: str, true: str) -> tuple[float, float]:
    mine, theirs = (normalised(text).split() for text in (answer, true))
    if not mine or not theirs:
        return (float(mine == theirs),) * 2
    common = (Counter(mine) & Counter(theirs)).total()
    return float(mine == theirs), 2 * common / (len(mine) + len(theirs))


class _Window(NamedTuple):
    """Part of a context beside its question: the `number`-th of `windows`. Its context is tokens `first` up to `end`;
    `cls` is the place that stands for no answer. `key`: of the question, 64 bits in two halves."""

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
    return _Window(*row.more[_WINDOW].tolist())


@dataclass(frozen=True, slots=True)
class _Encoding:
    """A window as the tokenizer makes it. `offsets`: int32 [end - first, 2], its tokens' characters of the context."""

    ids: list[int]
    segments: list[int]
    window: _Window
    offsets: NDArray[np.int32]
    cuts_question: bool

    def row(self, has_segments: bool) -> TokenRow:
        more = {_WINDOW: np.array(self.window, dtype=np.int32), _OFFSETS: self.offsets.reshape(-1)}
        segments = {SEGMENTS: np.array(self.segments, dtype=np.int32)} if has_segments else {}
        return TokenRow(np.array(self.ids, dtype=np.int32), None, {**segments, **more})

    def places(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that hold characters `start` up to `end` of the context; twice CLS where not all of them do."""
        starts, ends = self.offsets[:, 0], self.offsets[:, 1]
        if len(starts) and starts[0] <= start and end <= ends[-1]:
            # From the first token that reaches into the answer to the last: byte tokens of one character share offsets.
            first, last = int(np.searchsorted(ends, start, "right")), int(np.searchsorted(starts, end, "left")) - 1
            if first <= last:
                return self.window.first + first, self.window.first + last
        return self.window.cls, self.window.cls

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """Return the characters of the context, start and end, that tokens `first` to `last` hold."""
        return int(self.offsets[first - self.window.first, 0]), int(self.offsets[last - self.window.first, 1])


def _windows(
    tokenizer: Any, questions: Sequence[str], contexts: Sequence[str], max_length: int, stride: int
) -> list[list[_Encoding]]:
    """The windows of each context, as long as `max_length` allows beside its question. Two neighbours share `stride`
    tokens, at the most half of what there is room for. A question that takes more than half of a row loses its end."""
    tokenizer.truncation_side = "right"
    free = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    asked, cut = [], []
    for question, ids in zip(questions, token_ids(tokenizer, questions, special_tokens=False), strict=True):
        most = max(free // 2, 1)
        cut.append(len(ids) > most)
        if len(ids) > most:
            whole = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            question, ids = question[: whole["offset_mapping"][most - 1][1]], ids[:most]
        asked.append((question, min(stride, max(free - len(ids), 0) // 2)))
    by_stride: dict[int, list[int]] = defaultdict(list)
    for at, (_, own) in enumerate(asked):
        by_stride[own].append(at)
    found: list[list[_Encoding]] = [[] for _ in questions]
    for own, places in by_stride.items():
        encoded = tokenizer(
            [asked[at][0] for at in places],
            [contexts[at] for at in places],
            truncation="only_second",
            max_length=max_length,
            stride=own,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        of_example = encoded["overflow_to_sample_mapping"]
        counts, numbers = Counter(of_example), Counter[int]()
        for number, example in enumerate(of_example):
            at, ids, parts = places[example], encoded["input_ids"][number], encoded.sequence_ids(number)
            has_context = 1 in parts
            first = parts.index(1) if has_context else 0
            end = len(parts) - parts[::-1].index(1) if has_context else 0
            cls = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
            window = _Window(0, 0, numbers[example], counts[example], first, end, cls)
            numbers[example] += 1
            offsets = np.array(encoded["offset_mapping"][number][first:end], dtype=np.int32).reshape(-1, 2)
            found[at].append(_Encoding(ids, encoded.encodings[number].type_ids, window, offsets, cut[at]))
    return found


class _Columns:
    """Where question, context and answers stand."""

    def __init__(self, data: DataSection, *, needs_answers: bool = True) -> None:
        self._data, self._needs_answers = data, needs_answers
        self.question = self.context = self.answers = ""

    def begin(self, head: Sequence[Row]) -> None:
        """Raises DataError for a column that is not there, or cannot be told."""
        names, label, found = columns_of(head), file_of(head), list[str]()
        if self._data.text_column == AUTO:
            refuse_unlearnt(head)
        for setting, (what, usual) in _USUAL.items():
            wanted, key = getattr(self._data, setting), f"data.{setting}"
            if wanted in ("", AUTO):
                known = usual_columns(usual, names)
                if not known and (self._needs_answers or setting != "target_column"):
                    hint = f"columns found: {listed(names)}; set {key} to the right one"
                    raise DataError(f"no column holds {what}", where=label, hint=hint)
                found.append(known[0] if known else "")
            elif wanted not in names and (self._needs_answers or setting != "target_column"):
                raise missing_column(wanted, label, names, key=key)
            else:
                found.append(wanted)
        self.question, self.context, self.answers = found

    def read(self, row: Row) -> tuple[str, str]:
        """(question, context), the context with all of its characters: answers are found by their numbers."""
        question, context = text_of(row, self.question).strip(), string_of(row, self.context)
        refuse_surrogates(context, row.where)
        if len(context) > MAX_LINE_BYTES:
            raise DataError(f"the context is longer than {format_bytes(MAX_LINE_BYTES)}", where=row.where)
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise DataError(f"the {name} is empty", where=row.where)
        return question, context

    def answers_of(self, row: Row, context: str) -> tuple[list[tuple[str, int]], bool]:
        """(the answers and where they begin, none where there is none; whether a place had to be looked for and is one
        of several). Raises DataError for an answer that is not in the context, and where `is_impossible` and the
        answers do not agree."""
        found, is_guess = list[tuple[str, int]](), False
        for text, start in _written(row, self.answers, context):
            shown = one_line(text, 40)
            if not text.strip():
                what = f"an answer in '{one_line(self.answers, 40)}' is blank"
                hint = "write the answer, or an empty list [] if the question has no answer"
                raise DataError(what, where=row.where, hint=hint)
            if start is None:
                start = context.find(text)
                is_guess |= context.find(text, start + 1) >= 0
                if start < 0:
                    hint = "answers must be quoted from their context: correct the answer, or remove the row"
                    raise DataError(f"the answer '{shown}' is not in the context", where=row.where, hint=hint)
            elif start < 0 or context[start : start + len(text)] != text:
                there = one_line(context[max(start, 0) : max(start, 0) + len(text)], 40)
                stands = f"which has '{there}' there" if there else f"which has {len(context):,} characters"
                message = f"the answer '{shown}' is not at character {start:,} of the context, {stands}"
                raise DataError(message, where=row.where, hint="answer_start counts characters from 0")
            found.append((text, start))
        impossible = str(row.values.get("is_impossible")).lower()
        if impossible == str(bool(found)).lower():
            there = "there is an answer" if found else "there is no answer"
            hint = "correct one of the two, or remove is_impossible"
            raise DataError(f"is_impossible is {impossible}, but {there}", where=row.where, hint=hint)
        return found, is_guess


def _written(row: Row, column: str, context: str) -> Iterator[tuple[str, int | None]]:
    """Answers as they are written: `{"text": [...], "answer_start": [...]}`, DROP's `{"spans": [...]}`, TriviaQA's
    `{"value": ..., "aliases": [...]}`, a list of objects or of texts, a text, each as JSON or as Python prints it; a
    place that is not given is None. Raises DataError for other values."""
    value = value_of(row, column)
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") and (read := written_value(value)) is not None:
        value = read
    if isinstance(value, Mapping) and isinstance(value.get("value"), str):
        names = [value["value"], *(one for one in value.get("aliases") or () if isinstance(one, str))]
        value = [next((one for one in names if one in context), names[0])]
    if isinstance(value, Mapping):
        texts, starts = value.get("text", value.get("spans")), value.get("answer_start")
        if not isinstance(texts, list):
            texts, starts = ([texts], [starts]) if texts else ([], [] if starts is None else starts)
        starts = starts if isinstance(starts, list) else [None] * len(texts)
        if len(starts) != len(texts):
            has = quantity(len(starts), "number")
            raise DataError(f"there are {len(texts)} answers, but answer_start has {has}", where=row.where)
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=False)]
    if isinstance(value, str):
        value = [{"text": value, "answer_start": row.values.get("answer_start")}] if value else []
    for one in value if isinstance(value, list) else [] if value is None else [value]:
        text, start = (one.get("text"), one.get("answer_start")) if isinstance(one, Mapping) else (one, None)
        hint = 'expected {"text": ["..."], "answer_start": [0]}, or the text of the answer'
        if not isinstance(text, str):
            what = kind_of_value(text if isinstance(one, Mapping) else one)
            raise DataError(f"the answer in '{one_line(column, 40)}' is {what}", where=row.where, hint=hint)
        yield text, _place(start, row.where, hint)


def _place(start: Any, where: str, hint: str) -> int | None:
    """As tables write a number, with a point where others are missing; None: not given. Raises DataError."""
    if start is None or start == "" or start != start:
        return None
    with suppress(ValueError):
        if not isinstance(start, bool) and isinstance(start, int | float | str) and float(start).is_integer():
            return int(float(start))
    shown = one_line(str(start), 40)
    raise DataError(f"answer_start is {kind_of_value(start)} ('{shown}'), not a whole number", where=where, hint=hint)


class _QuestionReader(TableReader):
    """Questions with their contexts, into windows."""

    classes = 2

    def __init__(self, config: Config, segments: int) -> None:
        """`segments`: how many texts of a row the model tells apart."""
        super().__init__(config, QuestionAnswering.head, QuestionAnswering.specials)
        self._columns = _Columns(config.data)
        self._segments = segments
        self._has_null = False
        self._counts: Counter[str] = Counter()
        self._named: dict[str, None] = {}

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        super().know(tokenizer, model_config)
        self._has_null = bool(model_config.get(_NULL))

    def begin(self, head: Sequence[Row]) -> None:
        columns = self._columns
        columns.begin(head)
        named = {"questions": columns.question, "contexts": columns.context, "answers": columns.answers}
        self._named[", ".join(f"{what} are in the column '{one_line(name, 40)}'" for what, name in named.items())] = (
            None
        )

    @property
    def found_columns(self) -> Mapping[str, str]:
        found = self._columns
        return dict(zip(_USUAL, (found.question, found.context, found.answers), strict=True))

    def read(self, row: Row) -> Example:
        question, context = self._columns.read(row)
        answers, is_guess = self._columns.answers_of(row, context)
        self._counts["looked for"] += is_guess
        self._counts["several"] += len({text for text, _ in answers}) > 1
        self._counts["none"] += not answers
        self._has_null |= not (answers or self.held_out or self.knows)
        return Example(f"{question}\n{context}", (question, context, answers, row.where))

    def settle(self) -> None:
        self.refuse_no_room("a question and its context", pair=True)
        if not (self.learns or self.tokenizer.is_fast):
            message = "the tokenizer cannot map its tokens to characters, so answers cannot be marked"
            hint = "choose a model with a tokenizer.json"
            raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))
        gives = self._specials.tells_pairs if self.learns else SEGMENTS in self.tokenizer.model_input_names
        segments = (SEGMENTS,) if gives and self._segments >= 2 else ()
        self.columns = (COLUMN, LABELS, *segments, _WINDOW, _OFFSETS, _TEXT, _ANSWERS)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        questions, contexts, answers, keys = zip(*(example.content for example in examples), strict=True)
        windows = _windows(self.tokenizer, questions, contexts, self.max_length, self.config.task.doc_stride)
        found = []
        for at, of_context in enumerate(windows):
            text, start = answers[at][0] if answers[at] else ("", -1)
            places = [
                one.places(start, start + len(text)) if answers[at] else (one.window.cls,) * 2 for one in of_context
            ]
            marked = [first != one.window.cls for (first, _), one in zip(places, of_context, strict=True)]
            is_lost = bool(answers[at]) and not any(marked)
            inexact = ""
            if any(marked):
                whole = marked.index(True)
                low, high = of_context[whole].characters(*places[whole])
                if (learned := contexts[at][low:high].strip()) != text.strip():
                    inexact = f"'{one_line(text, 40)}' is trained on as '{one_line(learned, 40)}' ({keys[at]})"
            key, true = _key(keys[at]), _packed(json.dumps([text for text, _ in answers[at]]))
            for one, labels in zip(of_context, places, strict=True):
                # The places of the answer as labels, and what scores are made of.
                low, high = (int(one.offsets[0, 0]), int(one.offsets[-1, 1])) if len(one.offsets) else (0, 0)
                columns: dict[str, Sequence[int] | NDArray[np.int32]] = {
                    COLUMN: one.ids,
                    LABELS: labels,
                    SEGMENTS: one.segments,
                    _WINDOW: [*key, *one.window[2:]],
                    _OFFSETS: (one.offsets - np.int32(low)).reshape(-1),
                    _TEXT: _packed(contexts[at][low:high]),
                    _ANSWERS: true,
                }
                columns = {name: columns[name] for name in self.columns}
                found.append(
                    Encoded(columns, 2, one.cuts_question, answer_truncated=is_lost, inexact=inexact, example=at)
                )
                is_lost, inexact = False, ""  # each is counted once for all windows
        return found

    def details(self) -> dict[str, Any]:
        return {"classes": self.classes, "names": ["start", "end"], "unanswerable": self._has_null}

    def notes(self) -> list[str]:
        counts, notes = self._counts, [*self._named]
        if counts["none"]:
            notes.append(f"{quantity(counts['none'], 'question', 'have')} no answer in the context")
        if counts["several"]:
            message = "several answers: the first is trained on, the best match counts in scores"
            notes.append(f"{quantity(counts['several'], 'question', 'have')} {message}")
        if counts["looked for"]:
            message = "more than once in the context: the first occurrence is trained on"
            notes.append(f"{quantity(counts['looked for'], 'answer', 'occur')} {message}")
        return notes


class _Inputs(_Columns):
    """(question, context) of each row."""

    def of_text(self, text: str) -> tuple[str, str]:
        """The context stands behind a tab, or else behind the first question mark."""
        question, found, context = text.partition("\t")
        if not found:
            question, found, context = text.partition("?")
            question += found
        if not question.strip() or not context.strip():
            raise DataError("there is no text to search", hint="type a question that ends with ?, then the text")
        return question.strip(), context.strip()


class _Candidates:
    """Answers to one question in all of its windows. The score of one is the sum of its two logits; that of none is
    the lowest of the windows, as in run_qa.py of transformers: a window without the answer says nothing of others."""

    def __init__(self, most_tokens: int, *, may_be_none: bool) -> None:
        self._most_tokens, self._may_be_none = most_tokens, may_be_none
        self._found: list[tuple[float, int, int, str]] = []
        self._null = float("inf")

    def add(self, window: _Window, offsets: NDArray[np.int32], text: str, best: Sequence[NDArray[Any]]) -> None:
        """`best` as `_best_of` gives it; `offsets` are characters of `text`, the start and the end of each token."""
        starts, start_scores, ends, end_scores, null = best
        self._null = min(self._null, float(null))
        lengths = ends[None, :] - starts[:, None] + 1
        scores = start_scores[:, None] + end_scores[None, :]
        scores = np.where((lengths >= 1) & (lengths <= self._most_tokens), scores, -np.inf)
        for place in np.argsort(-scores, axis=None, kind="stable")[:_BEST].tolist():
            start, end = divmod(place, scores.shape[1])
            if not np.isfinite(scores[start, end]):
                break
            low = int(offsets[2 * (starts[start] - window.first)])
            high = int(offsets[2 * (ends[end] - window.first) + 1])
            self._found.append((float(scores[start, end]), low, high, text[low:high]))

    def answer(self) -> dict[str, Any]:
        """`start` and `end` are characters of the context; None where the answer is empty."""
        best = sorted(self._found, key=lambda one: -one[0])[:_BEST]
        scores = [score for score, *_ in best] + ([self._null] if self._may_be_none or not best else [])
        chances = np.exp(np.array(scores) - max(scores))
        chances /= chances.sum()
        at = int(np.argmax(scores))
        if at == len(best):
            return {"answer": "", "start": None, "end": None, "probability": round(float(chances[at]), 6)}
        _, low, _, text = best[at]
        low += len(text) - len(text.lstrip())
        text = text.strip()
        return {"answer": text, "start": low, "end": low + len(text), "probability": round(float(chances[at]), 6)}


def _best(logits: tuple[Tensor, Tensor], window_BW: Tensor) -> tuple[Tensor, ...]:
    """(places int64 [B, K], their logits, of the first token and then of the last one; the score of no answer [B]):
    K the likeliest within the context. Nothing here waits for the device."""
    import torch

    start_BT, end_BT = logits
    places = torch.arange(start_BT.shape[1], device=start_BT.device)
    outside_BT = (places < window_BW[:, 4:5]) | (places >= window_BW[:, 5:6])
    found: list[Tensor] = []
    for logits_BT in (start_BT, end_BT):
        best = logits_BT.masked_fill(outside_BT, float("-inf")).topk(min(_BEST, logits_BT.shape[1]), dim=1)
        found += [best.indices, best.values]
    null = (start_BT.gather(1, window_BW[:, 6:7]) + end_BT.gather(1, window_BW[:, 6:7])).squeeze(1)
    return (*found, null)


def _best_of(
    model: Any, tokenizer: Any, windows: Sequence[TokenRow], rows_at_a_time: int
) -> Iterator[Sequence[NDArray[Any]]]:
    """`_best` of each window, so many in a forward pass."""
    import torch

    from tui_trainer.losses.micro_batch import micro_batch

    loss, pad_id = SpanLoss(model), row_padding_id(model, pad_token_id(tokenizer))
    for start in range(0, len(windows), rows_at_a_time):
        part = [replace(row, labels=np.zeros(2, np.int32)) for row in windows[start : start + rows_at_a_time]]
        batch = micro_batch(_collate(part, pad_id)).to(model.device)
        with torch.no_grad():
            found = [one.cpu().numpy() for one in _best(loss.logits(batch), batch.inputs[_WINDOW])]
        yield from (tuple(one[at] for one in found) for at in range(len(part)))


class _SpanScorer:
    """The likeliest places of each window stay where they were computed until the evaluation is over.

    Where only some windows are evaluated, questions count of which all windows were; where none is whole, all that were
    met count, by the windows that were.
    """

    def __init__(self, loss: SpanLoss, rows: Rows, *, most_tokens: int, may_be_none: bool) -> None:
        self._loss, self._rows, self._most_tokens, self._may_be_none = loss, rows, most_tokens, may_be_none
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Tensor:
        logits, window_BW = self._loss.logits(batch), batch.inputs[_WINDOW]
        self.seen.append((window_BW, *_best(logits, window_BW)))
        return self._loss.of_logits(logits, batch.labels)

    def scores(self) -> Scores:
        numbers = self._rows.values(_WINDOW).reshape(-1, 7)[:, :3].tolist()
        row_of = {tuple(one): at for at, one in enumerate(numbers)}
        found: dict[tuple[int, int], _Candidates] = {}
        truth: dict[tuple[int, int], list[str]] = {}
        left: dict[tuple[int, int], int] = {}
        for batch in self.seen:
            for one, *best in zip(*(tensor.cpu().numpy() for tensor in batch), strict=True):
                window = _Window(*one.tolist())
                row = self._rows.example(row_of[window[:3]])
                if window.key not in found:
                    found[window.key] = _Candidates(self._most_tokens, may_be_none=self._may_be_none)
                    truth[window.key] = json.loads(_unpacked(row.more[_ANSWERS]))
                    left[window.key] = window.windows
                left[window.key] -= 1
                found[window.key].add(window, row.more[_OFFSETS], _unpacked(row.more[_TEXT]), best)
        whole = [key for key in found if left[key] <= 0] or list(found)
        pairs = [(str(found[key].answer()["answer"]), truth[key]) for key in whole]
        parts = {
            "with an answer": [pair for pair in pairs if pair[1]],
            "without one": [pair for pair in pairs if not pair[1]],
        }
        return Scores(
            values=mean_scores(pairs),
            table_title="questions",
            table_columns=(*METRICS, "questions"),
            table_rows={what: [*mean_scores(some).values(), len(some)] for what, some in parts.items() if some},
        )


def _collate(rows: Sequence[TokenRow], pad_id: int, *, width: int = 0) -> Batch:
    """Labels int64 [B, 2]: the first and the last token of the answer. Beside the model's arguments each row has the
    numbers of its window, int64 [B, 7], which go no further than the loss."""
    own = [replace(row, more={SEGMENTS: row.more[SEGMENTS]} if SEGMENTS in row.more else {}) for row in rows]
    labels = np.stack([row.labels for row in rows if row.labels is not None]).astype(np.int64)
    batch = collate_whole(own, pad_id, labels, width=width)
    windows = np.stack([row.more[_WINDOW] for row in rows]).astype(np.int64)
    return replace(batch, more={**batch.more, _WINDOW: windows})


def _key(where: str) -> tuple[int, int]:
    """Two int32 that name a row."""
    import xxhash

    low, high = np.frombuffer(xxhash.xxh3_64_digest(where.encode()), dtype=np.int32).tolist()
    return low, high


def _packed(text: str) -> NDArray[np.int32]:
    """UTF-8, four bytes in a number, behind the count of the bytes: rows on disk are int32."""
    content = text.encode()
    filled = content + b"\0" * (-len(content) % 4)
    return np.concatenate([np.array([len(content)], dtype=np.int32), np.frombuffer(filled, dtype=np.int32)])


def _unpacked(numbers: NDArray[np.int32]) -> str:
    return numbers[1:].tobytes()[: int(numbers[0])].decode()


def _question_in(tokenizer: Any, row: TokenRow) -> str:
    """What stands before the context."""
    return str(tokenizer.decode(row.tokens[: _window_of(row).first].tolist(), skip_special_tokens=True)).strip()


def _words(answer: str) -> str:
    return answer or "(no answer)"


TASK = QuestionAnswering()
