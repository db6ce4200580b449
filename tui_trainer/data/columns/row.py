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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from tui_trainer.data.columns.usual_names import (
    CONVERSATION_NAMES,
    CONVERSATIONS,
    INPUTS_AND_ANSWERS,
    SENTENCES,
    SPAN_COLUMNS,
    TAG_COLUMNS,
    WORD_COLUMNS,
)
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

AUTO = "auto"
SHOWN_COLUMNS = 12
_PLACE_IN_FILE = re.compile(r", (?:line|item|row) [\d,]+")
_NUMPY_STRINGS = re.compile(r"""(['"])\s+\1""")  # Python joins them into one
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


_TAG = re.compile("O|[BIELSUM]-.+")
_MEDIA = {
    **dict.fromkeys(("image", "images", "image_path", "image_paths", "pixel_values"), "images"),
    **dict.fromkeys(("audio", "audios"), "sounds"),
    **dict.fromkeys(("video", "videos"), "videos"),
}
_SPEAKER = re.compile(r"(?:^|\s)(system|user|human|assistant)\s*:", re.IGNORECASE)
_LIST = re.compile(r"\s*(?:array\()?\[\s*[\[{'\"]")
_NOT_YET = "are not supported"
_LEAVE_OUT = "remove the row: the model would only get its text"
_MARK = re.compile("<(?:image|video|audio)>")  # one look for all three: it is taken at each row
_MARKS = {"<image>": "</image>", "<video>": "</video>", "<audio>": "</audio>"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, and where it stands: "train.jsonl, line 12"."""

    where: str
    values: Mapping[str, object]


def file_of(head: Sequence[Row]) -> str:
    """The file that rows stand in; rows of a sample stand in none, and the first of them is named."""
    return _PLACE_IN_FILE.split(head[0].where)[0]


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
    """As JSON names it: `a list`, `null`; other values by their type: `a value of type Decimal`."""
    return _KINDS.get(
        type(value), "a number" if isinstance(value, int | float) else f"a value of type {type(value).__name__}"
    )


def as_one_text(value: object) -> str:
    """What to do with a list or an object that should be a text."""
    texts = " ".join(texts_in(value))
    return f'write it as one text: "{one_line(texts, 60)}"' if texts else "write it as text"


def texts_in(value: object) -> Iterator[str]:
    """The strings within lists and objects."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from texts_in(part)


def transposed(value: object) -> object:
    """An object of lists as a list of objects: a Sequence of `datasets` stands so in Parquet."""
    if isinstance(value, list) or not isinstance(value, Mapping):
        return value
    if not all(isinstance(one, list) for one in value.values()):
        return value
    lengths = {len(one) for one in value.values()}
    if len(lengths) != 1:
        return value
    rows = zip(*value.values(), strict=True)
    return [{name: one for name, one in zip(value, row, strict=True) if one is not None} for row in rows]


def said_by(text: object) -> list[tuple[str, str]]:
    """The speakers of a text that names them, "USER: ... ASSISTANT: ...", with what they say; none for other texts."""
    if not isinstance(text, str):
        return []
    _, *parts = _SPEAKER.split(text)
    said = [(who.lower(), what.strip()) for who, what in zip(parts[::2], parts[1::2], strict=True)]
    return said if {who for who, _ in said} >= {"assistant"} and len({who for who, _ in said}) > 1 else []


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


class _WithoutArrays(ast.NodeTransformer):
    """Puts lists in the place of numpy's arrays: array(['a'], dtype=object)."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
        return self.visit(node.args[0]) if is_array else node


def python_literal(text: str) -> object:
    """What Python prints so, numpy's arrays as lists. Raises ValueError for what it never prints."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            found = ast.parse(text.strip(), mode="eval")
            return ast.literal_eval(_WithoutArrays().visit(found) if "array(" in text else found)
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
        raise DataError(what, where=row.where, hint=as_one_text(value) if isinstance(value, list | Mapping) else "")
    return value


def refuse_bad_answer(row: Row) -> None:
    """Raises DataError for an answer that its label calls a bad one, as data sets for KTO have them."""
    for name in ("label", "kto_tag"):
        if name in row.values and str(row.values[name]).strip().lower() == "false":
            hint = "remove the row: it would be trained on like a good answer"
            raise DataError(f"the column '{name}' is false: the answer is marked as bad", where=row.where, hint=hint)


def refuse_rejected(row: Row) -> None:
    """Raises DataError for a row that an annotator did not accept, as Prodigy writes it."""
    if row.values.get("answer") in ("reject", "ignore"):
        raise DataError(
            "the column 'answer' says that the annotator did not accept the row", where=row.where, hint="remove the row"
        )


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
    hint = f"{guess}columns found: {listed(known)}; set {key} to the right one"
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
    """`what` the rows are, the `columns` that say so, and the `tasks` that read them, the first that a model can."""

    what: str
    columns: tuple[str, ...]
    tasks: tuple[str, ...]

    def refused(self, where: str) -> DataError:
        """What a task says that reads texts."""
        reads = " or ".join(f'task.type = "{task}"' for task in self.tasks)
        hint = f"set {reads} to train on them, or set data.text_column to the column to train on as text"
        return DataError(f"the rows are {self.what} ({listed(self.columns)}), not texts", where=where, hint=hint)


def kind_of_rows(head: Sequence[Row]) -> RowsOf | None:
    """What the rows are, where their columns tell; None for plain texts, with labels or without."""
    by_name = _columns_with_values(head)
    for name in CONVERSATION_NAMES:
        if name in by_name and (name in CONVERSATIONS or is_structured(head, by_name[name], transcripts=True)):
            return RowsOf("conversations", (by_name[name],), ("chat",))
    for usual in INPUTS_AND_ANSWERS:
        known = [[by_name[name] for name in some if name in by_name] for some in (usual.inputs, usual.targets)]
        if not all(known):
            continue
        found = [names[0] for names in known]
        # Answers with the place where they begin in their context, in any of the forms that SQuAD has had.
        has_places = any("answer_start" in str(row.values.get(found[1])) for row in head)
        if "context" in by_name and found[0] == by_name.get("question") and has_places:
            columns = (found[0], by_name["context"], found[1])
            tasks = ("question_answering", "chat", "seq2seq")
            return RowsOf("questions with answers from a context", columns, tasks)
        return RowsOf("pairs of input and answer", tuple(found), ("chat", "seq2seq"))
    if "translation" in by_name and is_structured(head, by_name["translation"]):
        return RowsOf("translations", (by_name["translation"],), ("seq2seq", "chat"))
    for words, tags in product((*WORD_COLUMNS, *SENTENCES, "sentences"), (*TAG_COLUMNS, *SPAN_COLUMNS)):
        if {words, tags} <= by_name.keys() and _are_tags(head, by_name[words], by_name[tags]):
            return RowsOf("words with their tags", (by_name[words], by_name[tags]), ("token_classification",))
    return None


def refuse_unlearnt(head: Sequence[Row]) -> None:
    """Raises DataError for rows of a kind that no task learns from: preferences, images, sounds, questions to choose
    an answer to, triplets of texts. It is asked where no column is named.
    """
    for what, columns, hint in _unlearnt(_columns_with_values(head), head):
        message = f"the rows are {what} ({listed(columns)}), which no task supports yet"
        raise DataError(message, where=file_of(head), hint=hint)


class LateColumns:
    """Columns that no row before had: `look` takes a row with some, and raises DataError where rows would have been
    read otherwise with them."""

    def __init__(self, known: Iterable[str], look: Callable[[Row], None]) -> None:
        self._known, self._look = frozenset(known), look
        self._refused: dict[frozenset[str], DataError] = {}

    def see(self, row: Row) -> None:
        """Raises DataError with the place of the row."""
        if self._known.issuperset(row.values):
            return
        refuse_media(row, self._known)
        has = frozenset(name for name, value in row.values.items() if value not in (None, "", [], {}))
        new = has - self._known
        if new and new not in self._refused:
            try:
                self._look(row)
                self._known |= new
            except DataError as error:
                self._refused[new] = error
        if new in self._refused:
            problem = self._refused[new].problems[0]
            noun, causes = ("column", "causes") if len(new) == 1 else ("columns", "cause")
            message = (
                f"no earlier row has the {noun} {listed(sorted(new))}, which {causes} this problem: {problem.message}"
            )
            raise DataError(message, where=row.where, hint=problem.hint)


def refuse_media(row: Row, known: frozenset[str]) -> None:
    """Raises DataError for a row with images, sounds or videos in a column that is not `known` from the first rows."""
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
            message = f"the text contains {mark}, a placeholder for something that is not text"
            what = _MEDIA[mark.strip("<>")]
            raise DataError(message, where=where, hint=f"{what} {_NOT_YET}; {_LEAVE_OUT}")


def _columns_with_values(head: Sequence[Row]) -> dict[str, str]:
    """The columns that are not null throughout, by their names in lower case."""
    names = reversed(columns_of(head))
    return {name.strip().lower(): name for name in names if any(row.values.get(name) is not None for row in head)}


def _unlearnt(by_name: Mapping[str, str], head: Sequence[Row]) -> Iterator[tuple[str, Sequence[str], str]]:
    """(what the rows are, the columns that say so, what to do)"""
    better, worse = (sorted((name for name in by_name if word in name), key=len) for word in ("chosen", "rejected"))
    names = "set data.text_column to the columns to train on"
    if better and worse:
        columns = [by_name[better[0]], by_name[worse[0]]]
        yield "preferences with a better and a worse answer", columns, _to_learn_better(head, by_name, columns[0])
    several = [name for name in ("questions",) if name in by_name and is_structured(head, name)]
    if several:
        first = next((next(texts_in(row.values.get(by_name["questions"])), "") for row in head), "")
        row = f'{{"question": "{one_line(first, 40)}", "context": "...", "answer": "..."}}'
        yield "lists of questions", [by_name["questions"]], f"write one row per question: {row}"
    rated = kind_of_rows(head)
    marks = [by_name[name] for name in ("label", "kto_tag") if name in by_name]
    if rated and "chat" in rated.tasks and any(row.values.get(name) is False for row in head for name in marks):
        hint = "to train on the good answers, remove the rows marked false, then the column of these marks"
        yield "preferences with answers marked as good or bad", [*rated.columns, *marks[:1]], hint
    media = [name for name in columns_of(head) if any(_is_medium(name, row.values.get(name)) for row in head)]
    if media:
        what = _MEDIA[media[0].strip().lower()]
        yield f"{what} with their texts", media, f"{what} {_NOT_YET}; to train on the texts only, set data.text_column"
    choices = [by_name[name] for name in ("choices", "options", "endings") if name in by_name]
    if "question" in by_name and choices and is_structured(head, choices[0]):
        hint = "write the question and its choices into one text, and the right choice as the answer"
        yield "questions with choices", [by_name["question"], *choices], hint
    triplet = [by_name[name] for name in ("anchor", "positive", "negative") if name in by_name]
    if len(triplet) >= 2 and "anchor" in by_name:
        yield "similar and dissimilar texts, for embeddings", triplet, names


def _to_learn_better(head: Sequence[Row], by_name: Mapping[str, str], chosen: str) -> str:
    """The settings that learn the better answers of preferences."""
    values = [row.values.get(chosen) for row in head]
    whole = [chosen] if any(isinstance(value, list) and len(value) > 1 for value in values) else []
    talks = [by_name[name] for name in CONVERSATION_NAMES if name in by_name]
    whole = [name for name in talks if any("assistant" in str(row.values.get(name)) for row in head)] or whole
    asked = [by_name[name] for usual in INPUTS_AND_ANSWERS for name in usual.inputs if name in by_name]
    settings = f'data.text_column = "{one_line((whole or [*talks, *asked, chosen])[0], 40)}"'
    if not whole and (talks or asked):
        settings += f' and data.target_column = "{one_line(chosen, 40)}"'
    return f"set {settings} to train on the better answers only"


def _is_medium(name: str, value: object) -> bool:
    return name.strip().lower() in _MEDIA and value not in (None, "", [], ())


def _are_tags(head: Sequence[Row], words: str, tags: str) -> bool:
    """Lists of words, or texts with a tag for each word. A label of a word, or a list of those of a text, is no tag.
    Lists of words may have spans, which lists of sentences have as well."""
    if words.strip().lower() == "sentences":
        lists = (value for row in head if isinstance(value := row.values.get(words), list))
        return any(isinstance(one, list) for value in lists for one in value)
    if tags.strip().lower() not in TAG_COLUMNS:
        return is_structured(head, words) and is_structured(head, tags)
    is_sentence = words.strip().lower() in SENTENCES
    if not is_sentence and (is_structured(head, words) or tags.strip().lower() not in ("label", "labels")):
        return True
    pairs = [(row.values.get(words), row.values.get(tags)) for row in head]
    counts = [
        (len(text.split()), len(of.split())) for text, of in pairs if isinstance(text, str) and isinstance(of, str)
    ]
    if len(counts) < len(pairs) or max(counts)[0] < 2 or any(words != tags for words, tags in counts):
        return False
    return not is_sentence or all(_TAG.fullmatch(tag) for _, tags in pairs for tag in str(tags).split())


def is_structured(head: Sequence[Row], name: str, *, transcripts: bool = False) -> bool:
    """Lists or objects, or texts that are written as such; with `transcripts` also texts that name their speakers."""
    values = [value for row in head if (value := row.values.get(name)) is not None]
    return any(
        isinstance(value, list | Mapping)
        or _LIST.match(str(value)) is not None
        or (transcripts and bool(said_by(value)))
        for value in values
    )
