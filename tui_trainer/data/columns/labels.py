"""What a row of a classification is labelled with: which column says so, of which kind it is, and its value.

The kind is read off the first rows where nobody says it:

    lists                                 any number of labels a row
    numbers, one of them with a fraction  a number to come near to (regression)
    more than 30 different whole numbers  a question for the user: they may be classes or a number
    anything else                         one label a row

Whole numbers, true and false are classes of that name; 4.0 is the class "4". In a CSV all values are strings, and
those that read as numbers count as numbers here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    kind_of_value,
    listed,
    missing_column,
    usual_columns,
    value_of,
)  # fmt: skip
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

Kind = Literal["single_label_classification", "multi_label_classification", "regression"]
SINGLE, MULTI, REGRESSION = get_args(Kind)
USUAL_LABELS = (
    "label", "labels", "category", "categories", "class", "sentiment", "target", "score", "stars", "rating", "topic",
    "intent", "emotion", "y",
)  # fmt: skip
MOST_WHOLE_NUMBERS = 30
LONGEST_NAME = 200  # characters
LARGEST = 3.4e38  # of float32, in which numbers are learnt
_LABEL_KEY, _KIND_KEY = "data.label_column", "task.problem_type"


def label_column(wanted: str, head: Sequence[Row], label: str) -> str:
    """The column `wanted`, or with "auto" the one with a usual name. Raises DataError without it."""
    names = columns_of(head)
    if wanted != AUTO:
        if wanted in names:
            return wanted
        raise missing_column(wanted, label, names, key=_LABEL_KEY)
    if found := usual_columns(USUAL_LABELS, names):
        return found[0]
    hint = f"name it in {_LABEL_KEY}; columns found: {listed(names)}"
    raise DataError("no column has a usual name of labels, such as label or category", where=label, hint=hint)


def kind_of(values: Iterable[object], where: str, column: str) -> Kind:
    """What the labels of the first rows are. Raises DataError where that is a question for the user."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, list | tuple) for value in known):
        return "multi_label_classification"
    numbers = [_as_number(value) for value in known]
    found = {number for number in numbers if number is not None}
    if None in numbers:
        return "single_label_classification"
    if any(not number.is_integer() for number in found if math.isfinite(number)):
        return "regression"
    if len(found) > MOST_WHOLE_NUMBERS:
        message = f"the column '{one_line(column, 40)}' holds {len(found)} different whole numbers in the first rows"
        hint = f'say what they are: {_KIND_KEY} = "{SINGLE}" for classes, "{REGRESSION}" for a number'
        raise DataError(message, where=where, hint=hint)
    return "single_label_classification"


class LabelReader:
    """The values of one column, all read alike. What is unlike the first of them is a mistake."""

    def __init__(self, column: str, kind: Kind) -> None:
        self.column, self.kind = column, kind
        self._form = ""
        self._lists: bool | None = None

    def names(self, row: Row) -> tuple[str, ...]:
        """The labels of a row, each once, sorted: exactly one of them for one label a row. Raises DataError."""
        value = self._value(row)
        if self.kind == "single_label_classification":
            if isinstance(value, list | tuple):
                hint = f'{_KIND_KEY} = "{MULTI}" learns several labels a row'
                raise DataError(f"the label is a list of {len(value)}", where=row.where, hint=hint)
            return (self._name(value, row.where),)
        if form := self._other_form(value):
            raise DataError(f"the labels are {kind_of_value(value)}, and those before them {form}", where=row.where)
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise DataError(f"the labels are {kind_of_value(value)}, not a list", where=row.where)
        found = [self._name(part, row.where) for part in value]
        if repeated := next((name for place, name in enumerate(found) if name in found[:place]), ""):
            hint = "a row lists the names of its labels, not a 0 or 1 for each"
            raise DataError(f"the label '{one_line(repeated, 40)}' stands there twice", where=row.where, hint=hint)
        return tuple(sorted(found))

    def number(self, row: Row) -> float:
        """The number of a row of a regression. Raises DataError."""
        value = self._value(row)
        found = _as_number(value)
        if found is None:
            shown = f"'{one_line(value, 40)}'" if isinstance(value, str) else kind_of_value(value)
            raise DataError(f"the label is {shown}, not a number", where=row.where)
        if not abs(found) <= LARGEST:
            raise DataError("the label is no finite number", where=row.where)
        return found

    def _other_form(self, value: object) -> str:
        """What several labels a row were before, where this is something else: lists, or a text with commas."""
        if not isinstance(value, list | tuple | str):
            return ""
        is_list = isinstance(value, list | tuple)
        if self._lists is None:
            self._lists = is_list
        return "" if is_list == self._lists else "lists" if self._lists else "strings"

    def _value(self, row: Row) -> object:
        value = value_of(row, self.column)
        if value is None or (value == "" and self.kind != "multi_label_classification"):
            raise DataError("the label is missing", where=row.where)
        return value

    def _name(self, value: object, where: str) -> str:
        form = kind_of_value(value)
        if form not in ("a string", "a number", "true or false"):
            raise DataError(f"the label is {form}, not a name", where=where)
        self._form = self._form or form
        if form != self._form:
            before = {"a string": "strings", "a number": "numbers"}.get(self._form, self._form)
            raise DataError(f"the label is {form}, and those before it are {before}", where=where)
        if isinstance(value, str):
            return _checked(value.strip(), where)
        if isinstance(value, float):
            if not value.is_integer():
                hint = f'{_KIND_KEY} = "{REGRESSION}" learns numbers'
                raise DataError(f"the label {value:g} is no whole number", where=where, hint=hint)
            return str(int(value))
        return str(value).lower()


def ordered(names: Iterable[str], known: Mapping[object, object] | None = None) -> tuple[str, ...]:
    """The names in the order of their numbers: as `known` (a model's id2label) has it where it knows just these,
    whole numbers by size, else by the alphabet."""
    found = set(names)
    try:
        by_model = [str(name) for _, name in sorted((known or {}).items(), key=lambda item: int(str(item[0])))]
    except ValueError:
        by_model = []
    if len(by_model) == len(found) and set(by_model) == found:
        return tuple(by_model)
    try:
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(found))


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _checked(name: str, where: str) -> str:
    if not name:
        raise DataError("the label is empty", where=where)
    if len(name) > LONGEST_NAME:
        hint = f"is it the text? name the right column in {_LABEL_KEY}"
        raise DataError(f"the label has {len(name):,} characters", where=where, hint=hint)
    refuse_surrogates(name, where)
    return name
