"""Which column of a table holds the text.

A column that is named is taken as it is. "auto" takes, from the first rows of a file: the column `text`; the column
that an earlier file of the same source gave; one of the usual names; the only column of strings; the column whose
strings are by far the longest. Anything else is a question for the user, not a guess.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates, with_plain_line_ends
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

AUTO = "auto"
USUAL_NAMES = ("text", "content", "document", "body", "sentence", "passage", "article", "paragraph", "story", "review")
LOOKED_ROWS = 100
LOOKED_CHARACTERS = 4 * MIB
FAR_LONGER = 4  # times the mean length of the next column
SHOWN_COLUMNS = 12
NUMBER = re.compile(r"\s*[-+]?[\d.,]+([eE][-+]?\d+)?\s*")
JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}

Strings = Mapping[str, Sequence[str]]  # of each column, the strings of the first rows; none where it holds no strings


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, and where it stands: "train.jsonl, line 12"."""

    where: str
    values: Mapping[str, object]


class ColumnChoices:
    """What was chosen for each set of columns, so that the shards of one data set are read alike.

    `notes()` says it in words; `remark` adds what else was found out while reading.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._chosen: dict[frozenset[str], str] = {}
        self._files: dict[frozenset[str], list[str]] = {}
        self._remarks: list[str] = []

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns that were chosen so far, each once."""
        return tuple(dict.fromkeys(self._chosen.values()))

    def remark(self, text: str) -> None:
        self._remarks.append(text)

    def choose(self, label: str, strings: Strings) -> str:
        """The column for the file `label`. Raises DataError, once for the file, when there is none."""
        names = frozenset(strings)
        if names not in self._chosen:
            self._chosen[names] = self._find(label, strings)
        self._files.setdefault(names, []).append(label)
        return self._chosen[names]

    def notes(self) -> tuple[str, ...]:
        if self._wanted != AUTO:
            return tuple(self._remarks)
        told = [
            _sentence(self._chosen[names], sorted(names - {self._chosen[names]}), files)
            for names, files in self._files.items()
            if names != {"text"}
        ]
        return (*told, *self._remarks)

    def _find(self, label: str, strings: Strings) -> str:
        if self._wanted != AUTO:
            if self._wanted in strings:
                return self._wanted
            raise missing_column(self._wanted, label, strings)
        if "text" in strings:
            return "text"
        texts = _columns_of_text(strings)
        for name in self._chosen.values():
            if name in texts:
                return name
        if name := _by_usual_name(texts) or _by_length(texts):
            return name
        raise _unclear(label, strings, texts)


def head_of(rows: Iterator[Row]) -> tuple[list[Row], DataError | None]:
    """The first rows: as many as are looked at, and not more than fits into memory; and the mistake that ended them."""
    head: list[Row] = []
    characters = 0
    try:
        for row in rows:
            head.append(row)
            characters += sum(len(value) for value in row.values.values() if isinstance(value, str))
            if len(head) == LOOKED_ROWS or characters >= LOOKED_CHARACTERS:
                break
    except DataError as error:
        return head, error
    return head, None


def strings_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The strings of each column, in the order in which the columns were met."""
    names = dict.fromkeys(chain.from_iterable(row.values for row in rows))
    return {name: [value for row in rows if isinstance(value := row.values.get(name), str)] for name in names}


def text_of(row: Row, column: str) -> str:
    """The text of one row. Raises DataError for one without, and for what is no string."""
    shown = one_line(column, 40)
    if column not in row.values:
        found = ", ".join(_shown(row.values)) or "none"
        raise DataError(f"the row has no column '{shown}'", where=row.where, hint=f"columns found: {found}")
    value = row.values[column]
    if not isinstance(value, str):
        found = JSON_NAMES.get(type(value), "a number")
        raise DataError(f"the column '{shown}' is {found}, not a string", where=row.where)
    return checked_text(value, row.where)


def checked_text(text: str, where: str) -> str:
    """`text` with plain line ends, if it is one that can be learnt from."""
    if len(text) > MAX_LINE_BYTES:
        limit = format_bytes(MAX_LINE_BYTES)
        raise DataError(f"the text is longer than {limit}", where=where, hint="cut it into several rows")
    refuse_surrogates(text, where)
    return with_plain_line_ends(text)


def missing_column(wanted: str, label: str, names: Iterable[str], *, key: str = "data.text_column") -> DataError:
    """There is no such column in the file `label`, and the nearest one; `key` is the setting that names it."""
    listed = list(names)
    near = difflib.get_close_matches(wanted, listed, n=1, cutoff=0.5)
    guess = f"did you mean '{one_line(near[0], 40)}'? " if near else ""
    found = ", ".join(_shown(listed)) or "none"
    return DataError(
        f"there is no column '{one_line(wanted, 40)}'",
        where=label,
        hint=f"{guess}columns found: {found}; name the right one in {key}",
    )


def _columns_of_text(strings: Strings) -> dict[str, float]:
    """Mean length of the strings of each column that holds words. In a CSV numbers are strings too."""
    return {
        name: sum(map(len, values)) / len(values)
        for name, values in strings.items()
        if any(value and not NUMBER.fullmatch(value) for value in values)
    }


def _by_usual_name(texts: Mapping[str, float]) -> str:
    return next((name for usual in USUAL_NAMES for name in texts if name.strip().lower() == usual), "")


def _by_length(texts: Mapping[str, float]) -> str:
    """The only one, or the one that is far longer than the next."""
    ordered = sorted(texts, key=lambda name: -texts[name])
    if len(ordered) > 1 and texts[ordered[0]] < FAR_LONGER * texts[ordered[1]]:
        return ""
    return ordered[0] if ordered else ""


def _unclear(label: str, strings: Strings, texts: Mapping[str, float]) -> DataError:
    if not texts:
        found = ", ".join(_shown(strings)) or "none"
        return DataError("no column holds text", where=label, hint=f"columns found: {found}")
    return DataError(
        "several columns could hold the text",
        where=label,
        hint=f"name one of them in data.text_column: {', '.join(_shown(texts))}",
    )


def _sentence(column: str, others: Sequence[str], files: Sequence[str]) -> str:
    place = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1:,} more of its kind"
    also = f" (also there: {', '.join(_shown(others))})" if others else ""
    return f"the text is in the column '{one_line(column, 40)}' of {place}{also}"


def _shown(names: Iterable[str]) -> list[str]:
    """Safe to show; a column without a name, which an index has in some files, is said to have none."""
    listed = list(names)
    shown = [one_line(name, 30) or "(no name)" for name in listed[:SHOWN_COLUMNS]]
    return [*shown, f"{len(listed) - SHOWN_COLUMNS:,} more"] if len(listed) > SHOWN_COLUMNS else shown
