"""Rows of a table, and the kind of rows that their columns show: conversations, inputs with answers, tagged words, or
rows that no task learns from. Also holds the errors about columns and values.

The names of the columns decide on the kind, even if the values cannot be read: such rows are then refused by the task
for their kind, and never taken for plain texts.
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
    MARK_NAMES,
    PREFERENCES,
    SENTENCES,
    SPAN_COLUMNS,
    TAG_COLUMNS,
    WORD_COLUMNS,
)
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

AUTO = "auto"
SHOWN_COLUMNS = 12
_POSITION_IN_FILE = re.compile(r", (?:line|item|row) [\d,]+")
_NUMPY_STRINGS = re.compile(r"""(['"])\s+\1""")  # Python joins them into one
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}

_TAG = re.compile("O|[BIELSUM]-.+")
_MEDIA = {
    **dict.fromkeys(("image", "images", "image_path", "image_paths", "pixel_values"), "images"),
    **dict.fromkeys(("audio", "audios"), "sounds"),
    **dict.fromkeys(("video", "videos"), "videos"),
}
_SPEAKER = re.compile(r"(?:^|\s)(system|user|human|assistant)\s*:", re.IGNORECASE)
_LIST = re.compile(r"\s*(?:array\()?\[\s*[\[{'\"]")
_PREFERENCES = "preferences with a better and a worse answer"
_MARKED_ANSWERS = "answers marked as good or bad"
_UNCLEAR_MARKS = ({"0", "1"}, {"0.0", "1.0"}, {"-1", "1"}, {"-1.0", "1.0"})
_UNSUPPORTED = "are not supported"
_REMOVE_ROW = "remove the row, because the model would only get its text"
_PLACEHOLDER = re.compile("<(?:image|video|audio)>")  # one pattern for all three, because every row is searched
_CLOSING_TAGS = {"<image>": "</image>", "<video>": "</video>", "<audio>": "</audio>"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, and its position: "train.jsonl, line 12"."""

    where: str
    values: Mapping[str, object]


def file_of(head: Sequence[Row]) -> str:
    """Return the file name of these rows, as in their positions. In a sample, return the first row's position."""
    return _POSITION_IN_FILE.split(head[0].where)[0]


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all columns, in the order of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(row.values for row in rows)))


