"""The choice of a table's text columns: one text, an input and its answer, or a pair of texts for a classifier.

Columns that a setting names are used as named. For one text, "auto" takes from the first rows of a file, in this order:
the column `text`; the column chosen in an earlier file of the same source; a usual name; the column whose strings are
by far the longest. For two texts it takes the first usual pair that is complete. Where none of these applies, the user
has to choose: a wrong guess would train on ids, classes or addresses. Rows of another kind (`kind_of_rows`) have no
text column.
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
    columns_of,
    file_of,
    is_id,
    kind_of_rows,
    kind_of_value,
    listed,
    missing_column,
    one_text_hint,
    refuse_bad_answer,
    refuse_missing,
    refuse_unsupported_rows,
    string_of,
    texts_in,
    transposed,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.usual_names import ABOUT_A_TEXT, ANSWER_NAMES, INPUTS_AND_ANSWERS, TEXT_PAIRS, USUAL_NAMES
from tui_trainer.data.decoding import MAX_LINE_BYTES, refuse_surrogates, with_plain_line_ends
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes, quantity

FIRST_ROWS = 100
LOOKED_CHARACTERS = 4 * MIB
FAR_LONGER = 4  # times the mean length of the next column
_FIRST_UNSPACED_LETTER = "\u0e00"  # Thai and what follows: Chinese, Japanese
NUMBER = re.compile(r"\s*[-+]?[\d.,]+([eE][-+]?\d+)?\s*")

Strings = Mapping[str, Sequence[str]]  # the strings in the first rows of each column; empty for other columns

TRANSLATION = "translation"
SECOND_TEXT_KEY = "data.text_pair_column"
# The beginning of lists of answers that pandas wrote to a CSV.
_WRITTEN_ANSWERS = re.compile(r"""\s*(\{['"]text['"]:\s*(\[|array\()|\[['"])""")


class ColumnChoices:
    """Chooses the text column of files. The same columns give the same choice, so that all shards are read alike."""

    def __init__(self, setting: str, pair: str = "", *, has_answers: bool = True) -> None:
        self._setting, self._pair = setting, pair  # `pair`: the column of the second text
        self._has_answers = has_answers  # whether another column may hold answers to train on
        self._chosen: dict[frozenset[str], str] = {}
        self._files: dict[frozenset[str], dict[str, None]] = {}
        self._remarks: list[str] = []

    @property
    def chosen(self) -> tuple[str, ...]:
        """The columns that were chosen so far, without repetitions."""
        return tuple(dict.fromkeys(self._chosen.values()))

    def remark(self, text: str) -> None:
        self._remarks.append(text)

    def choose(self, head: Sequence[Row], excluded: Collection[str] = ()) -> str:
        """Return the text column, chosen from a file's first rows, but none in `excluded`. Raises DataError."""
        label = file_of(head)
        refuse_missing(columns_of(head), label, text=self._setting)
        if excluded:
            head = [Row(row.where, {k: value for k, value in row.values.items() if k not in excluded}) for row in head]
        strings = strings_of(head)
        names = frozenset(strings)
        if names not in self._chosen:
            self._chosen[names] = self._find(label, strings, head)
        self._files.setdefault(names, {})[label] = None
        return self._chosen[names]

    def check_late_row(self, row: Row, head: Sequence[Row]) -> None:
        """Check a row with columns that the first rows lack. Raises DataError if they would change the choice."""
        first_choice, column = self.choose(head), self.choose([*head, row])
        if column != first_choice:
            hint = f"set data.text_column to the column to read: {listed([first_choice, column])}"
            problem = f"from this row on, the text would be read from the column '{one_line(column, 40)}'"
            raise DataError(problem, where=row.where, hint=hint)

    def notes(self) -> tuple[str, ...]:
        choice_notes = [
            _note_of_choice(self._chosen[names], sorted(names - {self._chosen[names]}), [*files], self._pair)
            for names, files in self._files.items()
            if names != {"text"} or self._pair
        ]
        return (*choice_notes, *self._remarks)

    def _find(self, label: str, strings: Strings, head: Sequence[Row]) -> str:
        if self._setting != AUTO:
            if self._setting in strings:
                return self._setting
            raise missing_column(self._setting, label, strings)
        refuse_unsupported_rows(head)
        if "text" in strings:
            return "text"
        if kind := kind_of_rows(head):
            raise kind.refused(label)
        texts = _mean_text_lengths(strings)
        texts = {name: length for name, length in texts.items() if not is_id(name)} or texts
        for name in self._chosen.values():
            if name in texts:
                return name
        is_question = any(usual_columns(usual.inputs, list(texts)) for usual in INPUTS_AND_ANSWERS if usual.is_question)
        if not is_question and (name := next(iter(usual_columns(USUAL_NAMES, list(texts))), "")):
            return name
        structured = _mean_structure_lengths(head, strings)
        name, pair = _clearly_longest(texts | structured), likely_pair(head) if self._has_answers else ()
        # A number, a date or a single word is likely an identifier.
        if name in texts and (len(strings) == 1 or _holds_sentences(strings[name])) and not pair:
            return name
        values = {name: transposed(head[0].values[name]) for name in structured if name in head[0].values}
        written_texts = {name: max(texts_in(value), key=len, default="") for name, value in values.items()}
        if not texts:
            text_hint = f"; write plain texts, {_example_row(written_texts)}" if any(written_texts.values()) else ""
            hint = f"columns found: {listed(strings)}{text_hint}"
            raise DataError("no column holds text", where=label, hint=hint)
        cause = "several columns could be the text" if len(texts | structured) > 1 else "no column is clearly the text"
        hint = f"{pair_hint(pair)}; or " if pair else ""
        if self._has_answers and not pair and any(written_texts.values()):
            example_texts = {name: strings[name][0] for name in texts if strings[name]} | written_texts
            example = _example_row(example_texts)
            hint = f"to train on answers in lists or objects, write one row per answer, {example}; or "
        hint += f"set data.text_column to one of {listed([*texts, *structured])}"
        raise DataError(cause, where=label, hint=hint)


def _example_row(texts: Mapping[str, str]) -> str:
    """Return text such as `such as {"question": "..."}`: an example row of the first three of these texts."""
    row = {name: one_line(text, 40) for name, text in [*texts.items()][:3] if text}
    return f"such as {json.dumps(row, ensure_ascii=False)}"


def head_of(rows: Iterator[Row]) -> tuple[list[Row], DataError | None]:
    """Read and return the first rows, limited in number and characters, and the error that ended them early, if any."""
    head: list[Row] = []
    character_count = 0
    try:
        for row in rows:
            head.append(row)
            character_count += sum(len(value) for value in row.values.values() if isinstance(value, str))
            if len(head) == FIRST_ROWS or character_count >= LOOKED_CHARACTERS:
                break
    except DataError as error:
        return head, error
    return head, None


def strings_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the strings of each column, in the order of the columns' first appearance."""
    names = columns_of(rows)
    return {name: [value for row in rows if isinstance(value := row.values.get(name), str)] for name in names}


def text_of(row: Row, column: str) -> str:
    """Return the text in a column. Raises DataError if it is missing or not a string."""
    return checked_text(string_of(row, column), row.where)


def checked_text(text: str, where: str) -> str:
    """Return the text with plain line ends. Raises DataError if it is too long, or has a lone surrogate."""
    if len(text) > MAX_LINE_BYTES:
        limit_text = format_bytes(MAX_LINE_BYTES)
        raise DataError(f"the text is longer than {limit_text}", where=where, hint="split the text into several rows")
    refuse_surrogates(text, where)
    return with_plain_line_ends(text)


def _mean_text_lengths(strings: Strings) -> dict[str, float]:
    """Return the mean length of the strings in each column of text. In a CSV, numbers are strings too, but not text."""
    return {
        name: sum(map(len, values)) / len(values)
        for name, values in strings.items()
        if any(value and not NUMBER.fullmatch(value) for value in values)
    }


def _mean_structure_lengths(head: Sequence[Row], strings: Strings) -> dict[str, float]:
    """Return the mean printed length of the lists and objects in each column that contains them."""
    mean_lengths: dict[str, float] = {}
    for name in strings:
        values = [value for row in head if isinstance(value := row.values.get(name), list | tuple | Mapping) and value]
        if values:
            mean_lengths[name] = sum(len(str(value)) for value in values) / len(values)
    return mean_lengths


def _holds_sentences(values: Sequence[str]) -> bool:
    """Return whether most values are sentences: with white space, or letters of a script that does not use it."""
    texts = [value.strip() for value in values if value.strip()]
    return 2 * sum(len(value.split()) > 1 or max(value) >= _FIRST_UNSPACED_LETTER for value in texts) > len(texts)


def likely_pair(head: Sequence[Row], *, sentences: bool = True) -> tuple[str, ...]:
    """Return the two columns, in table order, that most likely hold an input and its answer; () without two columns of
    text. Ids and descriptions do not count, nor do single words, unless `sentences` is False."""
    strings = strings_of(head)
    lengths = {name: length for name, length in _mean_text_lengths(strings).items() if not is_id(name)}
    text_names = [name for name in lengths if name.strip().lower() not in ABOUT_A_TEXT]
    text_lengths = {name: lengths[name] for name in text_names if not sentences or _holds_sentences(strings[name])}
    longest_columns = sorted(text_lengths, key=lambda name: -text_lengths[name])[:2]
    return tuple(name for name in text_lengths if name in longest_columns) if len(longest_columns) == 2 else ()


def pair_hint(columns: Sequence[str]) -> str:
    """Return a hint with the settings that use two columns as an input and its answer."""
    source, target = (one_line(name, 40) for name in columns)
    return f'set data.text_column = "{source}" and data.target_column = "{target}" to train on answers'


def _clearly_longest(texts: Mapping[str, float]) -> str:
    """Return the column with the longest texts if it is the only one, or far ahead of the next; else ""."""
    ordered_names = sorted(texts, key=lambda name: -texts[name])
    if len(ordered_names) > 1 and texts[ordered_names[0]] < FAR_LONGER * texts[ordered_names[1]]:
        return ""
    return ordered_names[0] if ordered_names else ""


def _note_of_choice(column: str, other_candidates: Sequence[str], files: Sequence[str], pair: str) -> str:
    other_files = len(files) - 1
    files_text = f"{files[0]} and {quantity(other_files, 'more file')}" if other_files else files[0]
    alternatives = f" (other candidates: {listed(other_candidates)})" if other_candidates else ""
    shown_columns = [f"'{one_line(name, 40)}'" for name in (column, pair) if name]
    beginning = "the text is in the column" if not pair else "the two texts are in the columns"
    return f"{beginning} {' and '.join(shown_columns)} of {files_text}{alternatives}"


def pair_of_texts(head: Sequence[Row]) -> tuple[str, str] | None:
    """Return the first usual pair of text columns. None if there is none, or if a column `text` would be left out."""
    by_name = {name.strip().lower(): name for name in reversed(columns_of(head))}
    for names in TEXT_PAIRS:
        if all(
            name in by_name and any(isinstance(row.values.get(by_name[name]), str) for row in head) for name in names
        ):
            return None if "text" in by_name and "text" not in names else (by_name[names[0]], by_name[names[1]])
    return None


EQUIVALENT_ANSWERS = ("answers",)
"""Names of columns that list several correct answers. Training uses the first answer."""
# The keys of a part of a message, and of an answer with its position. Sources: the services of OpenAI and Anthropic;
# SQuAD, TyDi QA and Natural Questions.
_MESSAGE_PART_KEYS = frozenset({"type", "text", "annotations", "citations", "cache_control"})
_ANSWER_KEYS = frozenset(
    "text answer_start answer_end start end start_byte end_byte start_token end_token start_position end_position "
    "plaintext_start_byte plaintext_end_byte answer_id aliases".split()
)


def answers_in(value: object) -> tuple[list[Any], bool]:
    """Return the answers in a value, and whether all are equally correct, judging by their keys. [] for a single text.

    Answers are a list of strings, SQuAD's {"text": [...]}, TriviaQA's {"value": ..., "aliases": [...]}, or a list of
    objects with a text each. The parts of one message are not answers."""
    if isinstance(value, Mapping):
        if isinstance(first_answer := value.get("value"), str) and "aliases" in value:
            return [first_answer], True
        texts = value.get("text", value.get("spans"))
        texts = [texts] if isinstance(texts, str) else texts if isinstance(texts, list) else []
        return texts, set(value) <= _ANSWER_KEYS
    if not isinstance(value, list):
        return [], True
    entries = [item for item in value if isinstance(item, Mapping)]
    if not entries:
        return value, True
    if len(entries) < len(value) or not all(isinstance(item.get("text"), str) for item in entries):
        return [], True
    if all(set(item) <= _MESSAGE_PART_KEYS for item in entries):
        return [], True
    return [item["text"] for item in entries], all(set(item) <= _ANSWER_KEYS for item in entries)


def refuse_several_answers(answers: Sequence[Any], column: str, where: str) -> None:
    """Raise DataError if there are several answers, because none is marked as the correct one."""
    if len(answers) > 1:
        message = f"the column '{one_line(column, 40)}' has {len(answers)} answers, and none is marked as the right one"
        raise DataError(message, where=where, hint="keep only the right answer, or write one row per answer")


@dataclass(frozen=True, slots=True)
class Pair:
    """The columns of an input and its answer. Texts of the columns `before` and `after` belong to the input as well."""

    source: str
    target: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def extra_columns(self) -> tuple[str, ...]:
        return (*self.after, *self.before)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.source, *self.extra_columns, self.target)))


