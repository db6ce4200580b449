"""Which column of a table holds the text, and which two hold an input and its answer, or two texts that a classifier
reads together.

Columns that are named are taken as they are. For one text "auto" takes, from the first rows of a file: the column
`text`; the column that an earlier file of the same source gave; one of the usual names; the column whose strings are by
far the longest, the only one in most tables. For two texts it takes the first pair of usual names that is there.
Anything else is a question for the user, not a guess: a name, a class or an address is no text, and beside lists and
objects the text may be in those. Rows of another kind (`kind_of_rows`) have none.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    as_one_text,
    columns_of,
    file_of,
    is_id,
    kind_of_rows,
    kind_of_value,
    listed,
    missing_column,
    refuse_bad_answer,
    refuse_missing,
    refuse_unlearnt,
    string_of,
    texts_in,
    transposed,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.usual_names import (
    ABOUT_A_TEXT,
    ANSWER_NAMES,
    INPUTS_AND_ANSWERS,
    TEXT_PAIRS,
    USUAL_NAMES,
)
from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates, with_plain_line_ends
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes, quantity

LOOKED_ROWS = 100
LOOKED_CHARACTERS = 4 * MIB
FAR_LONGER = 4  # times the mean length of the next column
_FIRST_WITHOUT_BLANKS = "\u0e00"  # Thai and what follows: Chinese, Japanese
NUMBER = re.compile(r"\s*[-+]?[\d.,]+([eE][-+]?\d+)?\s*")

Strings = Mapping[str, Sequence[str]]  # of each column, the strings of the first rows; none where it holds no strings


TRANSLATION = "translation"
SECOND_TEXT_KEY = "data.text_pair_column"
# How lists of answers begin that pandas wrote into a CSV.
_WRITTEN = re.compile(r"""\s*(\{['"]text['"]:\s*(\[|array\()|\[['"])""")


class ColumnChoices:
    """What was chosen for each set of columns, so that the shards of one data set are read alike.

    `notes()` says it in words; `remark` adds what else was found out while reading.
    """

    def __init__(self, wanted: str, pair: str = "", *, has_answers: bool = True) -> None:
        self._wanted, self._pair = wanted, pair  # the column that is read beside it
        self._has_answers = has_answers  # whether another column could hold what is to be written
        self._chosen: dict[frozenset[str], str] = {}
        self._files: dict[frozenset[str], dict[str, None]] = {}
        self._remarks: list[str] = []

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns that were chosen so far, each once."""
        return tuple(dict.fromkeys(self._chosen.values()))

    def remark(self, text: str) -> None:
        self._remarks.append(text)

    def choose(self, head: Sequence[Row], without: Collection[str] = ()) -> str:
        """The column, by the first rows of a file; none of `without`. Raises DataError when there is none."""
        label = file_of(head)
        refuse_missing(columns_of(head), label, text=self._wanted)
        if without:
            head = [Row(row.where, {k: v for k, v in row.values.items() if k not in without}) for row in head]
        strings = strings_of(head)
        names = frozenset(strings)
        if names not in self._chosen:
            self._chosen[names] = self._find(label, strings, head)
        self._files.setdefault(names, {})[label] = None
        return self._chosen[names]

    def see_late(self, row: Row, head: Sequence[Row]) -> None:
        """Look at a row with columns that the first rows of its file do not have. Raises DataError where another one
        would be the text with it."""
        before, column = self.choose(head), self.choose([*head, row])
        if column != before:
            hint = f"set data.text_column to the column to read: {listed([before, column])}"
            raise DataError(
                f"from this row on, the text would be in the column '{one_line(column, 40)}'",
                where=row.where,
                hint=hint,
            )

    def notes(self) -> tuple[str, ...]:
        told = [
            _sentence(self._chosen[names], sorted(names - {self._chosen[names]}), [*files], self._pair)
            for names, files in self._files.items()
            if names != {"text"} or self._pair
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
        texts = {name: length for name, length in texts.items() if not is_id(name)} or texts
        for name in self._chosen.values():
            if name in texts:
                return name
        asks = any(usual_columns(usual.inputs, list(texts)) for usual in INPUTS_AND_ANSWERS if usual.is_question)
        if not asks and (name := next(iter(usual_columns(USUAL_NAMES, list(texts))), "")):
            return name
        structured = _structured_of(head, strings)
        name, likely = _by_length(texts | structured), likely_pair(head) if self._has_answers else ()
        # A number, a date or a single word is the name of something.
        if name in texts and (len(strings) == 1 or _holds_sentences(strings[name])) and not likely:
            return name
        written = {
            name: max(texts_in(transposed(row.values[name])), key=len, default="")
            for row in head[:1]
            for name in structured
            if name in row.values
        }
        if not texts:
            hint = f"columns found: {listed(strings)}" + (
                f"; write plain texts, {_as_row(written)}" if any(written.values()) else ""
            )
            raise DataError("no column holds text", where=label, hint=hint)
        what = "several columns could be the text" if len(texts | structured) > 1 else "no column is clearly the text"
        hint = f"{as_pair(likely)}; or " if likely else ""
        if self._has_answers and not likely and any(written.values()):
            shown = {name: strings[name][0] for name in texts if strings[name]} | written
            hint = f"to train on answers in lists or objects, write one row per answer, {_as_row(shown)}; or "
        hint += f"set data.text_column to one of them: {listed([*texts, *structured])}"
        raise DataError(what, where=label, hint=hint)


def _as_row(texts: Mapping[str, str]) -> str:
    """Return an example row with the first three of these texts."""
    row = {name: one_line(text, 40) for name, text in [*texts.items()][:3] if text}
    return f"such as {json.dumps(row, ensure_ascii=False)}"


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
        raise DataError(f"the text is longer than {limit}", where=where, hint="split it into several rows")
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


def likely_pair(head: Sequence[Row], *, sentences: bool = True) -> tuple[str, ...]:
    """The two columns that most likely hold an input and its answer, in their order; none where fewer hold texts.

    Ids and what describes a text are none of them; without `sentences` single words will do.
    """
    strings = strings_of(head)
    texts = {
        name: length
        for name, length in _columns_of_text(strings).items()
        if not is_id(name)
        and name.strip().lower() not in ABOUT_A_TEXT
        and (_holds_sentences(strings[name]) or not sentences)
    }
    longest = sorted(texts, key=lambda name: -texts[name])[:2]
    return tuple(name for name in texts if name in longest) if len(longest) == 2 else ()


def as_pair(columns: Sequence[str]) -> str:
    """The settings that make an input and its answer of two columns."""
    source, target = (one_line(name, 40) for name in columns)
    return f'set data.text_column = "{source}" and data.target_column = "{target}" to train on answers'


def _by_length(texts: Mapping[str, float]) -> str:
    """The only one, or the one that is far longer than the next."""
    ordered = sorted(texts, key=lambda name: -texts[name])
    if len(ordered) > 1 and texts[ordered[0]] < FAR_LONGER * texts[ordered[1]]:
        return ""
    return ordered[0] if ordered else ""


def _sentence(column: str, others: Sequence[str], files: Sequence[str], pair: str) -> str:
    more = len(files) - 1
    place = f"{files[0]} and {quantity(more, 'more file')}" if more else files[0]
    also = f" (other candidates: {listed(others)})" if others else ""
    shown = [f"'{one_line(name, 40)}'" for name in (column, pair) if name]
    are = "the text is in the column" if not pair else "the two texts are in the columns"
    return f"{are} {' and '.join(shown)} of {place}{also}"


def pair_of_texts(head: Sequence[Row]) -> tuple[str, str] | None:
    """The columns of two texts with the usual names of a pair; none where a column `text` is no part of it."""
    by_name = {name.strip().lower(): name for name in reversed(columns_of(head))}
    for names in TEXT_PAIRS:
        if all(
            name in by_name and any(isinstance(row.values.get(by_name[name]), str) for row in head) for name in names
        ):
            return None if "text" in by_name and "text" not in names else (by_name[names[0]], by_name[names[1]])
    return None


ALL_RIGHT = ("answers",)
"""Names of columns whose answers are all right, so that the first one is learned."""
# The keys of a part of one message, and of an answer with its place. Sources: the services of OpenAI and Anthropic;
# SQuAD, TyDi QA and Natural Questions.
_OF_A_PART = frozenset({"type", "text", "annotations", "citations", "cache_control"})
_OF_A_PLACE = frozenset(
    "text answer_start answer_end start end start_byte end_byte start_token end_token start_position end_position "
    "plaintext_start_byte plaintext_end_byte answer_id aliases".split()
)


def answers_in(value: object) -> tuple[list[Any], bool]:
    """Return the answers that a value holds, and whether they are alike: equivalent as far as their keys say.

    A list of strings, SQuAD's {"text": [...]}, TriviaQA's {"value": ..., "aliases": [...]}, or a list of objects with
    a text each. A text, and the parts of one message, are no list of answers.
    """
    if isinstance(value, Mapping):
        if isinstance(first := value.get("value"), str) and "aliases" in value:
            return [first], True
        texts = value.get("text", value.get("spans"))
        texts = [texts] if isinstance(texts, str) else texts if isinstance(texts, list) else []
        return texts, set(value) <= _OF_A_PLACE
    if not isinstance(value, list):
        return [], True
    objects = [one for one in value if isinstance(one, Mapping)]
    if not objects:
        return value, True
    if len(objects) < len(value) or not all(isinstance(one.get("text"), str) for one in objects):
        return [], True
    if all(set(one) <= _OF_A_PART for one in objects):
        return [], True
    return [one["text"] for one in objects], all(set(one) <= _OF_A_PLACE for one in objects)


def refuse_several(answers: Sequence[Any], column: str, where: str) -> None:
    """Raises DataError where there are several answers."""
    if len(answers) > 1:
        told = f"the column '{one_line(column, 40)}' has {len(answers)} answers, and none is marked as the right one"
        raise DataError(told, where=where, hint="keep the one to train on, or write one row per answer")


@dataclass(frozen=True, slots=True)
class Pair:
    """The columns of one table. Further texts are read `before` and `after` the input."""

    source: str
    target: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        return (*self.after, *self.before)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.source, *self.beside, self.target)))


