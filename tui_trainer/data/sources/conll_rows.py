"""Sentences of files with one word per line: CoNLL, and tables with a column that identifies the sentence.

CoNLL has a blank line after each sentence. Columns are separated by tabs, or else by white space, or by another sign if
the first line has neither. The word is in the first column and the tag in the last; in CoNLL-U they are FORM and UPOS,
without ranges (1-2) and empty nodes (1.1). Other columns are skipped, as are -DOCSTART- lines, comments ("# key =
value") before a sentence, and a first line with column names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import BinaryIO

from tui_trainer.data.columns.row import Row, usual_columns
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.columns.usual_names import TAG_COLUMNS, TEXT_COLUMNS, WORD_COLUMNS
from tui_trainer.data.decoding import text_lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.source_file import ENTITY_TAG
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

WORDS, TAGS = "tokens", "ner_tags"
SENTENCE_COLUMNS = ("sentence #", "sentence#", "sentence_id", "sentence id", "sentenceid", "sent_id", "sentence_idx",
                    "sent_idx", "sentence_number", "sentence_no", "sentence_num")  # fmt: skip
_DOCUMENT_COLUMNS = ("document_id", "doc_id", "document", "doc")  # numbers of sentences may repeat in another document
_DOCUMENT = "-DOCSTART-"
_LONGEST_SENTENCE = 100_000
_LOOKED_SENTENCES = 100
_LONGEST_SINGLE_SENTENCE = 100  # words; a longer one suggests that blank lines are missing
_SEPARATORS = "|;,"
_CHUNKS = frozenset({"NP", "VP", "PP"})
_HINT = "one word per line, followed by its tag (after a tab if words contain spaces), and a blank line after each "
_HINT += "sentence"
_UNIVERSAL_COLUMNS = 10  # CoNLL-U and CoNLL-X, which have the same columns at these positions
_UNIVERSAL = {WORDS: 1, "upos": 3, "xpos": 4}
_RANGE_OR_EMPTY_NODE = re.compile(r"\d+[-.]\d+")
_BRACKETS = re.compile(r"\(?[^()*]*\*\)?")

Sentence = list[tuple[int, list[str]]]  # (line, fields) of each word


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a file: their number, and by name the positions of those that are read."""

    column_count: int
    positions: Mapping[str, int]
    marks_entities: bool = False
    """Whether the tags mark entities, such as B-PER and O."""

    @property
    def is_universal(self) -> bool:
        return self.column_count == _UNIVERSAL_COLUMNS and self.positions is _UNIVERSAL


def read_conll(content: BinaryIO, label: str, problems: ProblemList, choices: ColumnChoices) -> Iterator[Row]:
    """Yield each sentence as a row, whose position is the sentence's first line. A sentence with an unreadable line is
    skipped, and that line is added to `problems`. Raises DataError if words or tags cannot be identified."""
    sentences = _sentences(content, label)
    first_sentences: list[Sentence] = []
    for sentence in islice(sentences, _LOOKED_SENTENCES):
        first_sentences.append(sentence)
        if len(sentence) > 1:
            break
    if not first_sentences:
        return
    layout, sentence_count, longest_words = _layout(first_sentences, label, choices), 0, 0
    for sentence in chain(first_sentences, sentences):
        sentence_count, longest_words = sentence_count + 1, max(longest_words, len(sentence))
        words = [(line, fields) for line, fields in sentence if not (layout.is_universal and _is_no_word(fields))]
        while words and _is_comment(words[0][1], layout):
            del words[0]
        line_errors = ((line, _problem_of_line(fields, layout, number)) for number, (line, fields) in enumerate(words))
        if problem := next(((line, message) for line, message in line_errors if message), None):
            problems.add(DataError(problem[1], where=f"{label}, line {problem[0]}", hint=_HINT))
        elif words:
            columns = {name: [fields[position] for _, fields in words] for name, position in layout.positions.items()}
            if layout.is_universal:
                # "_" marks a column without annotation.
                columns = {name: values for name, values in columns.items() if name == WORDS or {*values} != {"_"}}
                if "_" in (tags := columns.get("upos", [])):
                    where = f"{label}, line {words[tags.index('_')][0]}"
                    message = "the word has no UPOS tag, but other words of the sentence have one"
                    problems.add(DataError(message, where=where))
                    continue
            yield Row(f"{label}, line {words[0][0]}", columns)
    if sentence_count == 1 and longest_words > _LONGEST_SINGLE_SENTENCE:
        remark = f"{label} has no blank line between its {longest_words:,} words, which are read as one sentence, cut "
        choices.remark(remark + "to data.max_length tokens; put a blank line after each sentence")


def _sentences(content: BinaryIO, label: str) -> Iterator[Sentence]:
    """Yield each sentence: the lines between blank lines. A sentence that is too long is truncated."""
    sentence: Sentence = []
    for line, fields in _lines(content, label):
        if not fields and sentence:
            yield sentence
            sentence = []
        elif fields and (sentence or fields[0] != _DOCUMENT) and len(sentence) <= _LONGEST_SENTENCE:
            sentence.append((line, fields))