class PairColumns:
    """Reads inputs and answers: `choose` finds their columns in the first rows of a table, and `read` reads a row."""

    def __init__(self, text_column: str, text_pair_column: str, target_column: str) -> None:
        self._text, self._target = text_column, target_column
        self._further_columns = tuple(filter(None, [text_pair_column]))
        self.pair = Pair("", "")
        self._parses_answers, self._several_count = False, 0
        self._notes: dict[str, str] = {}

    def choose(self, head: Sequence[Row]) -> None:
        """Choose the columns. Raises DataError, with the nearest name, if they are unclear."""
        label, names = self._label_and_names(head)
        self.pair = self._find(label, names, head)
        answers = [row.values.get(self.pair.target) for row in head]
        # In other columns, a list may be the text that the model learns to write.
        self._parses_answers = self.pair.target.strip().lower() in ("answers", "answer") and all(
            isinstance(answer, str) and _WRITTEN_ANSWERS.match(answer) for answer in answers
        )
        pair = self.pair
        inputs = " and ".join(f"'{one_line(name, 40)}'" for name in (pair.source, *pair.extra_columns))
        other_columns = [name for name in names if name not in (*pair.columns, TRANSLATION)]
        unread_note = f" (not read: {listed(other_columns)})" if other_columns else ""
        file_note = f" of {label}" if label else ""
        is_guess = TRANSLATION in names and self._text == self._target == AUTO
        tip = "; to translate in another direction, set data.text_column and data.target_column" if is_guess else ""
        answer = f"the answer is '{one_line(pair.target, 40)}'{unread_note}{tip}"
        self._notes[label] = f"the input is {inputs}{file_note}; {answer}"

    def choose_input(self, head: Sequence[Row]) -> None:
        """Choose the input columns of rows that may lack answers: by their usual names, or else the text column."""
        _, names = self._label_and_names(head)
        pair = Pair(self._text, "", after=self._further_columns)
        if self._text == AUTO:
            languages = languages_of(head)
            pair = Pair(languages[0], "") if languages else usual_input(names)
        pair = pair if pair.source else Pair(ColumnChoices(AUTO).choose(head), "")
        self.pair = replace(pair, before=(), after=self._further_columns) if self._further_columns else pair

    def read(self, row: Row) -> tuple[str, str]:
        """Return the input and the answer of a row. Raises DataError, with its position, for a value without text."""
        refuse_bad_answer(row)
        input_text, target_column = self.read_input(row), self.pair.target
        row = with_languages(row)
        value = value_of(row, target_column)
        if isinstance(value, str) and self._parses_answers:
            value = _parsed_answers(value, target_column, row.where)
        texts, are_alike = answers_in(value)
        if not are_alike:
            refuse_several_answers(texts, target_column, row.where)
        self._several_count += len(texts) > 1
        if texts or (value.get("text") if isinstance(value, Mapping) else value) == []:
            value = texts[0] if texts else ""
        return input_text, _checked(value, target_column, row.where)

    def read_input(self, row: Row) -> str:
        """Return the input of a row. If several columns belong to it, each text follows the name of its column, as in
        T5's training data: "question: ... context: ...". Source: Raffel et al., arXiv:1910.10683, appendix D."""
        row, pair = with_languages(row), self.pair
        input_text = _input_text(row, pair.source)
        # Alpaca has instructions without an input.
        filled_columns = [name for name in pair.extra_columns if row.values.get(name) not in (None, "")]
        if filled_columns:
            parts = [f"{pair.source}: {input_text}", *(f"{name}: {_input_text(row, name)}" for name in filled_columns)]
            input_text = " ".join(parts)
        return input_text

    def notes(self) -> list[str]:
        if not self._several_count:
            return [*self._notes.values()]
        column = one_line(self.pair.target, 40)
        rows_have = quantity(self._several_count, "row", "have")
        return [*self._notes.values(), f"{rows_have} several answers in '{column}'; the first one of each row is used"]

    def _label_and_names(self, head: Sequence[Row]) -> tuple[str, list[str]]:
        """Return the file of these rows, and the names of its columns. Raises DataError if a set column is missing."""
        # Rows of a built-in sample have no file.
        label = head[0].where.rpartition(", ")[0]
        names = columns_of(map(with_languages, head))
        refuse_missing(names, label, text=self._text, text_pair="".join(self._further_columns), target=self._target)
        if self._text == AUTO:
            refuse_unsupported_rows(head)
        return label, names

    def _find(self, label: str, names: Sequence[str], head: Sequence[Row]) -> Pair:
        if AUTO not in (self._text, self._target):
            return Pair(self._text, self._target, after=self._further_columns)
        if self._text == AUTO:
            pair = find_pair(head, names, label, self._target)
        else:
            usual_targets = [name for usual in INPUTS_AND_ANSWERS for name in usual.targets]
            pair = Pair(self._text, usual_target(self._text, names) or _usual_name(names, usual_targets, self._text))
        if not (pair.source and pair.target):
            kind = kind_of_rows(head) if self._text == AUTO else None
            if kind and "seq2seq" not in kind.tasks:
                rows_text = f"the rows are {kind.description} ({listed(kind.columns)})"
                hint = 'write rows such as {"input": "...", "output": "..."}, or choose a model for '
                hint += f'task.type = "{kind.tasks[0]}"'
                raise DataError(f"{rows_text}, but this task needs an input and its answer", where=label, hint=hint)
            raise _unclear_columns(label, names, pair, likely_pair(head, sentences=False))
        return replace(pair, before=(), after=self._further_columns) if self._further_columns else pair