class PairColumns:
    """`choose` looks at the first rows of a table, `read` takes input and answer from any of its rows."""

    def __init__(self, text_column: str, text_pair_column: str, target_column: str) -> None:
        self._text, self._target = text_column, target_column
        self._beside = tuple(filter(None, [text_pair_column]))
        self.pair = Pair("", "")
        self._is_written, self._several = False, 0
        self._notes: dict[str, str] = {}

    def choose(self, head: Sequence[Row]) -> None:
        """Raises DataError, which names the nearest column, where it cannot be told."""
        label, names = self._named(head)
        self.pair = self._find(label, names, head)
        answers = [row.values.get(self.pair.target) for row in head]
        # Elsewhere a list may be the text that is to be written.
        self._is_written = self.pair.target.strip().lower() in ("answers", "answer") and all(
            isinstance(answer, str) and _WRITTEN.match(answer) for answer in answers
        )
        pair = self.pair
        read = " and ".join(f"'{one_line(name, 40)}'" for name in (pair.source, *pair.beside))
        others = [name for name in names if name not in (*pair.columns, TRANSLATION)]
        unread = f" (not read: {listed(others)})" if others else ""
        of = f" of {label}" if label else ""
        is_guess = TRANSLATION in names and self._text == self._target == AUTO
        other = "; to translate in another direction, set data.text_column and data.target_column" if is_guess else ""
        self._notes[label] = f"the input is {read}{of}, the answer '{one_line(pair.target, 40)}'{unread}{other}"

    def choose_input(self, head: Sequence[Row]) -> None:
        """The same where there may be no answers: without a usual name, the column that holds the text."""
        _, names = self._named(head)
        found = Pair(self._text, "", after=self._beside)
        if self._text == AUTO:
            languages = languages_of(head)
            found = Pair(languages[0], "") if languages else usual_input(names)
        found = found if found.source else Pair(ColumnChoices(AUTO).choose(head), "")
        self.pair = replace(found, before=(), after=self._beside) if self._beside else found

    def read(self, row: Row) -> tuple[str, str]:
        """(input, answer) of one row. Raises DataError, with its place, for what is null, empty or no text."""
        refuse_bad_answer(row)
        source, target = self.read_input(row), self.pair.target
        row = opened(row)
        value = value_of(row, target)
        if isinstance(value, str) and self._is_written:
            value = _answers_of(value, target, row.where)
        texts, are_alike = answers_in(value)
        if not are_alike:
            refuse_several(texts, target, row.where)
        self._several += len(texts) > 1
        if texts or (value.get("text") if isinstance(value, Mapping) else value) == []:
            value = texts[0] if texts else ""
        return source, _checked(value, target, row.where)

    def read_input(self, row: Row) -> str:
        """The texts of an input follow each other with the names of their columns before them, as T5 was trained
        ("question: ... context: ..."). Source: Raffel et al., arXiv:1910.10683, appendix D.
        """
        row, pair = opened(row), self.pair
        source = _text_of(row, pair.source)
        # Alpaca has instructions that need no input.
        beside = [name for name in pair.beside if row.values.get(name) not in (None, "")]
        if beside:
            parts = [f"{pair.source}: {source}", *(f"{name}: {_text_of(row, name)}" for name in beside)]
            source = " ".join(parts)
        return source

    def notes(self) -> list[str]:
        if not self._several:
            return [*self._notes.values()]
        column = one_line(self.pair.target, 40)
        several = f"{quantity(self._several, 'row', 'have')} several answers in '{column}'; the first is used"
        return [*self._notes.values(), several]

    def _named(self, head: Sequence[Row]) -> tuple[str, list[str]]:
        """(the file, the names of its columns). Raises DataError where one that the settings name is not there."""
        # Rows of a sample stand in no file.
        label = head[0].where.rpartition(", ")[0]
        names = columns_of(map(opened, head))
        refuse_missing(names, label, text=self._text, text_pair="".join(self._beside), target=self._target)
        if self._text == AUTO:
            refuse_unlearnt(head)
        return label, names

    def _find(self, label: str, names: Sequence[str], head: Sequence[Row]) -> Pair:
        if AUTO not in (self._text, self._target):
            return Pair(self._text, self._target, after=self._beside)
        if self._text == AUTO:
            found = find_pair(head, names, label, self._target)
        else:
            known = [name for usual in INPUTS_AND_ANSWERS for name in usual.targets]
            found = Pair(self._text, usual_target(self._text, names) or _usual_name(names, known, self._text))
        if not (found.source and found.target):
            kind = kind_of_rows(head) if self._text == AUTO else None
            if kind and "seq2seq" not in kind.tasks:
                what = f"the rows are {kind.what} ({listed(kind.columns)}), but this task needs an input and its answer"
                hint = 'write rows such as {"input": "...", "output": "..."}, or choose a model for '
                raise DataError(what, where=label, hint=f'{hint}task.type = "{kind.tasks[0]}"')
            raise _unclear(label, names, found, likely_pair(head, sentences=False))
        return replace(found, before=(), after=self._beside) if self._beside else found


