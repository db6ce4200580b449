"""The labels of rows for classification and regression: their column, their kind, and the value of each row.

Without a setting, the first rows decide on the kind:

    lists                                 any number of labels per row
    numbers, at least one with a fraction regression
    more than 30 different whole numbers  the user has to choose: classes or regression
    anything else                         one label per row

Whole numbers, true and false are classes of that name; 4.0 is the class "4". In a CSV, strings that can be read as
numbers count as numbers. Lists may be written as JSON or in Python's notation. Lists of equal length with a 0 or 1 for
each class name the classes by their numbers. Objects may stand for lists: spaCy's {"A": 1.0, "B": 0.0} for ["A"], and
{"label": "A"} for its label. So do several columns that are named after classes and hold a 0 or 1 in each row.
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
SINGLE_LABEL, MULTI_LABEL, REGRESSION = get_args(Kind)
MOST_WHOLE_NUMBERS = 30
LONGEST_NAME = 200  # characters
_WORDS_OF_TEXT = 5
LARGEST_TARGET = 3.4e38  # the largest float32: targets of a regression are float32
LABEL_KEY, _KIND_KEY = "data.label_column", "task.problem_type"
_WRITTEN_FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
# SNLI's sign for disagreement between annotators, and pandas' signs for a missing value.
_MISSING_LABELS = ("-", "nan", "NaN", "<NA>")
_SEPARATORS = ("|", ";", ",")
_OTHER_SEPARATORS = ("/", "+", "&")
_NUMBER_COLUMNS = ("score", "stars", "rating", "target", "y", "similarity", "value")
_BLANK = " "
_WRITTEN_LIST = re.compile(r"""\[.*\]|\{.*\}|\(['"].*\)""", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+(,\d+)?\s*")
_SPAN_START_KEYS = ("start", "start_offset", "begin")


def label_columns(setting: str, head: Sequence[Row], label: str, texts: Iterable[str] = (AUTO,)) -> tuple[str, ...]:
    """Return the columns of the labels: `setting`, or the columns that it lists, separated by commas.

    "auto" means the column with a usual name for labels. Without one, it means all columns except `texts`, if each
    holds only 0 and 1. AUTO in `texts` stands for one unknown text column. Raises DataError if the columns are unclear.
    """
    names = columns_of(head)
    if setting in names and setting != AUTO:
        return (setting,)
    if setting != AUTO:
        listed_columns = tuple(dict.fromkeys(filter(None, map(str.strip, setting.split(","))))) or (setting,)
        if missing_name := next((name for name in listed_columns if name not in names), None):
            raise missing_column(missing_name, label, names, key=LABEL_KEY)
        return listed_columns
    sure_names, possible_names = (usual_columns(usual_names, names) for usual_names in (SURE_LABELS, MAYBE_LABELS))
    is_one_of_label_and_labels = {"label", "labels"} - {name.strip().lower() for name in sure_names}
    candidates = (sure_names[:1] if is_one_of_label_and_labels else sure_names) or possible_names
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        hint = f"set {LABEL_KEY} to one of {listed(candidates)}"
        raise DataError("several columns could hold the labels", where=label, hint=hint)
    class_columns = flag_columns(head)
    if len(class_columns) > 1:
        further_columns = [name for name in names if name not in (*class_columns, *texts) and not is_id(name)]
        is_clear = len(further_columns) <= (AUTO in texts) and not any("," in name for name in class_columns)
        if is_clear:
            return tuple(class_columns)
        other_columns = f"; other columns: {listed(further_columns)}" if further_columns else ""
        hint = f"set {LABEL_KEY} to the columns that are classes, separated by commas, or to one column of labels"
        columns_text = f"the columns {listed(class_columns)}, which hold 0 or 1, are classes{other_columns}"
        raise DataError(f"it is unclear whether {columns_text}", where=label, hint=hint)
    hint = f"set {LABEL_KEY}; columns found: {listed(names)}"
    raise DataError("no column has a usual name for labels, such as label or category", where=label, hint=hint)


def flag_columns(head: Sequence[Row]) -> list[str]:
    """Return the columns that hold only 0 and 1 in the first rows, except columns of row numbers."""
    names = (name for name in columns_of(head) if not is_id(name))
    values = {name: [value for row in head if (value := row.values.get(name)) is not None] for name in names}
    return [name for name, filled in values.items() if filled and None not in map(_flag_of, filled)]


def other_label_columns(names: Sequence[str], column: str) -> list[str]:
    """Return the columns, other than `column`, that may hold labels."""
    name_in_lower_case = column.strip().lower()
    related_names = (f"{name_in_lower_case}_text", f"{name_in_lower_case}_name", f"{name_in_lower_case}_names")
    return [name for name in dict.fromkeys(usual_columns((*USUAL_LABELS, *related_names), names)) if name != column]


def parsed_labels(value: object, where: str) -> object:
    """Convert a label that is an object, or a list in a string, to a list of labels. Return other values unchanged.

    Raises DataError for a string that begins like a list, but is not one."""
    if isinstance(value, str):
        return _parse_written(value.strip(), where) if value.strip()[:1] in ("[", "{", "(") else value
    if isinstance(value, Mapping):
        return _labels_of_object(value, where)
    if isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
        return _labels_of_objects(value, where)
    return value


def first_label_values(head: Sequence[Row], *columns: str) -> list[object]:
    """Return the labels of the first rows, without unreadable ones. Raises DataError if labels are spans of a text."""
    values = []
    for row in head:
        try:
            is_one = len(columns) == 1
            value = parsed_labels(row.values.get(columns[0]), row.where) if is_one else _flagged_columns(row, columns)
        except DataError:  # reported when the row is read
            continue
        if isinstance(value, list | tuple) and any(map(_is_span, value)):
            hint = f'set task.type = "token_classification", or set {LABEL_KEY} to a column of classes'
            problem = f"the labels in '{one_line(columns[0], 40)}' are spans of the text"
            raise DataError(problem, where=row.where, hint=hint)
        values.append(value)
    return values


def holds_labels(head: Sequence[Row]) -> bool:
    """Return whether the rows have labels: a column with a usual name for them, whose values are not spans."""
    names = usual_columns(USUAL_LABELS, columns_of(head))
    try:
        return any(value is not None for name in names for value in first_label_values(head, name))
    except DataError:
        return False


def refuse_text_labels(values: Sequence[object], where: str, column: str) -> None:
    """Raise DataError if the labels are sentences that never repeat: they are answers or texts, not classes."""
    labels = [value[0] if isinstance(value, list) and len(value) == 1 else value for value in values if value]
    texts = [value for value in labels if isinstance(value, str)]
    word_count = sum(len(text.split()) for text in texts)
    if 1 < len(texts) == len(labels) == len(set(texts)) and word_count >= _WORDS_OF_TEXT * len(texts):
        shown_column = one_line(column, 40)
        hint = f'to generate this text, set task.type = "seq2seq" and data.target_column = "{shown_column}"; if the '
        hint += f"text is the input and another column has the labels, set data.text_column and {LABEL_KEY}"
        problem = f"the column '{shown_column}' holds a different text in each row, not classes"
        raise DataError(problem, where=where, hint=hint)


def infer_label_kind(values: Iterable[object], where: str, column: str) -> Kind:
    """Return the kind of the labels, judging by the first rows. Raises DataError if the user has to decide."""
    labels = [value for value in values if value is not None]
    if any(isinstance(value, list | tuple) for value in labels):
        return "multi_label_classification"
    _refuse_ambiguous(labels, where, column)
    numbers = [_as_number(value) for value in labels]
    distinct_numbers = {number for number in numbers if number is not None}
    if None in numbers:
        return "single_label_classification"
    if any(not number.is_integer() for number in distinct_numbers if math.isfinite(number)):
        _refuse_codes(labels, where, column)
        return "regression"
    if len(distinct_numbers) > MOST_WHOLE_NUMBERS:
        count = f"{len(distinct_numbers)} different whole numbers"
        message = f"the column '{one_line(column, 40)}' holds {count} in the first rows"
        hint = f'set {_KIND_KEY} to "{SINGLE_LABEL}" for classes or to "{REGRESSION}" for numbers'
        raise DataError(message, where=where, hint=hint)
    return "single_label_classification"


class LabelReader:
    """Reads the labels of one column, or of one column per class. Later labels must have the same form as the first
    ones. `values`: labels of the first rows, from `first_label_values`."""

    def __init__(self, columns: Sequence[str], kind: Kind, values: Sequence[object] = ()) -> None:
        self.columns, self.kind = tuple(columns), kind
        labels = [value for value in values if value is not None]
        self.width = _width_of(labels)
        """Length of lists with a 0 or 1 for each class; 0 if labels are names."""
        numbers = [_as_number(value) for value in labels]
        self._reads_numbers = bool(labels) and None not in numbers
        self._are_whole = all(number is not None and number.is_integer() for number in numbers)
        distinct_numbers = {number for number in numbers if number is not None}
        # Data sets on the Hub write -1 for a missing label. It is a class if numbers go below it, or none exceeds 1.
        self._has_negatives = (
            not self._reads_numbers
            or min(distinct_numbers) < -1
            or (-1 in distinct_numbers and max(distinct_numbers) < 2)
        )
        texts = [value for value in labels if isinstance(value, str)]
        self._separator, self._has_several = _separator_of(texts)
        self._form = ""
        self._are_lists: bool | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if columns or lists of 0 and 1 define them; empty if the labels are names."""
        return tuple(map(str.strip, self.columns)) if self.columns[1:] else tuple(map(str, range(self.width)))

    def note(self) -> str:
        """Return a sentence about how the labels are read, if a user may expect another way; else ""."""
        if self.width:
            last_number = self.width - 1
            return f"each label is a list with a 0 or 1 for each of {self.width:,} classes, named 0 to {last_number:,}"
        if self.kind == MULTI_LABEL and self._are_lists is False:
            separator = "spaces" if self._separator == _BLANK else repr(self._separator)
            if self._has_several:
                return f"the labels within a row are separated by {separator}"
            return f"none of the first rows has several labels; labels in a row would be separated by {separator}"
        is_class = self._has_negatives and self._reads_numbers and self.kind == SINGLE_LABEL
        return "-1 is used as a class, but usually means a missing label in datasets on the Hub" if is_class else ""

    def names(self, row: Row) -> tuple[str, ...]:
        """Return the distinct labels of a row, sorted; exactly one for a single-label task. Raises DataError."""
        value, where = parsed_labels(self._value(row), row.where), row.where
        if other_form := self._other_form(value):
            raise DataError(f"the labels are {kind_of_value(value)}, but earlier labels are {other_form}", where=where)
        if not isinstance(value, list | tuple):
            if self.kind == SINGLE_LABEL:
                return (self._name(value, where),)
            if not isinstance(value, str):
                raise DataError(f"the labels are {kind_of_value(value)}, not a list", where=where)
            value = [part for part in value.split(self._separator) if part.strip()]
        names = self._flagged_classes(value, where) if self.width else [self._name(part, where) for part in value]
        if self.kind == SINGLE_LABEL and len(names) != 1:
            hint = f'for several labels per row, set {_KIND_KEY} = "{MULTI_LABEL}"'
            raise DataError(f"the label is a list of {len(names)} labels", where=where, hint=hint)
        if repeated_name := next((name for position, name in enumerate(names) if name in names[:position]), ""):
            hint = "list the names of the row's labels, not a 0 or 1 for each class"
            raise DataError(f"the label '{one_line(repeated_name, 40)}' is listed twice", where=where, hint=hint)
        return tuple(sorted(names))

    def number(self, row: Row) -> float:
        """Return the number of a row for regression. Raises DataError."""
        return number_of(self._value(row), "the label", row.where)

    def _other_form(self, value: object) -> str:
        """Return the form of the earlier labels ("lists" or "names") if this label has the other form; else ""."""
        is_list = isinstance(value, list | tuple)
        if self._are_lists is None:
            self._are_lists = is_list
        return "" if is_list == self._are_lists else "lists" if self._are_lists else "names"

    def _flagged_classes(self, flags: Sequence[object], where: str) -> list[str]:
        """Return the numbers of the classes whose flag is 1, as strings. Raises DataError for other values."""
        if len(flags) != self.width or not all(map(_is_zero_or_one, flags)):
            form = f"lists of {self.width:,} values, a 0 or 1 for each class"
            raise DataError(f"the label is a list of {len(flags):,} values, but earlier labels are {form}", where=where)
        return [str(number) for number, flag in enumerate(flags) if flag]

    def _value(self, row: Row) -> object:
        if self.columns[1:]:
            return _flagged_columns(row, self.columns)
        value = value_of(row, self.columns[0])
        if value is None or (value == "" and self.kind != "multi_label_classification"):
            raise DataError("the label is missing", where=row.where)
        return value

    def _name(self, value: object, where: str) -> str:
        form = kind_of_value(value)
        if form not in ("a string", "a number", "a boolean"):
            raise DataError(f"the label is {form}, not a name", where=where, hint="write a string or a number")
        self._form = self._form or form
        if form != self._form:
            earlier_form = f"{self._form.removeprefix('a ')}s"
            raise DataError(f"the label is {form}, but earlier labels are {earlier_form}", where=where)
        if isinstance(value, str):
            return self._checked_name(value.strip(), where)
        if value == IGNORE or (value == -1 and not self._has_negatives):
            hint = "remove the row, or rename the class"
            raise DataError(f"the label is {value:g}, which stands for a missing label", where=where, hint=hint)
        if isinstance(value, float):
            if math.isnan(value):
                raise DataError("the label is missing", where=where)
            if not value.is_integer():
                hint = f'to train on numbers, set {_KIND_KEY} = "{REGRESSION}"'
                if self._are_lists:
                    hint = "list the names of the row's labels, or a 0 or 1 for each class"
                raise DataError(f"the label {value:g} is not a whole number", where=where, hint=hint)
            return str(int(value))
        return str(value).lower()

    def _checked_name(self, name: str, where: str) -> str:
        if not name:
            raise DataError("the label is empty", where=where)
        if name in (*_MISSING_LABELS, str(IGNORE)) or (name == "-1" and not self._has_negatives):
            hint = "remove the row, or rename the class"
            raise DataError(f"the label is '{name}', which stands for a missing label", where=where, hint=hint)
        if len(name) > LONGEST_NAME:
            hint = f"if the column is the text, set {LABEL_KEY} to the column of labels"
            raise DataError(f"the label is too long: {len(name):,} characters", where=where, hint=hint)
        refuse_surrogates(name, where)
        number = _as_number(name) if self._reads_numbers and self._are_whole and "." in name else None
        return str(int(number)) if number is not None and number.is_integer() else name


def _separator_of(texts: Sequence[str]) -> tuple[str, bool]:
    """Return the separator of labels in these texts, and whether any of them holds several labels.

    Blanks and less usual separators count only if the labels recur in other texts, unlike the words of a name."""
    if usual := next((separator for separator in _SEPARATORS if any(separator in text for text in texts)), ""):
        return usual, True
    for separator in (_BLANK, *_OTHER_SEPARATORS):
        labels_by_text = {text: {label for label in text.split(separator) if label} for text in texts}
        text_counts = Counter(label for labels in labels_by_text.values() for label in labels)
        several = [labels for labels in labels_by_text.values() if len(labels) > 1]
        has_fewer_labels = len(text_counts) < len(labels_by_text)
        if has_fewer_labels or any(all(text_counts[label] > 1 for label in labels) for labels in several):
            return separator, bool(several)
    return _SEPARATORS[-1], False


def sort_class_names(names: Iterable[str], labels: Mapping[object, object] | None = None) -> tuple[str, ...]:
    """Sort class names: as a model's id2label, `labels`, does if it has the same ones, else by number or alphabet."""
    distinct_names = set(names)
    try:
        model_names = [str(name) for _, name in sorted((labels or {}).items(), key=lambda item: int(str(item[0])))]
    except ValueError:
        model_names = []
    if len(model_names) == len(distinct_names) and set(model_names) == distinct_names:
        return tuple(model_names)
    try:
        return tuple(sorted(distinct_names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(distinct_names))


def number_of(value: object, subject: str, where: str) -> float:
    """Return a finite number, also from a string. Raises DataError for any other value, which is called `subject`."""
    if isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value):
        value = value.replace(",", ".")
    number = _as_number(value)
    if number is None:
        shown_value = f"'{one_line(value, 40)}'" if isinstance(value, str) else kind_of_value(value)
        raise DataError(f"{subject} is {shown_value}, not a number", where=where)
    if not abs(number) <= LARGEST_TARGET:
        raise DataError(f"{subject} is not a finite number", where=where)
    return number


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _flagged_columns(row: Row, columns: Iterable[str]) -> list[str]:
    """Return the columns of classes whose value in this row is 1. Raises DataError for values other than 0 and 1."""
    names = []
    for column in columns:
        value = value_of(row, column)
        if (flag := _flag_of(value)) is None:
            shown_value = "no value" if value in (None, "") else f"'{one_line(str(value), 20)}'"
            hint = "remove the row, or write 0 or 1"
            problem = f"the class '{one_line(column, 40)}' has {shown_value} instead of 0 or 1"
            raise DataError(problem, where=row.where, hint=hint)
        if flag:
            names.append(column)
    return names


def _flag_of(value: object) -> bool | None:
    """Return a 0 or 1 as a bool, also if it is a string, as in a CSV; None for other values."""
    if isinstance(value, str):
        return _WRITTEN_FLAGS.get(value.strip().lower())
    return bool(value) if _is_zero_or_one(value) else None


def _is_zero_or_one(value: object) -> bool:
    return isinstance(value, int | float) and value in (0, 1)


def _width_of(values: Sequence[object]) -> int:
    """Return the common length of lists that hold a 0 or 1 for each class; 0 if the values are not such lists."""
    lists = [value for value in values if isinstance(value, list | tuple)]
    widths = {len(value) for value in lists}
    flags = [flag for value in lists for flag in value]
    if len(widths) != 1 or len(lists) < len(values) or not all(map(_is_zero_or_one, flags)):
        return 0
    return widths.pop() if max(widths) > 1 else 0


def _is_span(value: object) -> bool:
    """Return whether the value is a span of a text: [0, 3, "PER"] of doccano, or an object with a start."""
    if isinstance(value, Mapping):
        return any(name in value for name in _SPAN_START_KEYS)
    return isinstance(value, list | tuple) and len(value) == 3 and all(type(bound) is int for bound in value[:2])


def _parse_written(text: str, where: str) -> object:
    """Parse a string that looks like a list or an object. Raises DataError if it cannot be parsed."""
    if not _WRITTEN_LIST.fullmatch(text):
        return text
    value = written_value(text)
    if isinstance(value, set):
        value = sorted(value, key=str)
    if not isinstance(value, list | tuple | dict):
        hint = 'write a list as JSON, ["heat", "light"], and a single name without brackets'
        problem = f"the label '{one_line(text, 40)}' looks like a list, but cannot be read as one"
        raise DataError(problem, where=where, hint=hint)
    return parsed_labels(value, where)


def _labels_of_object(value: Mapping[str, object], where: str) -> object:
    """Return the label of {"label": "joy"}, or the names whose value is 1 in the `cats` of spaCy."""
    if "label" in value and value.keys() <= {"label", "score"}:
        return value["label"]
    # Parquet has null for names that only other rows have.
    flags = {name: flag for name, flag in value.items() if flag is not None}
    if not all(isinstance(flag, int | float) for flag in flags.values()):
        return value
    _refuse_fractions(flags, where)
    return [name for name, flag in flags.items() if flag]


def _labels_of_objects(values: Sequence[Mapping[str, object]], where: str) -> object:
    """Return the labels in a list such as [{"label": "joy", "score": 0.9}]. Scores of several must be 0 or 1."""
    if any(map(_is_span, values)) or not all("label" in value for value in values):
        return values
    scores = {str(value["label"]): value.get("score", 1) for value in values}
    if len(values) > 1:
        _refuse_fractions(scores, where)
        return [value["label"] for value in values if value.get("score", 1)]
    return [values[0]["label"]]


def _refuse_fractions(flags: Mapping[str, object], where: str) -> None:
    if name := next((name for name, flag in flags.items() if not _is_zero_or_one(flag)), ""):
        problem = f"the label '{one_line(name, 40)}' is {one_line(str(flags[name]), 20)} instead of 0 or 1"
        raise DataError(problem, where=where, hint="write 1 for each class that a row has, and 0 for all other classes")


def _refuse_codes(values: Sequence[object], where: str, column: str) -> None:
    """Raise DataError if decimal numbers in strings may be versions or codes, because the column has no usual name for
    numbers, or the numbers are written with different digits."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    decimal_counts = {len(text.partition(".")[2]) for text in texts}
    unusual = next((text for text in texts if str(float(text)) != text and "." in text and len(decimal_counts) > 1), "")
    if texts and (unusual or column.strip().lower() not in _NUMBER_COLUMNS):
        example = unusual or next(text for text in texts if "." in text)
        problem = f"'{one_line(example, 20)}' in the column '{one_line(column, 40)}' may be a number or a name"
        hint = f'set {_KIND_KEY} to "{SINGLE_LABEL}" for classes or to "{REGRESSION}" for numbers'
        raise DataError(problem, where=where, hint=hint)


def _refuse_ambiguous(values: Sequence[object], where: str, column: str) -> None:
    """Raise DataError for strings that may each hold several labels, and for numbers with a decimal comma."""
    texts = list(dict.fromkeys(value.strip() for value in values if isinstance(value, str)))
    shown_column, hint = one_line(column, 40), f'to use each value as a class name, set {_KIND_KEY} = "{SINGLE_LABEL}"'
    if any("," in text for text in texts) and all(map(_DECIMAL_COMMA.fullmatch, texts)):
        example = next(text for text in texts if "," in text)
        problem = f"the column '{shown_column}' holds numbers with a comma, such as '{example}'"
        hint = f'to read the values as numbers, set {_KIND_KEY} = "{REGRESSION}"; {hint}'
        raise DataError(problem, where=where, hint=hint)
    for separator in _SEPARATORS:
        parts = {text: {part.strip() for part in text.split(separator)} for text in texts}
        counts = Counter(part for labels in parts.values() for part in labels)
        # A name with a comma in it is one name, unless other rows have its parts.
        several = ((text, labels) for text, labels in parts.items() if len(labels) > 1)
        example = next((text for text, labels in several if all(counts[label] > 1 for label in labels)), "")
        if example:
            problem = f"the column '{shown_column}' may hold several labels per row, such as '{one_line(example, 40)}'"
            hint = f"to split the values at '{separator}', set {_KIND_KEY} = \"{MULTI_LABEL}\"; {hint}"
            raise DataError(problem, where=where, hint=hint)
