"""The interface between tasks and their data: a task implements `Reader`, and `preparing/prepare.py` calls it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.row import LateColumns, Row, columns_of, refuse_placeholders
from tui_trainer.data.columns.text_columns import FIRST_ROWS
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line


@dataclass(frozen=True, slots=True)
class Example:
    """One checked row. `text` is all that the model learns from, and identifies duplicates. `stratum` is its class."""

    text: str
    content: Any
    stratum: str = ""


class ReadInOrder(Exception):  # not an error, so its name does not end in Error
    """Signal that one process must read the rows: the meaning of a row depends on the rows before it."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded example, or one window of it: arrays for the columns of the reader.

    `label_count` counts the positions with a label; an example without any is left out. `truncated`: the example was
    longer than max_length, and `labels_beyond` labels were cut off. `spells_special_tokens`: its text already spells
    the special token that begins or ends a row, which is not added again. `inexact_reason` describes what the tokens
    cannot represent, as part of a message. `first_label_tokens` is the number of tokens up to the first label, if all
    labels were cut off, else 0. `has_equal_answers`: both answers of a pair were cut to the same tokens. `example` is
    the position of the example among those that were encoded together; None if each of them has one window."""

    columns: Mapping[str, Sequence[int] | NDArray[np.int32]]
    label_count: int
    truncated: bool = False
    answer_truncated: bool = False
    spells_special_tokens: bool = False
    inexact_reason: str = ""
    first_label_tokens: int = 0
    has_equal_answers: bool = False
    labels_beyond: int = 0
    example: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownToken:
    """The id that a tokenizer gives for text outside its vocabulary, and the ids of its special tokens."""

    token_id: int
    special: tuple[int, ...]


def unknown_token_of(tokenizer: Any) -> UnknownToken | None:
    """Return the unknown token of a transformers tokenizer. None if it has none, or begins or ends texts with it."""
    token_id, backend = tokenizer.unk_token_id, getattr(tokenizer, "backend_tokenizer", None)
    if token_id is None and backend is not None:
        token_id = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
    boundary_tokens = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]
    if token_id is None or token_id in boundary_tokens:
        return None
    return UnknownToken(token_id, tuple({*tokenizer.all_special_ids} - {token_id}))


class Reader(Protocol):
    """How a task reads its data. Each preparation creates a new reader, which may store what it learns about the data.
    A document is an example with one text: `begin` and `read` are only called for rows."""

    columns: tuple[str, ...]
    """Columns that are written for each row: "input_ids", usually "labels", and other arguments of the model."""

    is_held_out: bool = False
    """Whether the current rows come from a separate source for evaluation. The preparation sets it."""

    trains_tokenizer: bool
    """Whether the reader trains a tokenizer on the training texts."""

    labels_are_tokens: bool = False
    """Whether the labels are the tokens that the model should write."""

    reads_in_processes: bool = False
    """Whether copies of the reader may read rows in other processes (see `take_observations`)."""

    def set_tokenizer(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        """Use the tokens and labels of a trained model, whatever the data contains."""
        raise TypeError(f"{type(self).__name__} cannot use an existing tokenizer")

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns from the first rows. Raises DataError if they are ambiguous."""
        return

    @property
    def found_columns(self) -> Mapping[str, str]:
        """The column that `begin` chose for each setting of a column, such as {"text_column": "body"}."""
        return {}

    late_columns: tuple[str, ...] = ()
    """Names of settings whose columns may first appear in a later row: rows before it are read without them."""

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        """Check a row with columns that the first rows (`head`) lack. Raises DataError if `begin` would choose other
        columns with this row, and ReadInOrder without `head`."""
        if not head:
            raise ReadInOrder
        first_choice = self.found_columns
        try:
            self.begin([*head, row])
            for setting, column in self.found_columns.items():
                if column != first_choice[setting] and setting not in self.late_columns:
                    shown_column = one_line(column, 40)
                    hint = f"add this column to the first row as well, or set data.{setting} to the column to read"
                    problem = f"from this row on, '{shown_column}' would be data.{setting}"
                    raise DataError(problem, where=row.where, hint=hint)
        except DataError:
            self.begin(head)
            raise

    def read(self, row: Row) -> Example:
        """Read one row. Raises DataError, with the position of the row, if it cannot be used."""
        raise TypeError(f"{type(self).__name__} reads documents, not rows")

    def take_observations(self) -> Any:
        """Return and forget what `read` observed, for `add_observations` of the reader in the first process. Raises
        ReadInOrder if earlier rows change how later ones are read."""
        return None

    def add_observations(self, observations: Any) -> None:
        """Add what a copy of the reader observed in the next rows, in another process."""
        return

    def load(self) -> None:
        """Load what encoding needs besides the data, such as a tokenizer, so that copies of the reader have it too."""
        return

    def finish_reading(self) -> None:
        """Finish reading after the last row. The training split decides which classes exist. Raises DataError."""
        return

    def learn(self, texts: Iterator[str], path: Path) -> None:
        """Train the tokenizer on these texts, and write it to `path`, a tokenizer.json."""

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Tokenize some examples, in order: each becomes one row or several windows."""

    @property
    def unknown_token(self) -> UnknownToken | None:
        """The token that stands for text outside the vocabulary. None if the vocabulary covers every text."""
        return None

    def tokenize_texts(self, texts: Sequence[str]) -> Sequence[Sequence[int] | NDArray[np.int32]]:
        """Tokenize each text alone, without the special tokens that begin or end a row."""
        raise TypeError(f"{type(self).__name__} has no unknown token")

    def vocabulary(self) -> int:
        """Return the number of tokens in the vocabulary; 0 if it depends on data that was not read yet."""

    def details(self) -> dict[str, Any]:
        """Return what the reader learned about the data, as JSON values."""
        return {}

    def notes(self) -> list[str]:
        """Return what the reader learned about the data, as sentences for the user."""
        return []


class ReadsRows(Protocol):
    """The interface that `read_rows` needs, which is a part of `Reader`."""

    def begin(self, head: Sequence[Row]) -> None: ...

    def read(self, row: Row) -> Any: ...


def read_rows(reader: ReadsRows, rows: Iterator[Row], problems: ProblemList) -> Iterator[tuple[Row, Any]]:
    """Choose the columns with `begin`, and yield each usable row with what `read` returns for it. Collect errors."""
    head = list(islice(rows, FIRST_ROWS))
    if head:
        reader.begin(head)
    yield from read_more(reader, chain(head, rows), columns_of(head), problems, head)


def read_more(
    reader: ReadsRows, rows: Iterator[Row], columns: Iterable[str], problems: ProblemList, head: Sequence[Row] = ()
) -> Iterator[tuple[Row, Any]]:
    """Yield what `read_rows` does, for rows after the first ones (`head`), which have these `columns`."""
    check_late_row = getattr(reader, "check_late_row", lambda row, head: reader.begin([*head, row]))
    late_columns = LateColumns(columns, lambda row: check_late_row(row, head))
    for row in rows:
        try:
            late_columns.check(row)
            content = reader.read(row)
            if isinstance(content, Example):
                refuse_placeholders(content.text, row.where)
            yield row, content
        except DataError as error:
            problems.add(error, row.values)
