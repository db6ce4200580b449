"""What a row of a classification is labelled with: which column says so, of which kind it is, and its value.

The kind is read off the first rows where nobody says it:

    lists                                 any number of labels a row
    numbers, one of them with a fraction  a number to come near to (regression)
    more than 30 different whole numbers  a question for the user: they may be classes or a number
    anything else                         one label a row

Whole numbers, true and false are classes of that name; 4.0 is the class "4". In a CSV all values are strings, and
those that read as numbers count as numbers here. Lists may be written as JSON or as Python prints them. Lists of one
length with a 0 or 1 for each class name the classes by their numbers. Objects may stand for lists: spaCy's
{"A": 1.0, "B": 0.0} for ["A"], and {"label": "A"} for its label. Several columns, each named after a class, with a 0
or 1 in each row, stand for one list as well.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    is_id,
    kind_of_value,
    listed,
    missing_column,
    usual_columns,
    value_of,
    written_value,
)  # fmt: skip
from tui_trainer.data.columns.usual_names import MAYBE_LABELS, SURE_LABELS, USUAL_LABELS
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

Kind = Literal["single_label_classification", "multi_label_classification", "regression"]
SINGLE, MULTI, REGRESSION = get_args(Kind)
# The name says it, whatever else is there.
MOST_WHOLE_NUMBERS = 30
LONGEST_NAME = 200  # characters
_WORDS_OF_TEXT = 5
LARGEST = 3.4e38  # of float32, in which numbers are learnt
_LABEL_KEY, _KIND_KEY = "data.label_column", "task.problem_type"
_WRITTEN_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
# SNLI's annotators did not agree; pandas had nothing and wrote it.
_NO_LABEL = ("-", "nan", "NaN", "<NA>")
_SEPARATORS = ("|", ";", ",")
_OTHER_SEPARATORS = ("/", "+", "&")
_NUMBERS = ("score", "stars", "rating", "target", "y", "similarity", "value")
_BLANK = " "
_WRITTEN = re.compile(r"""\[.*\]|\{.*\}|\(['"].*\)""", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?\s*")
_STARTS = ("start", "start_offset", "begin")


def label_columns(wanted: str, head: Sequence[Row], label: str, texts: Iterable[str] = (AUTO,)) -> tuple[str, ...]:
    """The column `wanted`, or those that it names with commas between them; with "auto" the one with a usual name, or
    where there is none all columns but those of `texts` (with "auto" among them, of one text), if each holds a 0 or 1.

    Raises DataError without it.
    """
    names = columns_of(head)
    if wanted in names and wanted != AUTO:
        return (wanted,)
    if wanted != AUTO:
        several = tuple(dict.fromkeys(filter(None, map(str.strip, wanted.split(","))))) or (wanted,)
        if missing := next((name for name in several if name not in names), None):
            raise missing_column(missing, label, names, key=_LABEL_KEY)
        return several
    sure, maybe = (usual_columns(usual, names) for usual in (SURE_LABELS, MAYBE_LABELS))
    found = sure[:1] if sure and {"label", "labels"} - {name.strip().lower() for name in sure} else sure or maybe
    if len(found) == 1:
        return (found[0],)
    if found:
        hint = f"set {_LABEL_KEY} to one of them: {listed(found)}"
        raise DataError("several columns could hold the labels", where=label, hint=hint)
    marks = marked_columns(head)
    if len(marks) > 1:
        others = [name for name in names if name not in (*marks, *texts) and not is_id(name)]
        is_told = len(others) <= (AUTO in texts) and not any("," in name for name in marks)
        if is_told:
            return tuple(marks)
        beside = f"; other columns: {listed(others)}" if others else ""
        hint = f"set {_LABEL_KEY} to the columns that are classes, separated by commas, or to one column of labels"
        raise DataError(
            f"it is unclear whether the columns {listed(marks)}, which hold 0 or 1, are classes{beside}",
            where=label,
            hint=hint,
        )
    hint = f"set {_LABEL_KEY}; columns found: {listed(names)}"
    raise DataError("no column has a usual name for labels, such as label or category", where=label, hint=hint)


def marked_columns(head: Sequence[Row]) -> list[str]:
    """The columns that hold a 0 or 1 in the first rows, but for those of the numbers of rows."""
    names = (name for name in columns_of(head) if not is_id(name))
    values = {name: [value for row in head if (value := row.values.get(name)) is not None] for name in names}
    return [name for name, known in values.items() if known and None not in map(_mark_of, known)]


def labels_beside(names: Sequence[str], column: str) -> list[str]:
    """Other columns that may hold labels."""
    own = column.strip().lower()
    named = (f"{own}_text", f"{own}_name", f"{own}_names")
    return [name for name in dict.fromkeys(usual_columns((*USUAL_LABELS, *named), names)) if name != column]


def opened(value: object, where: str) -> object:
    """The list of names that a value stands for, which is written as text or is an object; other values as they are.

    Raises DataError for what only looks like one.
    """
    if isinstance(value, str):
        return _read_written(value.strip(), where) if value.strip()[:1] in ("[", "{", "(") else value
    if isinstance(value, Mapping):
        return _of_object(value, where)
    if isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
        return _of_objects(value, where)
    return value


def values_in(head: Sequence[Row], *columns: str) -> list[object]:
    """The labels of the first rows that can be read. Raises DataError for spans, which are another task's."""
    found = []
    for row in head:
        try:
            value = _marked_names(row, columns) if columns[1:] else opened(row.values.get(columns[0]), row.where)
        except DataError:  # told with the row
            continue
        if isinstance(value, list | tuple) and any(map(_is_span, value)):
            hint = f'set task.type = "token_classification", or set {_LABEL_KEY} to a column of classes'
            what = f"the labels in '{one_line(columns[0], 40)}' are spans of the text"
            raise DataError(what, where=row.where, hint=hint)
        found.append(value)
    return found


def holds_labels(head: Sequence[Row]) -> bool:
    """Whether a column has a usual name of labels and holds no spans."""
    names = usual_columns(USUAL_LABELS, columns_of(head))
    try:
        return any(value is not None for name in names for value in values_in(head, name))
    except DataError:
        return False


def refuse_texts(values: Sequence[object], where: str, column: str) -> None:
    """Raises DataError where each row has a label of its own that is a sentence: an answer to learn, or the text."""
    known = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in values if value]
    texts = [value for value in known if isinstance(value, str)]
    words = sum(len(text.split()) for text in texts)
    if 1 < len(texts) == len(known) == len(set(texts)) and words >= _WORDS_OF_TEXT * len(texts):
        shown = one_line(column, 40)
        hint = f'to generate this text, set task.type = "seq2seq" and data.target_column = "{shown}"; if the text '
        hint += f"is the input and another column has the labels, set data.text_column and {_LABEL_KEY}"
        raise DataError(f"the column '{shown}' holds a different text in each row, not classes", where=where, hint=hint)


def kind_of(values: Iterable[object], where: str, column: str) -> Kind:
    """What the labels of the first rows are. Raises DataError where that is a question for the user."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, list | tuple) for value in known):
        return "multi_label_classification"
    _refuse_unclear(known, where, column)
    numbers = [_as_number(value) for value in known]
    found = {number for number in numbers if number is not None}
    if None in numbers:
        return "single_label_classification"
    if any(not number.is_integer() for number in found if math.isfinite(number)):
        _refuse_codes(known, where, column)
        return "regression"
    if len(found) > MOST_WHOLE_NUMBERS:
        message = f"the column '{one_line(column, 40)}' holds {len(found)} different whole numbers in the first rows"
        hint = f'set {_KIND_KEY} to "{SINGLE}" for classes or to "{REGRESSION}" for numbers'
        raise DataError(message, where=where, hint=hint)
    return "single_label_classification"


class LabelReader:
    """The values of one column, or of one for each class, all read alike. What is unlike the first of them is a
    mistake. `values`: of the first rows, as `values_in` has them."""

    def __init__(self, columns: Sequence[str], kind: Kind, values: Sequence[object] = ()) -> None:
        self.columns, self.kind = tuple(columns), kind
        known = [value for value in values if value is not None]
        self.width = _width_of(known)
        """Of lists with a 0 or 1 for each class; 0 where labels are named."""
        numbers = [_as_number(value) for value in known]
        self._reads_numbers = bool(known) and None not in numbers
        self._are_whole = all(number is not None and number.is_integer() for number in numbers)
        whole = {number for number in numbers if number is not None}
        # Data sets of the hub have -1 for none; it is a class only where classes are signs, or go on below it.
        self._has_negatives = not self._reads_numbers or min(whole) < -1 or (-1 in whole and max(whole) < 2)
        texts = [value for value in known if isinstance(value, str)]
        self._separator, self._has_several = _separator_of(texts)
        self._form = ""
        self._lists: bool | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Where the form of the labels says which there are."""
        return tuple(map(str.strip, self.columns)) if self.columns[1:] else tuple(map(str, range(self.width)))

    def note(self) -> str:
        """What the form of the labels is, where that could be taken for something else."""
        if self.width:
            last = self.width - 1
            return f"each label is a list with a 0 or 1 for each of {self.width:,} classes, named 0 to {last:,}"
        if self.kind == MULTI and self._lists is False:
            sign = "spaces" if self._separator == _BLANK else repr(self._separator)
            if self._has_several:
                return f"the labels within a row are separated by {sign}"
            return f"none of the first rows has several labels; several labels would be separated by {sign}"
        is_class = self._has_negatives and self._reads_numbers and self.kind == SINGLE
        return "-1 is used as a class; in datasets on the Hub it usually means no label" if is_class else ""

    def names(self, row: Row) -> tuple[str, ...]:
        """The labels of a row, each once, sorted: exactly one of them for one label a row. Raises DataError."""
        value, where = opened(self._value(row), row.where), row.where
        if form := self._other_form(value):
            raise DataError(f"the labels are {kind_of_value(value)}, but earlier labels are {form}", where=where)
        if not isinstance(value, list | tuple):
            if self.kind == SINGLE:
                return (self._name(value, where),)
            if not isinstance(value, str):
                raise DataError(f"the labels are {kind_of_value(value)}, not a list", where=where)
            value = [part for part in value.split(self._separator) if part.strip()]
        found = self._marked(value, where) if self.width else [self._name(part, where) for part in value]
        if self.kind == SINGLE and len(found) != 1:
            hint = f'for several labels per row, set {_KIND_KEY} = "{MULTI}"'
            raise DataError(f"the label is a list of {len(found)} labels", where=where, hint=hint)
        if repeated := next((name for place, name in enumerate(found) if name in found[:place]), ""):
            hint = "list the names of the row's labels, not a 0 or 1 for each class"
            raise DataError(f"the label '{one_line(repeated, 40)}' is listed twice", where=where, hint=hint)
        return tuple(sorted(found))

    def number(self, row: Row) -> float:
        """The number of a row of a regression. Raises DataError."""
        value = self._value(row)
        if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
            value = value.replace(",", ".")
        found = _as_number(value)
        if found is None:
            shown = f"'{one_line(value, 40)}'" if isinstance(value, str) else kind_of_value(value)
            raise DataError(f"the label is {shown}, not a number", where=row.where)
        if not abs(found) <= LARGEST:
            raise DataError("the label is not a finite number", where=row.where)
        return found

    def _other_form(self, value: object) -> str:
        """What labels were before, where these are something else: lists, or names."""
        is_list = isinstance(value, list | tuple)
        if self._lists is None:
            self._lists = is_list
        return "" if is_list == self._lists else "lists" if self._lists else "names"

    def _marked(self, marks: Sequence[object], where: str) -> list[str]:
        """The numbers of the classes that have a 1."""
        if len(marks) != self.width or not all(map(_is_mark, marks)):
            form = f"lists of {self.width:,} values, a 0 or 1 for each class"
            raise DataError(f"the label is a list of {len(marks):,} values, but earlier labels are {form}", where=where)
        return [str(number) for number, mark in enumerate(marks) if mark]

    def _value(self, row: Row) -> object:
        if self.columns[1:]:
            return _marked_names(row, self.columns)
        value = value_of(row, self.columns[0])
        if value is None or (value == "" and self.kind != "multi_label_classification"):
            raise DataError("the label is missing", where=row.where)
        return value

    def _name(self, value: object, where: str) -> str:
        form = kind_of_value(value)
        if form not in ("a string", "a number", "true or false"):
            raise DataError(f"the label is {form}, not a name", where=where, hint="write a string or a number")
        self._form = self._form or form
        if form != self._form:
            before = {"a string": "strings", "a number": "numbers"}.get(self._form, self._form)
            raise DataError(f"the label is {form}, but earlier labels are {before}", where=where)
        if isinstance(value, str):
            return self._checked(value.strip(), where)
        if value == IGNORE or (value == -1 and not self._has_negatives):
            hint = "remove the row, or rename the class"
            raise DataError(f"the label is {value:g}, which stands for a missing label", where=where, hint=hint)
        if isinstance(value, float):
            if math.isnan(value):
                raise DataError("the label is missing", where=where)
            if not value.is_integer():
                hint = f'to train on numbers, set {_KIND_KEY} = "{REGRESSION}"'
                if self._lists:
                    hint = "list the names of the row's labels, or a 0 or 1 for each class"
                raise DataError(f"the label {value:g} is not a whole number", where=where, hint=hint)
            return str(int(value))
        return str(value).lower()

    def _checked(self, name: str, where: str) -> str:
        if not name:
            raise DataError("the label is empty", where=where)
        if name in (*_NO_LABEL, str(IGNORE)) or (name == "-1" and not self._has_negatives):
            hint = "remove the row, or rename the class"
            raise DataError(f"the label is '{name}', which stands for a missing label", where=where, hint=hint)
        if len(name) > LONGEST_NAME:
            hint = f"if this is the text, set {_LABEL_KEY} to the column of labels"
            raise DataError(f"the label is too long: {len(name):,} characters", where=where, hint=hint)
        refuse_surrogates(name, where)
        number = _as_number(name) if self._reads_numbers and self._are_whole and "." in name else None
        return str(int(number)) if number is not None and number.is_integer() else name


def _separator_of(texts: Sequence[str]) -> tuple[str, bool]:
    """Return what stands between the labels of a row, and whether any of these rows has several labels.

    It is a usual sign, or blanks or another sign where the parts between them recur, as those of one name do not.
    """
    if found := next((sign for sign in _SEPARATORS if any(sign in text for text in texts)), ""):
        return found, True
    for sign in (_BLANK, *_OTHER_SEPARATORS):
        parts = {text: {part for part in text.split(sign) if part} for text in texts}
        often = Counter(part for some in parts.values() for part in some)
        several = [some for some in parts.values() if len(some) > 1]
        if len(often) < len(parts) or any(all(often[part] > 1 for part in some) for some in several):
            return sign, bool(several)
    return _SEPARATORS[-1], False


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


def _marked_names(row: Row, columns: Iterable[str]) -> list[str]:
    """The columns of classes that have a 1. Raises DataError for one that has neither 0 nor 1."""
    found = []
    for column in columns:
        value = value_of(row, column)
        if (mark := _mark_of(value)) is None:
            held = "no value" if value in (None, "") else f"'{one_line(str(value), 20)}'"
            hint = "remove the row, or write 0 or 1"
            what = f"the class '{one_line(column, 40)}' has {held} instead of 0 or 1"
            raise DataError(what, where=row.where, hint=hint)
        if mark:
            found.append(column)
    return found


def _mark_of(value: object) -> bool | None:
    """0 or 1, as CSV has them too."""
    if isinstance(value, str):
        return _WRITTEN_MARKS.get(value.strip().lower())
    return bool(value) if _is_mark(value) else None


def _is_mark(value: object) -> bool:
    return isinstance(value, int | float) and value in (0, 1)


def _width_of(values: Sequence[object]) -> int:
    """How long lists are that hold a 0 or 1 for each class."""
    lists = [value for value in values if isinstance(value, list | tuple)]
    widths = {len(value) for value in lists}
    if len(widths) != 1 or len(lists) < len(values) or not all(_is_mark(mark) for value in lists for mark in value):
        return 0
    return widths.pop() if max(widths) > 1 else 0


def _is_span(value: object) -> bool:
    """As doccano writes it, [0, 3, "PER"], or an object that says where it starts."""
    if isinstance(value, Mapping):
        return any(name in value for name in _STARTS)
    return isinstance(value, list | tuple) and len(value) == 3 and all(type(place) is int for place in value[:2])


def _read_written(text: str, where: str) -> object:
    if not _WRITTEN.fullmatch(text):
        return text
    value = written_value(text)
    if isinstance(value, set):
        value = sorted(value, key=str)
    if not isinstance(value, list | tuple | dict):
        hint = 'write a list as JSON, ["heat", "light"], and a single name without brackets'
        what = f"the label '{one_line(text, 40)}' looks like a list, but cannot be read as one"
        raise DataError(what, where=where, hint=hint)
    return opened(value, where)


def _of_object(value: Mapping[str, object], where: str) -> object:
    """The names that have a 1, as spaCy writes `cats`; of {"label": "joy"} the label."""
    if "label" in value and value.keys() <= {"label", "score"}:
        return value["label"]
    # Parquet has null for a name that another row has.
    marks = {name: mark for name, mark in value.items() if mark is not None}
    if not all(isinstance(mark, int | float) for mark in marks.values()):
        return value
    _refuse_fractions(marks, where)
    return [name for name, mark in marks.items() if mark]


def _of_objects(values: Sequence[Mapping[str, object]], where: str) -> object:
    """The labels of [{"label": "joy", "score": 0.9}]. Of several with scores it is not known which hold."""
    if any(map(_is_span, values)) or not all("label" in value for value in values):
        return values
    scores = {str(value["label"]): value.get("score", 1) for value in values}
    if len(values) > 1:
        _refuse_fractions(scores, where)
        return [value["label"] for value in values if value.get("score", 1)]
    return [values[0]["label"]]


def _refuse_fractions(marks: Mapping[str, object], where: str) -> None:
    if found := next((name for name, mark in marks.items() if not _is_mark(mark)), ""):
        what = f"the label '{one_line(found, 40)}' is {one_line(str(marks[found]), 20)} instead of 0 or 1"
        raise DataError(what, where=where, hint="write 1 for each class that a row has, and 0 for the others")


def _refuse_codes(values: Sequence[object], where: str, column: str) -> None:
    """Raises DataError for numbers with a point that are strings, and may be versions or codes: of a column whose name
    says nothing of a number, or written as no program writes numbers."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    decimals = {len(text.partition(".")[2]) for text in texts}
    odd = next((text for text in texts if str(float(text)) != text and "." in text and len(decimals) > 1), "")
    if texts and (odd or column.strip().lower() not in _NUMBERS):
        shown = odd or next(text for text in texts if "." in text)
        what = f"'{one_line(shown, 20)}' in the column '{one_line(column, 40)}' may be a number or a name"
        hint = f'set {_KIND_KEY} to "{SINGLE}" for classes or to "{REGRESSION}" for numbers'
        raise DataError(what, where=where, hint=hint)


def _refuse_unclear(values: Sequence[object], where: str, column: str) -> None:
    """Raises DataError for names that may be several, or numbers with a comma."""
    texts = list(dict.fromkeys(value.strip() for value in values if isinstance(value, str)))
    shown, hint = one_line(column, 40), f'to use each value as a class name, set {_KIND_KEY} = "{SINGLE}"'
    if any("," in text for text in texts) and all(map(_DECIMAL_COMMA.fullmatch, texts)):
        what = (
            f"the column '{shown}' holds numbers with a comma, such as '{next(text for text in texts if ',' in text)}'"
        )
        raise DataError(
            what, where=where, hint=f'to read the values as numbers, set {_KIND_KEY} = "{REGRESSION}"; {hint}'
        )
    for sign in _SEPARATORS:
        parts = {text: {part.strip() for part in text.split(sign)} for text in texts}
        often = Counter(part for some in parts.values() for part in some)
        # A name with a comma in it is one name, unless other rows have its parts.
        found = next(
            (text for text, some in parts.items() if len(some) > 1 and all(often[one] > 1 for one in some)), ""
        )
        if found:
            what = f"the column '{shown}' may hold several labels per row, such as '{one_line(found, 40)}'"
            raise DataError(
                what, where=where, hint=f"to split the values at '{sign}', set {_KIND_KEY} = \"{MULTI}\"; {hint}"
            )