def with_languages(row: Row) -> Row:
    """Return the row with a column for each language of its translation, {"translation": {"en": ..., "de": ...}}."""
    languages = _languages(row.values)
    return Row(row.where, {**row.values, **languages}) if languages else row


def _languages(values: Mapping[str, object]) -> Mapping[str, object]:
    translation = values.get(TRANSLATION)
    if isinstance(translation, str) and translation[:1] == "{":
        translation = written_value(translation)
    return translation if isinstance(translation, dict) else {}


def languages_of(head: Sequence[Row]) -> list[str]:
    """Return the languages of translations in the first rows: ["en", "de"]. Raises DataError if these are lists."""
    languages = dict.fromkeys(name for row in head for name in _languages(row.values))
    if any(isinstance(text, list) for row in head for text in _languages(row.values).values()):
        hint = 'write {"translation": {"en": "yes", "de": "ja"}}, or one column per language'
        raise DataError("the translations are lists, not texts", where=file_of(head), hint=hint)
    return list(languages)


def _usual_pairs(names: Sequence[str], *, without_answer: bool = False) -> list[Pair]:
    """Return the usual pairs whose columns exist; with `without_answer`, also inputs without an answer column."""
    pairs = (Pair(_usual_name(names, usual.inputs), _usual_name(names, usual.targets)) for usual in INPUTS_AND_ANSWERS)
    return [
        with_further_texts(pair, names)
        for pair, usual in zip(pairs, INPUTS_AND_ANSWERS, strict=True)
        if pair.target or (pair.source and (usual.stands_alone or without_answer))
    ]