def opened(row: Row) -> Row:
    """With the languages of a translation, {"translation": {"en": ..., "de": ...}}, as columns."""
    languages = _languages(row.values)
    return Row(row.where, {**row.values, **languages}) if languages else row


def _languages(values: Mapping[str, object]) -> Mapping[str, object]:
    found = values.get(TRANSLATION)
    if isinstance(found, str) and found[:1] == "{":
        found = written_value(found)
    return found if isinstance(found, dict) else {}


def languages_of(head: Sequence[Row]) -> list[str]:
    """The languages of the translations of all first rows. Raises DataError for lists of languages."""
    found = dict.fromkeys(name for row in head for name in _languages(row.values))
    if any(isinstance(text, list) for row in head for text in _languages(row.values).values()):
        hint = 'write {"translation": {"en": "yes", "de": "ja"}}, or one column per language'
        raise DataError("the translations are lists, not texts", where=file_of(head), hint=hint)
    return list(found)


def _usual_pairs(names: Sequence[str], *, alone: bool = False) -> list[Pair]:
    """As much as is there of each usual pair. Inputs without an answer only where they stand alone, or with `alone`."""
    pairs = (Pair(_usual_name(names, usual.inputs), _usual_name(names, usual.targets)) for usual in INPUTS_AND_ANSWERS)
    return [
        with_beside(pair, names)
        for pair, usual in zip(pairs, INPUTS_AND_ANSWERS, strict=True)
        if pair.target or (pair.source and (usual.stands_alone or alone))
    ]


