"""One row of a table, what is said of columns and values that are not as they should be, and what the columns say that
the rows are: conversations, an input and its answer, tagged words; and rows that nothing here learns from.

Names of columns decide on the kind, not whether the values can be read: rows that cannot are refused by the task that
reads their kind, and are no texts because of it.
"""

import ast
import difflib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tui_trainer.data.columns.usual_names import (
    ASKED,
    CONVERSATION_NAMES,
    CONVERSATIONS,
    SENTENCES,
    SUMMARISED,
    TAG_COLUMNS,
    WORD_COLUMNS,
)
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

AUTO = "auto"
SHOWN_COLUMNS = 12
_NUMPY_STRINGS = re.compile(r"""(['"])\s+\1""")  # Python joins them into one
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


_TAG = re.compile("O|[BIELSUM]-.+")
_MEDIA = {
    **dict.fromkeys(("image", "images", "image_path", "image_paths", "pixel_values"), "images"),
    **dict.fromkeys(("audio", "audios"), "sounds"),
    **dict.fromkeys(("video", "videos"), "videos"),
}
_NOT_YET = "are not trained on yet"
_LEAVE_OUT = "leave the row out: the model would be trained blind"
_MARK = re.compile("<(?:image|video|audio)>")  # one look for all three: it is taken at each row
_MARKS = {"<image>": "</image>", "<video>": "</video>", "<audio>": "</audio>"}


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


def is_id(name: str) -> bool:
    """Whether a column is named as those are that number the rows, or say whose they are; pandas' "Unnamed: 0" too."""
    name = name.strip().lower()
    return name in ("id", "idx", "index", "") or name.endswith("_id") or name.startswith("unnamed:")


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


@dataclass(frozen=True, slots=True)
class RowsOf:
    """`what` the rows are, the `columns` that say so, and the `task` that reads them."""

    what: str
    columns: tuple[str, ...]
    task: str
    written: "RowsOf | None" = None
    """What they are to a model that writes its answers."""

    def refused(self, where: str) -> DataError:
        """What a task says that reads texts."""
        reads = f'task.type = "{self.task}" reads them'
        if self.task == "seq2seq":
            reads += ", or chat with data.text_column and data.target_column"
        if self.written:
            reads += f", or {self.written.task}, which writes the answers"
        hint = f"{reads}; a column to learn as text is named in data.text_column"
        return DataError(f"the rows are {self.what} ({listed(self.columns)}), not texts", where=where, hint=hint)