def find_pair(head: Sequence[Row], names: Sequence[str], label: str, target: str = AUTO) -> Pair:
    """Return two languages of a translation, the first complete usual pair, or else the part of one that exists. With a
    `target`, return the first usual input for it. Raises DataError for more than two languages."""
    if target != AUTO:
        usual_pairs = _usual_pairs([name for name in names if name != target], without_answer=True)
        return replace(next((pair for pair in usual_pairs if pair.source), Pair("", "")), target=target)
    languages = languages_of(head)
    if len(languages) > 2:
        hint = "set data.text_column to one language and data.target_column to another"
        raise DataError(f"the translations have several languages: {listed(languages)}", where=label, hint=hint)
    if len(languages) > 1:
        return Pair(languages[0], languages[1])
    pairs = _usual_pairs(names)
    partial_pair = replace(next(iter(pairs), Pair("", "")), before=(), after=())
    return next((pair for pair in pairs if pair.source and pair.target), partial_pair)


def with_further_texts(pair: Pair, names: Sequence[str]) -> Pair:
    """Add to the pair the columns that usually belong to its input, such as a context to a question."""
    other_names = [name for name in names if name not in (pair.source, pair.target)]
    usual = next((usual for usual in INPUTS_AND_ANSWERS if pair.source.strip().lower() in usual.inputs), None)
    if usual is None:
        return pair
    before, after = (tuple(usual_columns(usual_names, other_names)) for usual_names in (usual.before, usual.after))
    return replace(pair, before=before, after=after)