def find_pair(head: Sequence[Row], names: Sequence[str], label: str, target: str = AUTO) -> Pair:
    """Two languages of a translation, or the first usual pair that is whole, else as much as is there of one; with a
    `target` the first usual input. Raises DataError for more languages."""
    if target != AUTO:
        usual_pairs = _usual_pairs([name for name in names if name != target], alone=True)
        return replace(next((pair for pair in usual_pairs if pair.source), Pair("", "")), target=target)
    languages = languages_of(head)
    if len(languages) > 2:
        hint = "set data.text_column to one language and data.target_column to another"
        raise DataError(f"the translations have several languages: {listed(languages)}", where=label, hint=hint)
    if len(languages) > 1:
        return Pair(languages[0], languages[1])
    pairs = _usual_pairs(names)
    part = replace(next(iter(pairs), Pair("", "")), before=(), after=())
    return next((pair for pair in pairs if pair.source and pair.target), part)


def with_beside(pair: Pair, names: Sequence[str]) -> Pair:
    """The pair with what stands beside an input of its name."""
    others = [name for name in names if name not in (pair.source, pair.target)]
    usual = next((usual for usual in INPUTS_AND_ANSWERS if pair.source.strip().lower() in usual.inputs), None)
    if usual is None:
        return pair
    before, after = (tuple(usual_columns(some, others)) for some in (usual.before, usual.after))
    return replace(pair, before=before, after=after)