def kind_of_rows(head: Sequence[Row]) -> RowsOf | None:
    """What the rows are, where their columns tell; None for plain texts, with labels or without."""
    by_name = _columns_with_values(head)

    def beside(first: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
        pairs = ((one, other) for one, others in first.items() for other in others)
        return next(((by_name[one], by_name[other]) for one, other in pairs if {one, other} <= by_name.keys()), None)

    for name in CONVERSATION_NAMES:
        if name in by_name and (name in CONVERSATIONS or _is_structured(head, by_name[name])):
            return RowsOf("conversations", (by_name[name],), "chat")
    if found := beside(ASKED):
        written = RowsOf("questions with their answers", found, "chat")
        if "context" in by_name and found[0] == by_name.get("question") and _are_places(head, found[1]):
            columns = (found[0], by_name["context"], found[1])
            return RowsOf("questions whose answers stand in a context", columns, "question_answering", written)
        return written
    if "translation" in by_name and _is_structured(head, by_name["translation"]):
        return RowsOf("translations", (by_name["translation"],), "seq2seq")
    if found := beside(SUMMARISED):
        return RowsOf("inputs with their answers", found, "seq2seq")
    if (found := beside(dict.fromkeys((*WORD_COLUMNS, *SENTENCES), TAG_COLUMNS))) and _are_tags(head, *found):
        return RowsOf("words with their tags", found, "token_classification")
    return None


def refuse_unlearnt(head: Sequence[Row]) -> None:
    """Raises DataError for rows of a kind that no task learns from: preferences, images, sounds, questions to choose
    an answer to, triplets of texts. It is asked where no column is named.
    """
    for what, columns, hint in _unlearnt(_columns_with_values(head), head):
        message = f"the rows are {what} ({listed(columns)}), which no task learns from yet"
        raise DataError(message, where=file_of(head), hint=hint)


def refuse_media(row: Row, known: frozenset[str]) -> None:
    """Raises DataError for a row with images, sounds or videos in a column that is not `known` from the first rows."""
    if known.issuperset(row.values):
        return
    for name, value in row.values.items():
        if name not in known and _is_medium(name, value):
            what = _MEDIA[name.strip().lower()]
            message = f"the row has {what} ('{listed([name])}')"
            raise DataError(message, where=row.where, hint=f"{what} {_NOT_YET}; {_LEAVE_OUT}")


def media_in(kind: str) -> str:
    """`images`, `sounds` or `videos` for a kind of part such as `image_url` or `input_audio`; empty for others."""
    return next((what for name, what in _MEDIA.items() if name in kind.split("_")), "")


def refuse_marks(text: str, where: str) -> None:
    """Raises DataError for a text that stands beside an image: the mark of its place in it, and no element of XML."""
    if not _MARK.search(text):
        return
    for mark, end in _MARKS.items():
        if mark in text and end not in text:
            message = f"the text holds {mark}, the place of something that is no text"
            what = _MEDIA[mark.strip("<>")]
            raise DataError(message, where=where, hint=f"{what} {_NOT_YET}; {_LEAVE_OUT}")


def _columns_with_values(head: Sequence[Row]) -> dict[str, str]:
    """The columns that are not null throughout, by their names in lower case."""
    names = reversed(columns_of(head))
    return {name.strip().lower(): name for name in names if any(row.values.get(name) is not None for row in head)}


def _unlearnt(by_name: Mapping[str, str], head: Sequence[Row]) -> Iterator[tuple[str, Sequence[str], str]]:
    """(what the rows are, the columns that say so, what to do)"""
    better = [name for name in by_name if "chosen" in name]
    worse = [name for name in by_name if "rejected" in name]
    names = "name the columns to learn from in data.text_column"
    if better and worse:
        hint = f"{names} and data.target_column, for instance those of the chosen answers"
        yield "preferences, a better and a worse answer each", [by_name[better[0]], by_name[worse[0]]], hint
    rated = kind_of_rows(head)
    marks = [by_name[name] for name in ("label", "kto_tag") if name in by_name]
    if (
        rated
        and (rated.written or rated).task == "chat"
        and any(row.values.get(name) is False for row in head for name in marks)
    ):
        hint = "leave out the rows that say false, and the column, to learn the good ones"
        yield "preferences, answers marked good or bad", [*rated.columns, *marks[:1]], hint
    media = [name for name in columns_of(head) if any(_is_medium(name, row.values.get(name)) for row in head)]
    if media:
        what = _MEDIA[media[0].strip().lower()]
        yield f"{what} with their texts", media, f"{what} {_NOT_YET}; {names} to learn from the texts alone"
    choices = [by_name[name] for name in ("choices", "options", "endings") if name in by_name]
    if "question" in by_name and choices and _is_structured(head, choices[0]):
        hint = "write question and choices into one text, and the right one as the answer"
        yield "questions with choices", [by_name["question"], *choices], hint
    triplet = [by_name[name] for name in ("anchor", "positive", "negative") if name in by_name]
    if len(triplet) >= 2 and "anchor" in by_name:
        yield "texts that are near to each other or not, for embeddings", triplet, names


def _is_medium(name: str, value: object) -> bool:
    return name.strip().lower() in _MEDIA and value not in (None, "", [], ())


def _are_tags(head: Sequence[Row], words: str, tags: str) -> bool:
    """Lists of words, or texts with a tag for each word. A label of a word, or a list of those of a text, is no tag."""
    is_sentence = words.strip().lower() in SENTENCES
    if not is_sentence and (_is_structured(head, words) or tags.strip().lower() not in ("label", "labels")):
        return True
    pairs = [(row.values.get(words), row.values.get(tags)) for row in head]
    counts = [
        (len(text.split()), len(of.split())) for text, of in pairs if isinstance(text, str) and isinstance(of, str)
    ]
    if len(counts) < len(pairs) or max(counts)[0] < 2 or any(words != tags for words, tags in counts):
        return False
    return not is_sentence or all(_TAG.fullmatch(tag) for _, tags in pairs for tag in str(tags).split())


def _are_places(head: Sequence[Row], name: str) -> bool:
    """Answers with the place where they begin in their context, in any of the forms that SQuAD has had."""
    values = (value for row in head if (value := row.values.get(name)) is not None)
    return any("answer_start" in str(value) for value in values)


def _is_structured(head: Sequence[Row], name: str) -> bool:
    """Lists or objects, or texts that are written as such."""
    values = [value for row in head if (value := row.values.get(name)) is not None]
    return any(
        isinstance(value, list | Mapping) or str(value).lstrip()[:2] in ("[{", "[[", "['", '["') for value in values
    )
