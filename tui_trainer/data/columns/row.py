"""One row of a table, and what is said of columns and values that are not as they should be."""

import ast
import difflib
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

AUTO = "auto"
SHOWN_COLUMNS = 12
_NUMPY_STRINGS = re.compile(r"""(['"])\s+\1""")  # Python joins them into one
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, and where it stands: "train.jsonl, line 12"."""

    where: str
    values: Mapping[str, object]


def file_of(head: Sequence[Row]) -> str:
    """The file that rows stand in; rows of a sample stand in none, and the first of them is named."""
    return head[0].where.rpartition(", ")[0] or head[0].where


def columns_of(rows: Iterable[Row]) -> list[str]:
    """The names of all columns, in the order in which they were met."""
    return list(dict.fromkeys(chain.from_iterable(row.values for row in rows)))


def usual_columns(usual: Iterable[str], names: Sequence[str]) -> list[str]:
    """Those of the usual names that are there, as the table writes them."""
    return [name for wanted in usual for name in names if name.strip().lower() == wanted]


def kind_of_value(value: object) -> str:
    """As JSON names it: `a list`, `null`."""
    return _KINDS.get(type(value), "a number" if isinstance(value, int | float) else "a value of another kind")


def written_value(text: str) -> object:
    """What a text stands for that is JSON, or a list or an object as Python prints it; None for what is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return None if _NUMPY_STRINGS.search(text) else python_literal(text)
    except ValueError:
        return None


def python_literal(text: str) -> object:
    """What Python prints so. Raises ValueError for what it never prints."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return ast.literal_eval(text.strip())
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def value_of(row: Row, column: str) -> object:
    """Raises DataError for a row without that column."""
    if column not in row.values:
        hint = f"columns found: {listed(row.values)}"
        raise DataError(f"the row has no column '{one_line(column, 40)}'", where=row.where, hint=hint)
    return row.values[column]


def string_of(row: Row, column: str) -> str:
    """Raises DataError for a row without that column, and for what is no string."""
    value = value_of(row, column)
    if not isinstance(value, str):
        what = f"the column '{one_line(column, 40)}' is {kind_of_value(value)}, not a string"
        raise DataError(what, where=row.where)
    return value


def refuse_bad_answer(row: Row) -> None:
    """Raises DataError for an answer that its label calls a bad one, as data sets for KTO have them."""
    for name in ("label", "kto_tag"):
        if name in row.values and str(row.values[name]).strip().lower() == "false":
            hint = "a model would learn it as a good one: leave the row out"
            raise DataError(f"the column '{name}' says false: the answer is a bad one", where=row.where, hint=hint)


def refuse_rejected(row: Row) -> None:
    """Raises DataError for a row that an annotator did not accept, as Prodigy writes it."""
    if row.values.get("answer") in ("reject", "ignore"):
        raise DataError("the annotator did not accept the row (answer)", where=row.where, hint="leave it out")


def refuse_missing(names: Sequence[str], label: str, **wanted: str) -> None:
    """Raises DataError for a column that a setting names, `text` as data.text_column, and the file has not."""
    for key, name in wanted.items():
        if name not in (AUTO, "", *names):
            raise missing_column(name, label, names, key=f"data.{key}_column")


def missing_column(wanted: str, label: str, names: Iterable[str], *, key: str = "data.text_column") -> DataError:
    """There is no such column in the file `label`, and the nearest one; `key` is the setting that names it."""
    known = list(names)
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    guess = f"did you mean '{one_line(near[0], 40)}'? " if near else ""
    hint = f"{guess}columns found: {listed(known)}; name the right one in {key}"
    return DataError(f"there is no column '{one_line(wanted, 40)}'", where=label, hint=hint)


def refuse_doubles(names: Sequence[str], where: str) -> None:
    """Raises DataError for two columns of one name."""
    if doubles := [name for place, name in enumerate(names) if name in names[:place]]:
        shown = one_line(doubles[0], 40) or "(no name)"
        raise DataError(f"two columns are named '{shown}'", where=where, hint="rename one of them")


def listed(names: Iterable[str]) -> str:
    """Safe to show; a column without a name, which an index has in some files, is said to have none."""
    shown = [one_line(name, 30) or "(no name)" for name in names]
    more = len(shown) - SHOWN_COLUMNS
    return ", ".join([*shown[:SHOWN_COLUMNS], *([f"{more:,} more"] if more > 0 else [])]) or "none"