def _lines(content: BinaryIO, label: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line. A blank line and the end of the file have no fields."""
    line_number, separator, split_count = 0, "", 0
    for line_number, text in text_lines_of(content, label):
        if text.startswith(("#begin document", "#end document")):
            hint = "write two columns, the word and its tag (B-PER, O, ...)"
            raise DataError("CoNLL-2012 (OntoNotes) is not supported", where=f"{label}, line {line_number}", hint=hint)
        text = text.rstrip("\r\n")
        if not split_count and (words := text.split()) and not words[0].startswith("#"):
            split_count = -1
            if len(words) == 1 and (separator := next((sign for sign in _SEPARATORS if _ends_in_tag(text, sign)), "")):
                split_count = text.count(separator) or -1
        if "\t" in text:
            fields = [part.strip() for part in text.split("\t")]
        else:
            splits_at_sign = separator and text.strip()
            parts = text.rsplit(separator, split_count) if splits_at_sign else text.split()
            fields = [part.strip() for part in parts]
        yield line_number, fields if any(fields) else []
    yield line_number + 1, []


def _ends_in_tag(line: str, separator: str) -> bool:
    word, _, tag = line.rpartition(separator)
    return bool(word) and bool(ENTITY_TAG.fullmatch(tag.strip()))


def _layout(head: Sequence[Sentence], label: str, choices: ColumnChoices) -> _Layout:
    """Return the layout, judging by the first sentence of several words, or by many of one. Remove a header line."""
    line, first_fields = head[0][0]
    names = [name.lower() for name in first_fields]
    if len(first_fields) > 1 and names[0] in WORD_COLUMNS and names[-1] in TAG_COLUMNS:
        choices.remark(f"{label}: line {line:,} is a header and is skipped")
        del head[0][0]
    lines = [fields for _, fields in head[-1]]
    column_count = len(next((fields for fields in lines if not fields[0].startswith("#")), first_fields))
    lines = [fields for fields in lines if len(fields) == column_count]
    where = f"{label}, line {line}"
    for column in range(column_count if lines else 0):
        numbers = [fields[column] for fields in lines if not _is_no_word(fields)]
        first_number = 0 if numbers[:1] == ["0"] else 1
        is_numbering = numbers == [str(number) for number in range(first_number, first_number + len(numbers))]
        if not is_numbering or not numbers or (len(numbers) == 1 and (column or column_count != _UNIVERSAL_COLUMNS)):
            continue
        if column == 0 and column_count == _UNIVERSAL_COLUMNS:
            choices.remark(f"{label} is CoNLL-U: words from FORM, tags from UPOS; ranges and empty nodes are skipped")
            return _Layout(column_count, _UNIVERSAL)
        if column == 0 and column_count > 2:
            # With several levels of entities, the outermost one counts.
            has_levels = all(ENTITY_TAG.fullmatch(tag) for fields in lines for tag in fields[2:])
            has_chunks = not _CHUNKS.isdisjoint(fields[2].partition("-")[2] for fields in lines)
            tag_column = 2 if has_levels and not has_chunks else column_count - 1
            unread = ["1", *(str(number + 1) for number in range(2, column_count) if number != tag_column)]
            choices.remark(f"{label}: column 1 numbers the words; columns that are not read: {', '.join(unread)}")
            marks_entities = all(ENTITY_TAG.fullmatch(fields[tag_column]) for fields in lines)
            return _Layout(column_count, {WORDS: 1, TAGS: tag_column}, marks_entities)
        cause = f"column {column + 1} of {column_count} numbers the words, so it is unclear where word and tag are"
        raise DataError(cause, where=where, hint="write two columns, the word and its tag, or CoNLL-U with ten columns")
    if any(_BRACKETS.fullmatch(fields[-1]) for fields in lines):
        hint = "write tags such as B-PER, I-PER and O"
        raise DataError("the tags are brackets, such as (PERSON*", where=where, hint=hint)
    first_is_tag, last_is_tag = ([bool(ENTITY_TAG.fullmatch(fields[column])) for fields in lines] for column in (0, -1))
    if column_count == 2 and len(lines) > 1 and all(first_is_tag) and not all(last_is_tag):
        choices.remark(f"{label}: the tag is in the first column, and the word in the second")
        return _Layout(column_count, {WORDS: 1, TAGS: 0})
    tags = [fields[-1] for fields in lines if not fields[0].startswith("#")]
    return _Layout(column_count, {WORDS: 0, TAGS: -1}, bool(tags) and all(map(ENTITY_TAG.fullmatch, tags)))


def _is_no_word(fields: Sequence[str]) -> bool:
    return bool(_RANGE_OR_EMPTY_NODE.fullmatch(fields[0]))


def _is_comment(fields: Sequence[str], layout: _Layout) -> bool:
    """Return whether a line is a comment, such as "# text = ...". The word '#' has a tag, and no '='."""
    if not fields[0].startswith("#") or (len(fields[0]) > 1 and not (layout.is_universal or fields[0][1] == " ")):
        return False
    if layout.marks_entities and not ENTITY_TAG.fullmatch(fields[-1]):
        return fields != ["#"]
    return any("=" in field for field in fields) or (len(fields) != layout.column_count and fields != ["#"])


def _problem_of_line(fields: Sequence[str], layout: _Layout, words: int) -> str:
    if len(fields) < 2 or (len(fields) == layout.column_count and not fields[layout.positions.get(TAGS, -1)]):
        return "the line has a word but no tag"
    if len(fields) != layout.column_count:
        return f"the line has {len(fields)} columns, but the first line of the file has {layout.column_count}"
    if not fields[layout.positions[WORDS]]:
        return "the line has a tag but no word"
    return f"the sentence has more than {_LONGEST_SENTENCE:,} words" if words >= _LONGEST_SENTENCE else ""


def with_words_joined(rows: Iterator[Row], problems: ProblemList, choices: ColumnChoices) -> Iterator[Row]:
    """Yield each sentence of a table with one word per row as one row, whose columns list the values of its words. Rows
    of other tables, and sentences of one row (it may hold all words), stay as they are. A row continues a sentence if
    it has the same sentence number or none. Raises DataError if a sentence continues after another one."""
    first_row = next(rows, None)
    if first_row is None:
        return
    rows = chain((first_row,), rows)
    sentence_column = _sentence_column(first_row)
    if not sentence_column:
        yield from rows
        return
    choices.remark(f"rows with the same '{one_line(sentence_column, 40)}' form one sentence")
    key_columns = (*usual_columns(_DOCUMENT_COLUMNS, list(first_row.values)), sentence_column)
    ended_hashes: set[int] = set()
    sentence, current_key = list[Row](), object()
    problems_at_start = problems_before = problems.count
    for row in rows:
        follows_bad_row = problems.count != problems_before  # the bad row may belong to this sentence or the one before
        key = tuple(row.values.get(name) for name in key_columns)
        if not sentence and key[-1] in ("", None):
            problem = f"the first word has no '{one_line(sentence_column, 40)}'"
            raise DataError(problem, where=row.where, hint="number each sentence, at least in its first row")
        continues_sentence = key[-1] in ("", None) or key[-1] != key[-1]  # NaN, in pandas
        if sentence and not continues_sentence and key != current_key:
            yield from _join_words(sentence, sentence_column, problems, problems_at_start)
            sentence, problems_at_start = [], -1 if follows_bad_row else problems.count
        if not sentence:
            sentence_hash = hash(repr(key))
            if sentence_hash in ended_hashes:
                problem = f"the sentence '{one_line(str(key[-1]), 40)}' already ended in an earlier row"
                raise DataError(problem, where=row.where, hint=f"sort the rows by '{one_line(sentence_column, 40)}'")
            ended_hashes.add(sentence_hash)
            current_key = key
        sentence.append(row)
        problems_before = problems.count
    yield from _join_words(sentence, sentence_column, problems, problems_at_start)


def joins_words(columns: Sequence[str]) -> bool:
    """Return whether a table with these columns may have one word per row."""
    return bool(usual_columns(SENTENCE_COLUMNS, columns) and usual_columns(WORD_COLUMNS, columns)) and not (
        usual_columns(TEXT_COLUMNS, columns)
    )


def _sentence_column(row: Row) -> str:
    names = list(row.values)
    if not joins_words(names):
        return ""
    first_word = row.values[usual_columns(WORD_COLUMNS, names)[0]]
    return usual_columns(SENTENCE_COLUMNS, names)[0] if isinstance(first_word, str) else ""


def _join_words(rows: Sequence[Row], column: str, problems: ProblemList, problems_at_start: int) -> Iterator[Row]:
    """Yield the joined sentence, unless a row of it was unreadable, and `problems` has grown since its start."""
    if problems.count != problems_at_start:
        return
    if len(rows) == 1:
        yield rows[0]
        return
    first_row = rows[0]
    for row in rows:
        if row.values.keys() != first_row.values.keys():
            problems.add(DataError("the columns differ from those of the sentence's first word", where=row.where))
            return
        tags = [row.values[name] for name in usual_columns(TAG_COLUMNS, list(row.values))]
        if any(isinstance(tag, str) and len(tag.split()) > 1 for tag in tags):
            hint = "give each sentence its own number, or write one word per row"
            problem = "the row is a whole sentence, but other rows have the same sentence number"
            problems.add(DataError(problem, where=row.where, hint=hint))
            return
    value_lists = {name: [row.values[name] for row in rows] for name in first_row.values if name != column}
    yield Row(first_row.where, {column: first_row.values[column], **value_lists})
