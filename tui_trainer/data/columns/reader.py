"""How a task reads rows or documents: what it takes from each, and the tokens it makes of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.row import LateColumns, Row, columns_of, refuse_marks
from tui_trainer.data.columns.text_columns import LOOKED_ROWS
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line


@dataclass(frozen=True, slots=True)
class Example:
    """One row, checked. `text` is all that is learnt from, by which repeats are found; `stratum` its class, if any."""

    text: str
    content: Any
    stratum: str = ""


class ReadInOrder(Exception):  # no mistake: a way of reading that is not open
    """Rows cannot be read by several processes at once: what one means depends on those before it."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example as the model gets it: numbers for each of the reader's columns, of which `labels` count as labels;
    with none it is left out. `truncated`: something did not fit into max_length. `marked`: the text spells a special
    token that begins or ends it, and has it once. `inexact`: what of it its tokens cannot represent exactly, as part of
    a message; empty where they can. `needs`: of one without labels, the tokens up to its first one; 0 where it has none
    at all. `labels_beyond`: labels of it that did not fit into max_length.

    `example`: which of the examples that were encoded together it is a window of; None: the one at its own place."""

    columns: Mapping[str, Sequence[int] | NDArray[np.int32]]
    labels: int
    truncated: bool = False
    answer_truncated: bool = False
    marked: bool = False
    inexact: str = ""
    needs: int = 0
    labels_beyond: int = 0
    example: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownToken:
    """What a tokenizer gives for text that it does not know, and its special tokens, which stand for no text."""

    number: int
    special: tuple[int, ...]


def unknown_token_of(tokenizer: Any) -> UnknownToken | None:
    """Return that of a tokenizer of transformers; None where it has none, or also begins or ends texts with it."""
    number, backend = tokenizer.unk_token_id, getattr(tokenizer, "backend_tokenizer", None)
    if number is None and backend is not None:
        number = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
    ends = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]
    if number is None or number in ends:
        return None
    return UnknownToken(number, tuple({*tokenizer.all_special_ids} - {number}))


class Reader(Protocol):
    """How a task reads its data. It is made anew for each preparation, and may keep what it learns about the data.
    Of documents nothing is begun or read: each is an example of one text."""

    columns: tuple[str, ...]
    """Of the rows on disk: "input_ids", mostly "labels", and other arguments of the model."""

    held_out: bool = False
    """Whether the rows that are read now are only measured on, from a source of their own. Set by the preparation."""

    learns: bool
    """Whether it makes a tokenizer from the training texts."""

    labels_are_tokens: bool = False
    """Whether the column of labels has tokens that the model is to write."""

    reads_apart: bool = False
    """Whether copies of it may read the rows in other processes: `noted` and `note` carry home what they note."""

    def know(self, tokenizer: Any, model_config: Mapping[str, Any]) -> None:
        """What a trained model has learnt: its tokens and labels are taken as they are, whatever the data holds."""
        raise TypeError(f"{type(self).__name__} learns from the data alone")

    def begin(self, head: Sequence[Row]) -> None:
        """Choose the columns, by the first rows. Raises DataError when they cannot be told."""
        return

    @property
    def found_columns(self) -> Mapping[str, str]:
        """What `begin` has found: the column that each setting of [data] stands for that names one."""
        return {}

    late_columns: tuple[str, ...] = ()
    """Settings of columns that may come late: rows before are read without them."""

    def see_late(self, row: Row, head: Sequence[Row]) -> None:
        """Look at a row with columns that no row before had, and at the first rows. Raises DataError where other
        columns would be read with it, and ReadInOrder without the first rows."""
        if not head:
            raise ReadInOrder
        before = self.found_columns
        try:
            self.begin([*head, row])
            for setting, column in self.found_columns.items():
                if column != before[setting] and setting not in self.late_columns:
                    shown = one_line(column, 40)
                    hint = f"add this column to the first row as well, or set data.{setting} to the column to read"
                    raise DataError(f"from this row on, data.{setting} would be '{shown}'", where=row.where, hint=hint)
        except DataError:
            self.begin(head)
            raise

    def read(self, row: Row) -> Example:
        """One row. Raises DataError, with its place, for one that cannot be used."""
        raise TypeError(f"{type(self).__name__} reads documents, not rows")

    def noted(self) -> Any:
        """What `read` noted since `begin`, or since it was asked last. Raises ReadInOrder where `read` has changed how
        it reads."""
        return None

    def note(self, noted: Any) -> None:
        """Add what a copy noted of the next rows."""
        return

    def load(self) -> None:
        """Load what encoding needs and the data does not give, such as a tokenizer: copies have it too, then."""
        return

    def settle(self) -> None:
        """All rows were read once; the training side decides what classes there are. Raises DataError."""
        return

    def learn(self, texts: Iterator[str], path: Path) -> None:
        """Make the tokenizer, and write it as tokenizer.json."""

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """A batch of examples into tokens: a row each, or some windows of each, in order."""

    @property
    def unknown_token(self) -> UnknownToken | None:
        """What stands in its rows for text that the tokenizer does not know; None where that cannot be."""
        return None

    def tokens_of(self, texts: Sequence[str]) -> Sequence[Sequence[int] | NDArray[np.int32]]:
        """Tokens of each text alone, as its tokenizer gives them."""
        raise TypeError(f"{type(self).__name__} has no unknown token")

    def vocabulary(self) -> int:
        """Number of tokens of the tokenizer; 0 where only the data can tell, and was not read."""

    def details(self) -> dict[str, Any]:
        """What was learnt about the data, as JSON has it."""
        return {}

    def notes(self) -> list[str]:
        """The same in words, for the user."""
        return []


class ReadsRows(Protocol):
    """What of a reader `read_rows` asks."""

    def begin(self, head: Sequence[Row]) -> None: ...

    def read(self, row: Row) -> Any: ...


def read_rows(reader: ReadsRows, rows: Iterator[Row], problems: ProblemList) -> Iterator[tuple[Row, Any]]:
    """Each row that can be used, and what the reader makes of it once it was shown the first ones. Mistakes go into
    `problems`.
    """
    head = list(islice(rows, LOOKED_ROWS))
    if head:
        reader.begin(head)
    yield from read_more(reader, chain(head, rows), columns_of(head), problems, head)


def read_more(
    reader: ReadsRows, rows: Iterator[Row], known: Iterable[str], problems: ProblemList, head: Sequence[Row] = ()
) -> Iterator[tuple[Row, Any]]:
    """The same once it was shown the first rows, which have the columns `known`."""
    see_late = getattr(reader, "see_late", lambda row, head: reader.begin([*head, row]))
    late = LateColumns(known, lambda row: see_late(row, head))
    for row in rows:
        try:
            late.see(row)
            found = reader.read(row)
            if isinstance(found, Example):
                refuse_marks(found.text, row.where)
            yield row, found
        except DataError as error:
            problems.add(error, row.values)
