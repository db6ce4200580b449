"""KTO: a causal model learns from answers that are marked as desirable or undesirable, each alone.

A row is a prompt with one marked answer (`data/columns/marked_answers.py`). It becomes two documents, which share a row
of the batch: the prompt with its own answer, and the prompt with the answer to another prompt. From the latter, the
loss estimates its KL term, the distance of the model from the reference. The other answer is chosen while the rows are
read. It depends on their order in the data, and not on batches, processes or held-out rows.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.conversations import Message
from tui_trainer.data.columns.marked_answers import MarkedAnswer, MarkedAnswerColumns, find_marked_answers
from tui_trainer.data.columns.reader import Encoded, Example
from tui_trainer.data.columns.row import Row
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.data.preparing.token_rows import DOCUMENT_LENGTHS, INPUT_IDS, LABELS, ROW_LABELS, Rows
from tui_trainer.errors import DataError
from tui_trainer.methods.preference_losses import ACCURACY, KTO, MARGIN, PreferenceLossType
from tui_trainer.tasks.chat import ChatReader
from tui_trainer.tasks.contract import Baselines, Objective, Scorer, Scores
from tui_trainer.tasks.parts.learns_from_data import TableReader
from tui_trainer.tasks.preference import (
    Document,
    PreferenceTask,
    columns_of_documents,
    count_labels,
    cut_prompts,
    with_completions,
)
from tui_trainer.units import format_percent

if TYPE_CHECKING:
    from torch import Tensor

    from tui_trainer.data.preparing.cache import PreparedData
    from tui_trainer.losses.kto import KtoLoss
    from tui_trainer.losses.micro_batch import MicroBatch

DESIRABLE, UNDESIRABLE = "desirable", "undesirable"
_ANSWERS, _HELD_OUT = "answers", "held-out answers"
# Answers of earlier rows that no other row has got yet.
_MOST_UNUSED = 100


class KtoTask(PreferenceTask):
    """Task of training on marked answers. `tasks/parts/task.py` documents the methods."""

    name = "kto"
    title = "Marked answers"
    loss_unit = ""
    loss_settings = ("beta", "desirable_weight", "undesirable_weight", "reference")
    used_settings = ("chat_template", *loss_settings)
    used_column_settings = (*PreferenceTask.used_column_settings, "label_column")

    def loss_type(self, config: Config) -> PreferenceLossType:
        return KTO

    def reader(self, config: Config) -> TableReader:
        return KtoReader(with_completions(config))

    def reader_of_inputs(self, config: Config) -> TableReader:
        return KtoReader(with_completions(config), renders=False)

    def objective(self, config: Config, data: PreparedData, model: Any, *, chunk_tokens: int) -> Objective:
        from tui_trainer.losses.kto import KtoLoss

        weights = config.task.desirable_weight, config.task.undesirable_weight
        return KtoLoss(model, beta=self.beta(config), weights=weights, chunk_tokens=chunk_tokens)

    def choice_count(self, config: Config, data: PreparedData) -> int:
        return 0

    def scorer(self, config: Config, data: PreparedData, objective: Any) -> Scorer | None:
        return _AnswerScorer(objective)

    def baselines_on(self, config: Config, data: PreparedData, held_out: Rows, eval_rows: Sequence[int]) -> Baselines:
        """Return the accuracy of preferring the longer answer."""
        rows = [held_out.example(int(index)) for index in eval_rows]
        lengths = np.array([np.count_nonzero(row.documents[0].labels != IGNORE) for row in rows])
        are_desirable = np.array([bool(row.row_label) for row in rows])
        accuracy = pair_accuracy(lengths, are_desirable)
        scores = {} if accuracy is None else {"accuracy of the longer answer": accuracy}
        return Baselines(losses={}, eval_tokens=len(rows), scores=scores)


class KtoReader(ChatReader):
    """Reader of marked answers, which renders the prompt of a row with its own answer and with another one."""

    columns = (INPUT_IDS, LABELS, DOCUMENT_LENGTHS, ROW_LABELS)
    # The other answer of a row comes from the rows before it.
    reads_in_processes = False

    def __init__(self, config: Config, *, renders: bool = True) -> None:
        super().__init__(config, renders=renders)
        self._marked_tables: list[MarkedAnswerColumns] = []
        """Columns of each table that was begun."""
        self._partners = _Partners([])
        self._seen: dict[int, tuple[bool, str]] = {}
        """Mark and position of the first row with a conversation, by the hash of its text."""
        self._counts_of_marks: dict[str, Counter[bool]] = {_ANSWERS: Counter(), _HELD_OUT: Counter()}
        """Numbers of answers to split or train on, and of those in a file of held-out rows, by mark."""

    def begin(self, head: Sequence[Row]) -> None:
        data = self.config.data
        columns = find_marked_answers(
            head, data.text_column, data.target_column, data.text_pair_column, data.label_column
        )
        self._marked_tables.append(columns)
        self._columns = columns.conversations
        first_answers = list[MarkedAnswer]()
        for row in head:
            with suppress(DataError):  # reported when the row itself is read
                first_answers.append(columns.read(row))
        self._partners = _Partners(first_answers)

    @property
    def found_columns(self) -> Mapping[str, str]:
        return {**super().found_columns, "label_column": self._marked_tables[-1].mark}

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        self._marked_tables[-1] = self._marked_tables[-1].with_columns_of(row)

    def read(self, row: Row) -> Example:
        marked = self._marked_tables[-1].read(row)
        conversation = marked.conversation
        refuse_surrogates(conversation.text, row.where)
        is_desirable, earlier = self._seen.setdefault(hash(conversation.text), (marked.is_desirable, row.where))
        if is_desirable != marked.is_desirable:
            marks = (UNDESIRABLE, DESIRABLE)
            message = f"the answer is {marks[marked.is_desirable]}, but {marks[is_desirable]} in {earlier}"
            raise DataError(message, where=row.where, hint="remove one of the two rows")
        answer = self._partners.other_answer(marked, row.where)
        conversations = conversation, replace(conversation, messages=(*marked.prompt.messages, answer))
        self._counts_of_marks[_HELD_OUT if self.is_held_out else _ANSWERS][marked.is_desirable] += 1
        stratum = DESIRABLE if marked.is_desirable else UNDESIRABLE
        if not self.renders:
            return Example("\n".join(part.text for part in conversations), marked, stratum)
        rendered = [self.rendered(part, row.where) for part in conversations]
        text = (conversation if self.trains_tokenizer else rendered[0]).text
        return Example(text, (*rendered, marked.is_desirable), stratum)

    def finish_reading(self) -> None:
        """Raise DataError if all answers to train on, or all in a file of held-out rows, have the same mark."""
        self._seen.clear()
        for answers, counts in self._counts_of_marks.items():
            if len(counts) == 1 and not self.has_trained_model:
                mark = DESIRABLE if counts[True] else UNDESIRABLE
                hint = "add rows with the other mark"
                if counts[True] and answers == _ANSWERS:
                    hint += ', or set task.type = "chat" and remove the column of marks'
                message = f"all {answers} are {mark}, but the task compares desirable and undesirable ones"
                raise DataError(message, hint=hint)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        own, other = (self.encode_conversations([example.content[side] for example in examples]) for side in (0, 1))
        marks = [example.content[2] for example in examples]
        return [self._encoded(*documents) for documents in zip(own, other, marks, strict=True)]

    def _encoded(self, own: Document, other: Document, is_desirable: bool) -> Encoded:
        """Return both documents as one row, each cut to `max_length` tokens."""
        [cut_own], removed = cut_prompts([own], self.max_length)
        [cut_other], _ = cut_prompts([other], self.max_length)
        excess = len(own[0]) - self.max_length
        return Encoded(
            {**columns_of_documents([cut_own, cut_other]), ROW_LABELS: [int(is_desirable)]},
            count_labels(cut_own) + count_labels(cut_other),
            truncated=excess > 0,
            answer_truncated=excess > removed,
        )

    def notes(self) -> list[str]:
        notes = [*dict.fromkeys(columns.note() for columns in self._marked_tables), *super().notes()]
        counts = self._counts_of_marks[_ANSWERS]
        if counts:
            notes.append(f"{format_percent(counts[True] / counts.total())} of the answers are desirable")
            notes.append("each prompt is also read with the answer to another prompt, which estimates the KL term")
        return notes


class _Partners:
    """Chooses an answer to another prompt for each row: that of the first row before it which no row has got yet. The
    first prompt of a table gets answers of later rows. `first_answers` are those of the first rows."""

    def __init__(self, first_answers: Sequence[MarkedAnswer]) -> None:
        self._first_answers = first_answers
        self._unused_answers: deque[tuple[str, Message]] = deque(maxlen=_MOST_UNUSED)
        self._newest_answers: dict[str, Message] = {}
        """The newest answers to the newest two prompts, by prompt."""
        self._borrowed_count = 0

    def other_answer(self, marked: MarkedAnswer, where: str) -> Message:
        """Return an answer to another prompt than that of a row. Raises DataError if there is none."""
        prompt = marked.prompt.text
        answer = self._earlier_answer(prompt)
        if answer is None:
            later_answers = [first.answer for first in self._first_answers if first.prompt.text != prompt]
            if not later_answers:
                message = "no other row has another prompt, whose answer the task compares with this one"
                raise DataError(message, where=where, hint="add rows with other prompts, or shuffle the rows")
            answer = later_answers[self._borrowed_count % len(later_answers)]
            self._borrowed_count += 1
        self._unused_answers.append((prompt, marked.answer))
        others = [pair for pair in self._newest_answers.items() if pair[0] != prompt]
        self._newest_answers = {**dict(others[-1:]), prompt: marked.answer}
        return answer

    def _earlier_answer(self, prompt: str) -> Message | None:
        for number, (other_prompt, answer) in enumerate(self._unused_answers):
            if other_prompt != prompt:
                del self._unused_answers[number]
                return answer
        return next((answer for other_prompt, answer in self._newest_answers.items() if other_prompt != prompt), None)


class _AnswerScorer:
    """Scorer of the gains of all answers, which stay on the device until the evaluation is over."""

    def __init__(self, loss: KtoLoss) -> None:
        self._loss = loss
        self.seen: list[tuple[Tensor, ...]] = []

    def observe(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        answers = self._loss.answers(batch)
        self.seen.append((answers.gains, answers.are_desirable))
        return self._loss.sums(batch, answers)

    def scores(self) -> Scores:
        import torch

        from tui_trainer.losses.preference import EQUAL_NATS

        gains, are_desirable = (torch.cat(parts).cpu().numpy() for parts in zip(*self.seen, strict=True))
        accuracy = pair_accuracy(gains, are_desirable, equal=EQUAL_NATS)
        if accuracy is None:
            return Scores(values={})
        margin = self._loss.beta * (gains[are_desirable].mean() - gains[~are_desirable].mean())
        return Scores(values={ACCURACY: accuracy, MARGIN: float(margin)})


def pair_accuracy(values: NDArray[Any], are_desirable: NDArray[np.bool_], equal: float = 0.0) -> float | None:
    """Return how often a desirable answer has a higher value than an undesirable one, of all pairs of both; None if
    there are no pairs. Values that differ by up to `equal` count as half right.

    This is the area under the ROC curve (Hanley and McNeil, Radiology 143, 1982)."""
    good, bad = values[are_desirable], np.sort(values[~are_desirable])
    if not len(good) or not len(bad):
        return None
    lower, not_higher = np.searchsorted(bad, good - equal, "left"), np.searchsorted(bad, good + equal, "right")
    return float((lower + not_higher).sum() / (2 * len(good) * len(bad)))


TASK = KtoTask()