def usual_target(source: str, names: Sequence[str]) -> str:
    """Return the column that usually holds the answer to the input column `source`, or ""."""
    target_names = [usual.targets for usual in INPUTS_AND_ANSWERS if source.strip().lower() in usual.inputs]
    return _usual_name(names, (name for targets in target_names or [ANSWER_NAMES] for name in targets), source)


def usual_input(names: Sequence[str]) -> Pair:
    """Return the usual column of the input, preferably one with a usual answer column; empty names if there is none."""
    input_pairs = [pair for pair in _usual_pairs(names) if pair.source]
    pair = next((pair for pair in input_pairs if pair.target), next(iter(input_pairs), Pair("", "")))
    return replace(pair, target="")


def _usual_name(names: Sequence[str], usual: Iterable[str], other: str = "") -> str:
    """Return the first column with one of the usual names, except the column `other`; "" if there is none."""
    return next((name for name in usual_columns(usual, names) if name != other), "")


def _input_text(row: Row, column: str) -> str:
    """Return the text in an input column. A list with a single text counts as this text."""
    value = value_of(row, column)
    if isinstance(value, list) and len(value) < 2:
        value = value[0] if value else ""
    return _checked(value, column, row.where)


def _checked(value: object, column: str, where: str) -> str:
    shown_column = one_line(column, 40)
    if not isinstance(value, str):
        hint = "write a text" if value is None else one_text_hint(value)
        raise DataError(f"the column '{shown_column}' is {kind_of_value(value)}, not a string", where=where, hint=hint)
    if not value.strip():
        raise DataError(f"the column '{shown_column}' is empty", where=where, hint="write a text")
    return checked_text(value, where)