def usual_target(source: str, names: Sequence[str]) -> str:
    """The answer to an input that is named."""
    own = [usual.targets for usual in INPUTS_AND_ANSWERS if source.strip().lower() in usual.inputs]
    return _usual_name(names, (name for some in own or [ANSWER_NAMES] for name in some), source)


def usual_input(names: Sequence[str]) -> Pair:
    """The input of the first pair that is whole, else of the first one whose input is there."""
    with_input = [pair for pair in _usual_pairs(names) if pair.source]
    found = next((pair for pair in with_input if pair.target), next(iter(with_input), Pair("", "")))
    return replace(found, target="")


def _usual_name(names: Sequence[str], usual: Iterable[str], other: str = "") -> str:
    """The column with the first of the usual names that is there, however it is written."""
    return next((name for name in usual_columns(usual, names) if name != other), "")


def _text_of(row: Row, column: str) -> str:
    """The text of a column of the input; of a list with one text that one."""
    value = value_of(row, column)
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else ""
    return _checked(value, column, row.where)


def _checked(value: object, column: str, where: str) -> str:
    shown = one_line(column, 40)
    if not isinstance(value, str):
        hint = "write a text" if value is None else as_one_text(value)
        raise DataError(f"the column '{shown}' is {kind_of_value(value)}, not a string", where=where, hint=hint)
    if not value.strip():
        raise DataError(f"the column '{shown}' is empty", where=where, hint="write a text")
    return checked_text(value, where)


def _answers_of(text: str, column: str, where: str) -> object:
    """SQuAD's answers, or a list of them, written as text."""
    value = written_value(text)
    if isinstance(value, list | dict):
        return value
    message = f"the column '{one_line(column, 40)}' holds a list of answers that cannot be read: '{one_line(text, 40)}'"
    raise DataError(message, where=where, hint="write one answer as plain text, or the list as JSON")


def _unclear(label: str, names: Sequence[str], found: Pair, likely: Sequence[str]) -> DataError:
    """Neither is there, or one of the two; then the column whose name comes near to a usual one may be the other, or
    one of the `likely` ones."""
    known = next(filter(None, found.columns), "")
    usual = [name for pair in INPUTS_AND_ANSWERS for name in (pair.targets if found.source else pair.inputs)]
    near = [
        name
        for name in names
        if known and name != known and difflib.get_close_matches(name.strip().lower(), usual, n=1, cutoff=0.7)
    ]
    lacking = "an input" if found.target else f"the answer to '{one_line(known, 40)}'"
    what = f"no column has a usual name for {lacking}" if known else "no columns have usual names for input and answer"
    other = next((name for name in (*near, *likely) if name != known), "")
    if known and other:
        likely = (known, other) if found.source else (other, known)
    naming = as_pair(likely) if likely else "set data.text_column and data.target_column"
    return DataError(what, where=label, hint=f"columns found: {listed(names)}; {naming}")