def usual_columns(usual: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one of the usual names, ordered by those names and spelled as in the table."""
    return [name for usual_name in usual for name in names if name.strip().lower() == usual_name]


def is_id(name: str) -> bool:
    """Return whether a column name stands for row numbers or keys. Includes pandas' "Unnamed: 0"."""
    name = name.strip().lower()
    return name in ("id", "idx", "index", "") or name.endswith("_id") or name.startswith("unnamed:")


def kind_of_value(value: object) -> str:
    """Return the JSON name of a value's type, such as `a list`, or else its Python type: `a value of type Decimal`."""
    other_name = "a number" if isinstance(value, int | float) else f"a value of type {type(value).__name__}"
    return _KINDS.get(type(value), other_name)


def one_text_hint(value: object) -> str:
    """Return a hint for an error about a list or an object where one text was expected."""
    texts = " ".join(texts_in(value))
    return f'write one text: "{one_line(texts, 60)}"' if texts else "write a text"


def texts_in(value: object) -> Iterator[str]:
    """Yield the strings inside nested lists and objects."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from texts_in(part)


def transposed(value: object) -> object:
    """Convert an object of equally long lists to a list of objects. `datasets` writes such objects for a Sequence."""
    if isinstance(value, list) or not isinstance(value, Mapping):
        return value
    if not all(isinstance(element, list) for element in value.values()):
        return value
    lengths = {len(element) for element in value.values()}
    if len(lengths) != 1:
        return value
    rows = zip(*value.values(), strict=True)
    return [{name: element for name, element in zip(value, row, strict=True) if element is not None} for row in rows]


def split_transcript(text: object) -> list[tuple[str, str]]:
    """Split a text such as "USER: ... ASSISTANT: ..." into pairs of a lower-case speaker and a text; [] for others."""
    if not isinstance(text, str):
        return []
    _, *parts = _SPEAKER.split(text)
    turns = [(speaker.lower(), words.strip()) for speaker, words in zip(parts[::2], parts[1::2], strict=True)]
    speakers = {speaker for speaker, _ in turns}
    return turns if "assistant" in speakers and len(speakers) > 1 else []


def written_value(text: str) -> object:
    """Parse a text that is JSON, or a list or an object in Python's notation. Returns None if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return None if _NUMPY_STRINGS.search(text) else python_literal(text)
    except ValueError:
        return None


class _WithoutArrays(ast.NodeTransformer):
    """Replaces numpy's arrays in a syntax tree by lists: array(['a'], dtype=object) becomes ['a']."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_array = isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
        return self.visit(node.args[0]) if is_array else node


def python_literal(text: str) -> object:
    """Parse a value in Python's notation, reading numpy's arrays as lists. Raises ValueError for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes
            expression = ast.parse(text.strip(), mode="eval")
            return ast.literal_eval(_WithoutArrays().visit(expression) if "array(" in text else expression)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def value_of(row: Row, column: str) -> object:
    """Return the value of a column. Raises DataError if the row lacks the column."""
    if column not in row.values:
        hint = f"columns found: {listed(row.values)}"
        raise DataError(f"the row has no column '{one_line(column, 40)}'", where=row.where, hint=hint)
    return row.values[column]


def string_of(row: Row, column: str) -> str:
    """Return the string in a column. Raises DataError if the row lacks the column, or the value is not a string."""
    value = value_of(row, column)
    if not isinstance(value, str):
        message = f"the column '{one_line(column, 40)}' is {kind_of_value(value)}, not a string"
        hint = one_text_hint(value) if isinstance(value, list | Mapping) else ""
        raise DataError(message, where=row.where, hint=hint)
    return value


def refuse_bad_answer(row: Row) -> None:
    """Raise DataError if the row marks its answer as a bad one, as data sets for KTO do."""
    for name in MARK_NAMES:
        if name in row.values and str(row.values[name]).strip().lower() == "false":
            hint = 'set task.type = "kto" to learn from good and bad answers, or remove the row'
            raise DataError(f"the column '{name}' is false, which marks the answer as bad", where=row.where, hint=hint)


def refuse_rejected(row: Row) -> None:
    """Raise DataError if the annotator did not accept the row in Prodigy."""
    if row.values.get("answer") in ("reject", "ignore"):
        problem = "the column 'answer' says that the annotator did not accept the row"
        raise DataError(problem, where=row.where, hint="remove the row")


def refuse_missing(names: Sequence[str], label: str, **columns: str) -> None:
    """Raise DataError if a column that a setting names is not in `names`. `text="body"` means data.text_column."""
    for setting, name in columns.items():
        if name not in (AUTO, "", *names):
            raise missing_column(name, label, names, key=f"data.{setting}_column")


def missing_column(column: str, label: str, names: Iterable[str], *, key: str = "data.text_column") -> DataError:
    """Return the error for a missing column of the file `label`. `key` is the setting that names the column."""
    known_columns = list(names)
    similar_names = difflib.get_close_matches(column, known_columns, n=1, cutoff=0.5)
    suggestion = f"did you mean '{one_line(similar_names[0], 40)}'? " if similar_names else ""
    hint = f"{suggestion}columns found: {listed(known_columns)}; set {key} to the right column"
    return DataError(f"there is no column '{one_line(column, 40)}'", where=label, hint=hint)


def refuse_repeated_columns(names: Sequence[str], where: str) -> None:
    """Raise DataError if two columns have the same name."""
    if repeated_names := [name for position, name in enumerate(names) if name in names[:position]]:
        shown_name = one_line(repeated_names[0], 40) or "(no name)"
        raise DataError(f"two columns are named '{shown_name}'", where=where, hint="rename one of the two columns")


def listed(names: Iterable[str]) -> str:
    """Join column names into a list that is safe to show. An empty name, as of an index, is shown as "(no name)"."""
    shown_names = [one_line(name, 30) or "(no name)" for name in names]
    more_count = len(shown_names) - SHOWN_COLUMNS
    return ", ".join([*shown_names[:SHOWN_COLUMNS], *([f"{more_count:,} more"] if more_count > 0 else [])]) or "none"


@dataclass(frozen=True, slots=True)
class KindOfRows:
    """A kind of rows: its description, the columns that show it, and the tasks that learn from it, the best first."""

    description: str
    columns: tuple[str, ...]
    tasks: tuple[str, ...]

    def refused(self, where: str) -> DataError:
        """Return the error that a task which reads plain texts raises for these rows."""
        reads = " or ".join(f'task.type = "{task}"' for task in self.tasks)
        hint = f"to train on these rows, set {reads}; to train on one column as text, set data.text_column"
        return DataError(f"the rows are {self.description} ({listed(self.columns)}), not texts", where=where, hint=hint)


def kind_of_rows(head: Sequence[Row]) -> KindOfRows | None:
    """Return the kind of rows that the column names show; None for rows of plain text, with or without labels."""
    by_name = _columns_with_values(head)
    if answer_columns := preference_columns(by_name):
        return KindOfRows(_PREFERENCES, answer_columns, ("preference", "reward"))
    return _marked_answers(by_name, head) or _kind_without_marks(by_name, head)


def _marked_answers(by_name: Mapping[str, str], head: Sequence[Row]) -> KindOfRows | None:
    """Return the kind of rows whose answers are marked as good or bad; None for others. A column `label` marks answers
    if one of its values is the boolean false."""
    tag, label = (by_name.get(name, "") for name in MARK_NAMES)
    mark_column = tag or (label if any(row.values.get(label) is False for row in head) else "")
    kind = _answers_beside(mark_column, by_name, head)
    return KindOfRows(_MARKED_ANSWERS, (*kind.columns, mark_column), ("kto",)) if kind else None


def _answers_beside(column: str, by_name: Mapping[str, str], head: Sequence[Row]) -> KindOfRows | None:
    """Return the kind of rows if they have answers beside this column; None for others, or without a column."""
    kind = _kind_without_marks(by_name, head) if column else None
    return kind if kind and "chat" in kind.tasks else None


def _kind_without_marks(by_name: Mapping[str, str], head: Sequence[Row]) -> KindOfRows | None:
    for name in CONVERSATION_NAMES:
        if name in by_name and (name in CONVERSATIONS or is_structured(head, by_name[name], transcripts=True)):
            return KindOfRows("conversations", (by_name[name],), ("chat",))
    for usual in INPUTS_AND_ANSWERS:
        candidates = [[by_name[name] for name in side if name in by_name] for side in (usual.inputs, usual.targets)]
        if not all(candidates):
            continue
        input_name, answer_name = (names[0] for names in candidates)
        # Answers with their position in the context, in any of the forms of SQuAD.
        has_positions = any("answer_start" in str(row.values.get(answer_name)) for row in head)
        if "context" in by_name and input_name == by_name.get("question") and has_positions:
            columns = (input_name, by_name["context"], answer_name)
            tasks = ("question_answering", "chat", "seq2seq")
            return KindOfRows("questions with answers from a context", columns, tasks)
        return KindOfRows("pairs of input and answer", (input_name, answer_name), ("chat", "seq2seq"))
    if "translation" in by_name and is_structured(head, by_name["translation"]):
        return KindOfRows("translations", (by_name["translation"],), ("seq2seq", "chat"))
    for words, tags in product((*WORD_COLUMNS, *SENTENCES, "sentences"), (*TAG_COLUMNS, *SPAN_COLUMNS)):
        if {words, tags} <= by_name.keys() and _are_tags(head, by_name[words], by_name[tags]):
            return KindOfRows("words with their tags", (by_name[words], by_name[tags]), ("token_classification",))
    return None


def preference_columns(by_name: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the better and the worse answers, or (). `by_name` has the names of the table's columns,
    keyed by their lower-case form."""
    pairs = (pair for pair in PREFERENCES if all(name in by_name for name in pair))
    return tuple(by_name[name] for name in next(pairs, ()))


def refuse_unsupported_rows(head: Sequence[Row]) -> None:
    """Raise DataError for preferences, marked answers, and rows that no task learns from. Call it if no setting names a
    column."""
    by_name = _columns_with_values(head)
    if answer_columns := preference_columns(by_name):
        message = f"the rows are {_PREFERENCES} ({listed(answer_columns)})"
        hint = f'set task.type = "preference", or {_to_learn_better(head, by_name, answer_columns[0])}'
        raise DataError(message, where=file_of(head), hint=hint)
    if kind := _marked_answers(by_name, head):
        message = f"the rows are {_MARKED_ANSWERS} ({listed(kind.columns)})"
        hint = 'set task.type = "kto", or remove the rows marked false, and then the column with the marks'
        raise DataError(message, where=file_of(head), hint=hint)
    label = by_name.get("label", "")
    numbers = {str(row.values.get(label)).strip() for row in head}
    if numbers in _UNCLEAR_MARKS and (kind := _answers_beside(label, by_name, head)):
        message = f"the column '{label}' has only {' and '.join(sorted(numbers))}, which may mark good and bad answers"
        hint = f'if it does, set task.type = "kto"; to train on all answers, set data.text_column = "{kind.columns[0]}"'
        raise DataError(message, where=file_of(head), hint=hint)
    for description, columns, hint in _unsupported_kinds(by_name, head):
        message = f"the rows are {description} ({listed(columns)}), which no task supports yet"
        raise DataError(message, where=file_of(head), hint=hint)


class LateColumns:
    """Finds columns that appear only after the first rows. `check` gets the first row that has such columns, and raises
    DataError if these would have changed how the rows are read."""

    def __init__(self, first_columns: Iterable[str], check: Callable[[Row], None]) -> None:
        self._known_columns, self._check_row = frozenset(first_columns), check
        self._errors: dict[frozenset[str], DataError] = {}

    def check(self, row: Row) -> None:
        """Check the row if it has new columns. Raises DataError, which names the row and its new columns."""
        if self._known_columns.issuperset(row.values):
            return
        refuse_media(row, self._known_columns)
        filled_columns = frozenset(name for name, value in row.values.items() if value not in (None, "", [], {}))
        new_columns = filled_columns - self._known_columns
        if new_columns and new_columns not in self._errors:
            try:
                self._check_row(row)
                self._known_columns |= new_columns
            except DataError as error:
                self._errors[new_columns] = error
        if new_columns in self._errors:
            problem = self._errors[new_columns].problems[0]
            noun, causes = ("column", "causes") if len(new_columns) == 1 else ("columns", "cause")
            message = f"no earlier row has the {noun} {listed(sorted(new_columns))}, which {causes} this problem: "
            raise DataError(message + problem.message, where=row.where, hint=problem.hint)


def refuse_media(row: Row, known_columns: frozenset[str]) -> None:
    """Raise DataError for images, sounds or videos in a column that is not among the `known_columns`."""
    for name, value in row.values.items():
        if name not in known_columns and _is_medium(name, value):
            medium_name = _MEDIA[name.strip().lower()]
            message = f"the row has {medium_name} ('{listed([name])}')"
            raise DataError(message, where=row.where, hint=f"{medium_name} {_UNSUPPORTED}; {_REMOVE_ROW}")


def media_in(kind: str) -> str:
    """Return `images`, `sounds` or `videos` for a type of content part such as `image_url`; empty for other types."""
    return next((medium for name, medium in _MEDIA.items() if name in kind.split("_")), "")


def refuse_placeholders(text: str, where: str) -> None:
    """Raise DataError for a text with the placeholder of an image, sound or video, unless it is an element of XML."""
    if not _PLACEHOLDER.search(text):
        return
    for placeholder, closing_tag in _CLOSING_TAGS.items():
        if placeholder in text and closing_tag not in text:
            message = f"the text contains {placeholder}, a placeholder for something that is not text"
            medium = _MEDIA[placeholder.strip("<>")]
            raise DataError(message, where=where, hint=f"{medium} {_UNSUPPORTED}; {_REMOVE_ROW}")


def _columns_with_values(head: Sequence[Row]) -> dict[str, str]:
    """Return the names of all columns with any value, keyed by their lower-case form."""
    names = reversed(columns_of(head))
    return {name.strip().lower(): name for name in names if any(row.values.get(name) is not None for row in head)}


def _unsupported_kinds(by_name: Mapping[str, str], head: Sequence[Row]) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield a description, the columns that show it, and a hint, for each unsupported kind that the rows may have."""
    better_names, worse_names = (
        sorted((name for name in by_name if word in name), key=len) for word in ("chosen", "rejected")
    )
    text_hint = "set data.text_column to the columns to train on"
    if better_names and worse_names:
        columns = [by_name[better_names[0]], by_name[worse_names[0]]]
        yield _PREFERENCES, columns, _to_learn_better(head, by_name, columns[0])
    if "questions" in by_name and is_structured(head, "questions"):
        first_question = next((next(texts_in(row.values.get(by_name["questions"])), "") for row in head), "")
        example = f'{{"question": "{one_line(first_question, 40)}", "context": "...", "answer": "..."}}'
        yield "lists of questions", [by_name["questions"]], f"write one row per question: {example}"
    media_columns = [name for name in columns_of(head) if any(_is_medium(name, row.values.get(name)) for row in head)]
    if media_columns:
        medium = _MEDIA[media_columns[0].strip().lower()]
        hint = f"{medium} {_UNSUPPORTED}; to train on the texts only, set data.text_column"
        yield f"{medium} with their texts", media_columns, hint
    choice_columns = [by_name[name] for name in ("choices", "options", "endings") if name in by_name]
    if "question" in by_name and choice_columns and is_structured(head, choice_columns[0]):
        hint = "write the question and its choices into one text, and the right choice as the answer"
        yield "questions with choices", [by_name["question"], *choice_columns], hint
    triplet_columns = [by_name[name] for name in ("anchor", "positive", "negative") if name in by_name]
    if len(triplet_columns) >= 2 and "anchor" in by_name:
        yield "similar and dissimilar texts, for embeddings", triplet_columns, text_hint


def _to_learn_better(head: Sequence[Row], by_name: Mapping[str, str], better_column: str) -> str:
    """Return a hint for rows of preferences: the settings that train on the better answers only."""
    chosen_values = [row.values.get(better_column) for row in head]
    has_lists = any(isinstance(value, list) and len(value) > 1 for value in chosen_values)
    whole_columns = [better_column] if has_lists else []
    chats = [by_name[name] for name in CONVERSATION_NAMES if name in by_name]
    with_answers = [name for name in chats if any("assistant" in str(row.values.get(name)) for row in head)]
    whole_columns = with_answers or whole_columns
    inputs = [by_name[name] for usual in INPUTS_AND_ANSWERS for name in usual.inputs if name in by_name]
    settings = f'data.text_column = "{one_line((whole_columns or [*chats, *inputs, better_column])[0], 40)}"'
    if not whole_columns and (chats or inputs):
        settings += f' and data.target_column = "{one_line(better_column, 40)}"'
    return f"set {settings} to train on the better answers only"


def _is_medium(name: str, value: object) -> bool:
    return name.strip().lower() in _MEDIA and value not in (None, "", [], ())


def _are_tags(head: Sequence[Row], words: str, tags: str) -> bool:
    """Return whether `tags` holds a tag for each word of `words`, in lists or in texts, rather than labels of texts.
    Lists of words, and lists of sentences, may have spans instead."""
    if words.strip().lower() == "sentences":
        sentence_lists = (value for row in head if isinstance(value := row.values.get(words), list))
        return any(isinstance(sentence, list) for value in sentence_lists for sentence in value)
    if tags.strip().lower() not in TAG_COLUMNS:
        return is_structured(head, words) and is_structured(head, tags)
    is_sentence = words.strip().lower() in SENTENCES
    if not is_sentence and (is_structured(head, words) or tags.strip().lower() not in ("label", "labels")):
        return True
    pairs = [(row.values.get(words), row.values.get(tags)) for row in head]
    string_pairs = [pair for pair in pairs if all(isinstance(value, str) for value in pair)]
    word_counts = [(len(str(text).split()), len(str(tag).split())) for text, tag in string_pairs]
    if len(word_counts) < len(pairs) or max(word_counts)[0] < 2 or any(words != tags for words, tags in word_counts):
        return False
    return not is_sentence or all(_TAG.fullmatch(tag) for _, tags in pairs for tag in str(tags).split())


def is_structured(head: Sequence[Row], name: str, *, transcripts: bool = False) -> bool:
    """Return whether the column holds lists or objects, even in strings, or (`transcripts`) dialogues."""
    values = [value for row in head if (value := row.values.get(name)) is not None]
    has_speakers = transcripts and any(map(split_transcript, values))
    return has_speakers or any(isinstance(value, list | Mapping) or bool(_LIST.match(str(value))) for value in values)
