"""Which columns of a table hold an input and the answer to it.

Columns that are named are taken as they are. "auto" takes the first pair of usual names that is there. Anything else is
a question for the user, not a guess.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    kind_of_value,
    listed,
    refuse_bad_answer,
    refuse_missing,
    usual_columns,
    value_of,
)
from tui_trainer.data.columns.text_column import ColumnChoices, checked_text, strings_of
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

TRANSLATION = "translation"


@dataclass(frozen=True, slots=True)
class _Usual:
    """Names of inputs and of the answers to them. A row may have more to read in the column `beside`."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    beside: str = ""


# Sources: the columns of xsum, cnn_dailymail, samsum, squad, alpaca and wmt on the hub.
_USUAL = (
    _Usual(("document", "article", "dialogue", "dialog", "text"), ("summary", "highlights", "title")),
    _Usual(("question",), ("answer", "answers"), "context"),
    _Usual(("instruction",), ("output", "response"), "input"),
    _Usual(("source",), ("target",)),
    _Usual(("input", "inputs"), ("output", "target", "targets")),
    _Usual(("prompt",), ("completion", "response")),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The columns of one table. `beside`: of a second text that is read with the input; empty: none."""

    source: str
    target: str
    beside: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.source, self.beside, self.target)))


class PairColumns:
    """`choose` looks at the first rows of a table, `read` takes input and answer from any of its rows."""

    def __init__(self, text_column: str, text_pair_column: str, target_column: str) -> None:
        self._text, self._beside, self._target = text_column, text_pair_column, target_column
        self._pair = Pair("", "")
        self._notes: dict[str, None] = {}

    def choose(self, head: Sequence[Row]) -> None:
        """Raises DataError, which names the nearest column, where it cannot be told."""
        label, names = self._named(head)
        self._pair = self._find(label, names, head)
        self._notes[self._told(names, label)] = None

    def choose_input(self, head: Sequence[Row]) -> None:
        """The same where there may be no answers: without a usual name, the column that holds the text."""
        label, names = self._named(head)
        found = Pair(self._text, "", self._beside)
        if self._text == AUTO:
            languages = list(_languages(head[0].values))
            found = Pair(languages[0], "") if languages else _usual_input(names)
        source = found.source or ColumnChoices(AUTO).choose(label, strings_of(head))
        self._pair = Pair(source, "", self._beside or found.beside)

    def read(self, row: Row) -> tuple[str, str]:
        """(input, answer) of one row. Raises DataError, with its place, for what is null, empty or no text."""
        refuse_bad_answer(row)
        return self.read_input(row), _text_of(_opened(row), self._pair.target)

    def read_input(self, row: Row) -> str:
        """Two texts of an input follow each other with the names of their columns before them, as T5 was trained
        ("question: ... context: ..."). Source: Raffel et al., arXiv:1910.10683, appendix D.
        """
        row, pair = _opened(row), self._pair
        source = _text_of(row, pair.source)
        # Alpaca has instructions that need no input.
        if pair.beside and row.values.get(pair.beside) not in (None, ""):
            source = f"{pair.source}: {source} {pair.beside}: {_text_of(row, pair.beside)}"
        return source

    def notes(self) -> list[str]:
        return list(self._notes)

    def _named(self, head: Sequence[Row]) -> tuple[str, list[str]]:
        """(the file, the names of its columns). Raises DataError where one that the settings name is not there."""
        # Rows of a sample stand in no file.
        label = head[0].where.rpartition(", ")[0]
        names = columns_of(map(_opened, head))
        refuse_missing(names, label, text=self._text, text_pair=self._beside, target=self._target)
        return label, names

    def _find(self, label: str, names: Sequence[str], head: Sequence[Row]) -> Pair:
        if AUTO not in (self._text, self._target):
            return Pair(self._text, self._target, self._beside)
        if self._text == self._target == AUTO:
            languages = list(_languages(head[0].values))
            found = Pair(languages[0], languages[1]) if len(languages) > 1 else _usual_pair(names)
        elif self._text == AUTO:
            usual = [name for pair in _USUAL for name in pair.inputs]
            found = Pair(_usual_name(names, usual, self._target), self._target)
        else:
            usual = [name for pair in _USUAL for name in pair.targets]
            found = Pair(self._text, _usual_name(names, usual, self._text))
        if not (found.source and found.target):
            raise _unclear(label, names, found)
        return Pair(found.source, found.target, self._beside or found.beside)

    def _told(self, names: Sequence[str], label: str) -> str:
        pair = self._pair
        beside = f" and '{one_line(pair.beside, 40)}'" if pair.beside else ""
        others = [name for name in names if name not in (*pair.columns, TRANSLATION)]
        also = f" (also there: {listed(others)})" if others else ""
        source, target = one_line(pair.source, 40), one_line(pair.target, 40)
        of = f" of {label}" if label else ""
        return f"the input is '{source}'{beside}{of}, the answer '{target}'{also}"


def _opened(row: Row) -> Row:
    """With the languages of a translation, {"translation": {"en": ..., "de": ...}}, as columns."""
    languages = _languages(row.values)
    return Row(row.where, {**row.values, **languages}) if languages else row


def _languages(values: Mapping[str, object]) -> Mapping[str, object]:
    found = values.get(TRANSLATION)
    return found if isinstance(found, dict) else {}


def _usual_pairs(names: Sequence[str]) -> list[Pair]:
    """As much as is there of each usual pair."""
    return [
        Pair(*(_usual_name(names, some) for some in (usual.inputs, usual.targets, (usual.beside,)))) for usual in _USUAL
    ]


def _usual_pair(names: Sequence[str]) -> Pair:
    """The first pair that is whole; else as much as is there of one."""
    pairs = _usual_pairs(names)
    part = next((pair for pair in pairs if pair.source or pair.target), Pair("", ""))
    return next((pair for pair in pairs if pair.source and pair.target), replace(part, beside=""))


def _usual_input(names: Sequence[str]) -> Pair:
    """The input of the first pair that is whole, else of the first one whose input is there."""
    with_input = [pair for pair in _usual_pairs(names) if pair.source]
    found = next((pair for pair in with_input if pair.target), next(iter(with_input), Pair("", "")))
    return replace(found, target="")


def _usual_name(names: Sequence[str], usual: Iterable[str], other: str = "") -> str:
    """The column with the first of the usual names that is there, however it is written."""
    return next((name for name in usual_columns(usual, names) if name != other), "")


def _text_of(row: Row, column: str) -> str:
    """The text of one column; of SQuAD's answers, {"text": [...]}, and of a list the first."""
    shown, value = one_line(column, 40), value_of(row, column)
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    if isinstance(value, list):
        value = value[0] if value else ""
    if not isinstance(value, str):
        hint = "write one" if value is None else "it must be text"
        raise DataError(f"the column '{shown}' is {kind_of_value(value)}, not a string", where=row.where, hint=hint)
    if not value.strip():
        raise DataError(f"the column '{shown}' is empty", where=row.where, hint="write one")
    return checked_text(value, row.where)


def _unclear(label: str, names: Sequence[str], found: Pair) -> DataError:
    """Neither is there, or one of the two; then the column whose name comes near to a usual one may be the other."""
    keys = [key for key, name in (("text", found.source), ("target", found.target)) if not name]
    known = next(filter(None, found.columns), "")
    usual = [name for pair in _USUAL for name in (pair.targets if found.source else pair.inputs)]
    near = [
        name
        for name in names
        if known and name != known and difflib.get_close_matches(name.strip().lower(), usual, n=1, cutoff=0.7)
    ]
    lacking = "an input" if found.target else f"the answer to '{one_line(known, 40)}'"
    what = f"no column has a usual name for {lacking}" if known else "no columns have usual names for input and answer"
    naming = " and ".join(f"data.{key}_column" for key in keys)
    guess = f"did you mean '{one_line(near[0], 40)}'? " if near else ""
    ones = "ones" if len(keys) > 1 else "one"
    hint = f"{guess}columns found: {listed(names)}; name the right {ones} in {naming}"
    return DataError(what, where=label, hint=hint)