def _parsed_answers(text: str, column: str, where: str) -> object:
    """Parse a string that holds answers in SQuAD's form, or a list of answers. Raises DataError."""
    value = written_value(text)
    if isinstance(value, list | dict):
        return value
    message = f"the column '{one_line(column, 40)}' holds a list of answers that cannot be read: '{one_line(text, 40)}'"
    raise DataError(message, where=where, hint="write one answer as plain text, or the list as JSON")


def _unclear_columns(label: str, names: Sequence[str], pair: Pair, likely_columns: Sequence[str]) -> DataError:
    """Return the error for a pair that lacks a column. It suggests a similar name, or else one of `likely_columns`."""
    known_column = next(filter(None, pair.columns), "")
    usual_names = [name for row in INPUTS_AND_ANSWERS for name in (row.targets if pair.source else row.inputs)]
    similar_names = [
        name
        for name in names
        if known_column
        and name != known_column
        and difflib.get_close_matches(name.strip().lower(), usual_names, n=1, cutoff=0.7)
    ]
    missing_column = "an input" if pair.target else f"the answer to '{one_line(known_column, 40)}'"
    cause = f"no column has a usual name for {missing_column}"
    cause = cause if known_column else "no columns have usual names for input and answer"
    suggestion = next((name for name in (*similar_names, *likely_columns) if name != known_column), "")
    if known_column and suggestion:
        likely_columns = (known_column, suggestion) if pair.source else (suggestion, known_column)
    settings = pair_hint(likely_columns) if likely_columns else "set data.text_column and data.target_column"
    return DataError(cause, where=label, hint=f"columns found: {listed(names)}; {settings}")
