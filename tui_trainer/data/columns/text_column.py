"""Which column of a table holds the text.

A column that is named is taken as it is. "auto" takes, from the first rows of a file: the column `text`; the column
that an earlier file of the same source gave; one of the usual names; the column whose strings are by far the longest,
the only one in most tables. Anything else is a question for the user, not a guess: a name, a class or an address is no
text, and beside lists and objects the text may be in those. Rows of another kind (`row_kinds.py`) have none.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    listed,
    missing_column,
    string_of,
    usual_columns,
)
from tui_trainer.data.columns.row_kinds import kind_of_rows, refuse_unlearnt
from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates, with_plain_line_ends
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

USUAL_NAMES = ("text", "content", "document", "body", "sentence", "passage", "article", "paragraph", "story", "review")
LOOKED_ROWS = 100
LOOKED_CHARACTERS = 4 * MIB
FAR_LONGER = 4  # times the mean length of the next column
_FIRST_WITHOUT_BLANKS = "\u0e00"  # Thai and what follows: Chinese, Japanese
NUMBER = re.compile(r"\s*[-+]?[\d.,]+([eE][-+]?\d+)?\s*")

Strings = Mapping[str, Sequence[str]]  # of each column, the strings of the first rows; none where it holds no strings


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

    def choose(self, head: Sequence[Row], without: Collection[str] = ()) -> str:
        """The column, by the first rows of a file; none of `without`. Raises DataError when there is none."""
        label, strings = file_of(head), strings_of(head)
        for name in without:
            strings.pop(name, None)
        names = frozenset(strings)
        if names not in self._chosen:
            self._chosen[names] = self._find(label, strings, head)
        self._files.setdefault(names, []).append(label)
        return self._chosen[names]

    def notes(self) -> tuple[str, ...]:
        told = [
            _sentence(self._chosen[names], sorted(names - {self._chosen[names]}), files)
            for names, files in self._files.items()
            if names != {"text"}
        ]
        return (*told, *self._remarks)

    def _find(self, label: str, strings: Strings, head: Sequence[Row]) -> str:
        if self._wanted != AUTO:
            if self._wanted in strings:
                return self._wanted
            raise missing_column(self._wanted, label, strings)
        refuse_unlearnt(head)
        if "text" in strings:
            return "text"
        if other := kind_of_rows(head):
            raise other.refused(label)
        texts = _columns_of_text(strings)
        for name in self._chosen.values():
            if name in texts:
                return name
        if name := next(iter(usual_columns(USUAL_NAMES, list(texts))), ""):
            return name
        structured = _structured_of(head, strings)
        name = _by_length(texts | structured)
        # A number, a date or a single word is the name of something.
        if name in texts and (len(strings) == 1 or _holds_sentences(strings[name])):
            return name
        if not texts:
            raise DataError("no column holds text", where=label, hint=f"columns found: {listed(strings)}")
        what = "several columns could hold the text" if len(texts | structured) > 1 else "no column is clearly the text"
        hint = f"name one of them in data.text_column: {listed([*texts, *structured])}"
        raise DataError(what, where=label, hint=hint)


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
    return {
        name: [value for row in rows if isinstance(value := row.values.get(name), str)] for name in columns_of(rows)
    }


def text_of(row: Row, column: str) -> str:
    """The text of one row. Raises DataError for one without, and for what is no string."""
    return checked_text(string_of(row, column), row.where)


def checked_text(text: str, where: str) -> str:
    """`text` with plain line ends, if it is one that can be learnt from."""
    if len(text) > MAX_LINE_BYTES:
        limit = format_bytes(MAX_LINE_BYTES)
        raise DataError(f"the text is longer than {limit}", where=where, hint="cut it into several rows")
    refuse_surrogates(text, where)
    return with_plain_line_ends(text)


def _columns_of_text(strings: Strings) -> dict[str, float]:
    """Mean length of the strings of each column that holds words. In a CSV numbers are strings too."""
    return {
        name: sum(map(len, values)) / len(values)
        for name, values in strings.items()
        if any(value and not NUMBER.fullmatch(value) for value in values)
    }


def _structured_of(head: Sequence[Row], strings: Strings) -> dict[str, float]:
    """Mean length of the lists and objects of each column that holds them, written out."""
    found: dict[str, float] = {}
    for name in strings:
        values = [value for row in head if isinstance(value := row.values.get(name), list | tuple | Mapping) and value]
        if values:
            found[name] = sum(len(str(value)) for value in values) / len(values)
    return found


def _holds_sentences(values: Sequence[str]) -> bool:
    """Whether most of them have white space within, where their writing has any."""
    known = [value.strip() for value in values if value.strip()]
    return 2 * sum(len(value.split()) > 1 or max(value) >= _FIRST_WITHOUT_BLANKS for value in known) > len(known)


def _by_length(texts: Mapping[str, float]) -> str:
    """The only one, or the one that is far longer than the next."""
    ordered = sorted(texts, key=lambda name: -texts[name])
    if len(ordered) > 1 and texts[ordered[0]] < FAR_LONGER * texts[ordered[1]]:
        return ""
    return ordered[0] if ordered else ""


def _sentence(column: str, others: Sequence[str], files: Sequence[str]) -> str:
    place = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1:,} more of its kind"
    also = f" (also there: {listed(others)})" if others else ""
    return f"the text is in the column '{one_line(column, 40)}' of {place}{also}"
