"""Sentences of files that have one word a line: CoNLL, and tables with a column that says which sentence it is.

CoNLL has a blank line after each sentence. Columns are separated by tabs, or by white space in lines without tabs, or
by another sign where the first line has neither. The word is in the first and the tag in the last; in CoNLL-U they are
FORM and UPOS, and its ranges (1-2) and empty nodes (1.1) are no words. What stands between is passed over, and so are
-DOCSTART- lines, comments ("# key = value") before a sentence, and names of columns in the first line.
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
_DOCUMENT_COLUMNS = ("document_id", "doc_id", "document", "doc")  # in which the numbers of sentences begin anew
_DOCUMENT = "-DOCSTART-"
_LONGEST_SENTENCE = 100_000
_LOOKED_SENTENCES = 100
_LONG_ALONE = 100  # words of a file's only sentence, above which its blank lines are missing
_SIGNS = "|;,"
_CHUNKS = frozenset({"NP", "VP", "PP"})
_HINT = (
    "one word per line, followed by its tag (after a tab if words contain spaces), and a blank line after each sentence"
)
_UNIVERSAL_COLUMNS = 10  # of CoNLL-U, and of CoNLL-X with the same ones at these places
_UNIVERSAL = {WORDS: 1, "upos": 3, "xpos": 4}
_NO_WORD = re.compile(r"\d+[-.]\d+")
_BRACKETS = re.compile(r"\(?[^()*]*\*\)?")

Sentence = list[tuple[int, list[str]]]  # (line, fields) of each word


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns a file has, and which of them are read under which names."""

    columns: int
    read: Mapping[str, int]
    marks_entities: bool = False
    """Whether the tags are O, B-PER and the like."""

    @property
    def is_universal(self) -> bool:
        return self.columns == _UNIVERSAL_COLUMNS and self.read is _UNIVERSAL


def read_conll(content: BinaryIO, label: str, problems: ProblemList, choices: ColumnChoices) -> Iterator[Row]:
    """The sentences, each under the line that it begins on. Of those with a line that cannot be read, the first such
    line goes into `problems`. Raises DataError for a file whose words or tags cannot be told."""
    sentences = _sentences(content, label)
    head: list[Sentence] = []
    for sentence in islice(sentences, _LOOKED_SENTENCES):
        head.append(sentence)
        if len(sentence) > 1:
            break
    if not head:
        return
    layout, count, longest = _layout(head, label, choices), 0, 0
    for sentence in chain(head, sentences):
        count, longest = count + 1, max(longest, len(sentence))
        words = [(line, fields) for line, fields in sentence if not (layout.is_universal and _is_no_word(fields))]
        while words and _is_comment(words[0][1], layout):
            del words[0]
        wrong = ((line, _problem(fields, layout, number)) for number, (line, fields) in enumerate(words))
        if problem := next(((line, what) for line, what in wrong if what), None):
            problems.add(DataError(problem[1], where=f"{label}, line {problem[0]}", hint=_HINT))
        elif words:
            found = {name: [fields[place] for _, fields in words] for name, place in layout.read.items()}
            if layout.is_universal:
                # "_" stands for what was not annotated.
                found = {name: values for name, values in found.items() if name == WORDS or {*values} != {"_"}}
                if "_" in (tags := found.get("upos", [])):
                    where = f"{label}, line {words[tags.index('_')][0]}"
                    problems.add(
                        DataError("the word has no UPOS tag, but other words of the sentence have one", where=where)
                    )
                    continue
            yield Row(f"{label}, line {words[0][0]}", found)
    if count == 1 and longest > _LONG_ALONE:
        choices.remark(f"{label} has no blank line between its {longest:,} words: they are read as one sentence, cut "
                       "to data.max_length tokens; put a blank line after each sentence")  # fmt: skip


def _sentences(content: BinaryIO, label: str) -> Iterator[Sentence]:
    """What stands between blank lines, no more than is looked at."""
    sentence: Sentence = []
    for line, fields in _lines(content, label):
        if not fields and sentence:
            yield sentence
            sentence = []
        elif fields and (sentence or fields[0] != _DOCUMENT) and len(sentence) <= _LONGEST_SENTENCE:
            sentence.append((line, fields))


def _lines(content: BinaryIO, label: str) -> Iterator[tuple[int, list[str]]]:
    """(line, its fields); none for a blank line and for the end of the file."""
    line, sign, signs = 0, "", 0
    for line, text in text_lines_of(content, label):
        if text.startswith(("#begin document", "#end document")):
            hint = "write two columns, the word and its tag (B-PER, O, ...)"
            raise DataError("CoNLL-2012 (OntoNotes) is not supported", where=f"{label}, line {line}", hint=hint)
        text = text.rstrip("\r\n")
        if not signs and (one := text.split()) and not one[0].startswith("#"):
            signs = -1
            if len(one) == 1 and (sign := next((each for each in _SIGNS if _ends_in_tag(text, each)), "")):
                signs = text.count(sign) or -1
        if "\t" in text:
            fields = [part.strip() for part in text.split("\t")]
        else:
            fields = [part.strip() for part in text.rsplit(sign, signs)] if sign and text.strip() else text.split()
        yield line, fields if any(fields) else []
    yield line + 1, []


def _ends_in_tag(line: str, sign: str) -> bool:
    word, _, tag = line.rpartition(sign)
    return bool(word) and bool(ENTITY_TAG.fullmatch(tag.strip()))


def _layout(head: Sequence[Sentence], label: str, choices: ColumnChoices) -> _Layout:
    """By the first sentence of several words, or all of one word. Takes names of columns off the first one."""
    line, first = head[0][0]
    names = [name.lower() for name in first]
    if len(first) > 1 and names[0] in WORD_COLUMNS and names[-1] in TAG_COLUMNS:
        choices.remark(f"{label}: line {line:,} is a header and is skipped")
        del head[0][0]
    lines = [fields for _, fields in head[-1]]
    columns = len(next((fields for fields in lines if not fields[0].startswith("#")), first))
    lines = [fields for fields in lines if len(fields) == columns]
    where = f"{label}, line {line}"
    for place in range(columns if lines else 0):
        numbers = [fields[place] for fields in lines if not _is_no_word(fields)]
        start = 0 if numbers[:1] == ["0"] else 1
        is_counted = numbers == [str(number) for number in range(start, start + len(numbers))]
        if not is_counted or not numbers or (len(numbers) == 1 and (place or columns != _UNIVERSAL_COLUMNS)):
            continue
        if place == 0 and columns == _UNIVERSAL_COLUMNS:
            choices.remark(f"{label} is CoNLL-U: words are FORM, tags UPOS; ranges and empty nodes are skipped")
            return _Layout(columns, _UNIVERSAL)
        if place == 0 and columns > 2:
            tag = _tags_behind_number(lines)
            more = [str(at + 1) for at in range(2, columns) if at != tag]
            also = f", nor {'is column' if len(more) == 1 else 'are columns'} {', '.join(more)}" if more else ""
            choices.remark(f"{label}: the first column numbers the words and is not read{also}")
            of_entities = all(ENTITY_TAG.fullmatch(fields[tag]) for fields in lines)
            return _Layout(columns, {WORDS: 1, TAGS: tag}, of_entities)
        what = f"column {place + 1} of {columns} numbers the words, so it is unclear where word and tag are"
        raise DataError(what, where=where, hint="write two columns, the word and its tag, or CoNLL-U with ten columns")
    if any(_BRACKETS.fullmatch(fields[-1]) for fields in lines):
        hint = "write tags such as B-PER, I-PER and O"
        raise DataError("the tags are brackets, such as (PERSON*", where=where, hint=hint)
    before, behind = ([bool(ENTITY_TAG.fullmatch(fields[place])) for fields in lines] for place in (0, -1))
    if columns == 2 and len(lines) > 1 and all(before) and not all(behind):
        choices.remark(f"{label}: the tag is in the first column, and the word in the second")
        return _Layout(columns, {WORDS: 1, TAGS: 0})
    tags = [fields[-1] for fields in lines if not fields[0].startswith("#")]
    return _Layout(columns, {WORDS: 0, TAGS: -1}, bool(tags) and all(map(ENTITY_TAG.fullmatch, tags)))


def _tags_behind_number(lines: Sequence[Sequence[str]]) -> int:
    """Return the column of the tags where words are numbered: the last, or of levels of entities the outermost one."""
    last, third = len(lines[0]) - 1, [fields[2] for fields in lines]
    are_entities = all(ENTITY_TAG.fullmatch(tag) for fields in lines for tag in fields[2:])
    return 2 if are_entities and not _CHUNKS & {tag.partition("-")[2] for tag in third} else last


def _is_no_word(fields: Sequence[str]) -> bool:
    return bool(_NO_WORD.fullmatch(fields[0]))


def _is_comment(fields: Sequence[str], layout: _Layout) -> bool:
    """A '#' that is a word has a tag, and no '='."""
    if not fields[0].startswith("#") or (len(fields[0]) > 1 and not (layout.is_universal or fields[0][1] == " ")):
        return False
    if layout.marks_entities and not ENTITY_TAG.fullmatch(fields[-1]):
        return fields != ["#"]
    return any("=" in one for one in fields) or (len(fields) != layout.columns and fields != ["#"])


def _problem(fields: Sequence[str], layout: _Layout, words: int) -> str:
    if len(fields) < 2 or (len(fields) == layout.columns and not fields[layout.read.get(TAGS, -1)]):
        return "the line has a word but no tag"
    if len(fields) != layout.columns:
        return f"the line has {len(fields)} columns, but the first line of the file has {layout.columns}"
    if not fields[layout.read[WORDS]]:
        return "the line has a tag but no word"
    return f"the sentence has more than {_LONGEST_SENTENCE:,} words" if words >= _LONGEST_SENTENCE else ""


def with_words_joined(rows: Iterator[Row], problems: ProblemList, choices: ColumnChoices) -> Iterator[Row]:
    """Of a table with one word a row, its sentences: each column lists what the words have. Other rows as they are.

    A sentence goes on where its number is there again, or none. One of a single row stays as it is, for that may hold
    all of its words. Raises DataError for a sentence that begins again further down.
    """
    first = next(rows, None)
    if first is None:
        return
    rows = chain((first,), rows)
    column = _sentence_column(first)
    if not column:
        yield from rows
        return
    choices.remark(f"rows with the same '{one_line(column, 40)}' form one sentence")
    numbers = (*usual_columns(_DOCUMENT_COLUMNS, list(first.values)), column)
    seen: set[int] = set()
    sentence, current = list[Row](), object()
    bad = before = problems.count
    for row in rows:
        is_behind_bad = problems.count != before  # which may have been of the sentence before or of this one
        values = tuple(row.values.get(name) for name in numbers)
        if not sentence and values[-1] in ("", None):
            what = f"the first word has no '{one_line(column, 40)}'"
            raise DataError(what, where=row.where, hint="number each sentence, at least in its first row")
        goes_on = values[-1] in ("", None) or values[-1] != values[-1]  # NaN, in pandas
        if sentence and not goes_on and values != current:
            yield from _joined(sentence, column, problems, bad)
            sentence, bad = [], -1 if is_behind_bad else problems.count
        if not sentence:
            number = hash(repr(values))
            if number in seen:
                what = f"the sentence '{one_line(str(values[-1]), 40)}' already ended in an earlier row"
                raise DataError(what, where=row.where, hint=f"sort the rows by '{one_line(column, 40)}'")
            seen.add(number)
            current = values
        sentence.append(row)
        before = problems.count
    yield from _joined(sentence, column, problems, bad)


def joins_words(columns: Sequence[str]) -> bool:
    """Whether a table with these columns may have a word a row."""
    return bool(usual_columns(SENTENCE_COLUMNS, columns) and usual_columns(WORD_COLUMNS, columns)) and not (
        usual_columns(TEXT_COLUMNS, columns)
    )


def _sentence_column(row: Row) -> str:
    names = list(row.values)
    if not joins_words(names):
        return ""
    word = row.values[usual_columns(WORD_COLUMNS, names)[0]]
    return usual_columns(SENTENCE_COLUMNS, names)[0] if isinstance(word, str) else ""


def _joined(rows: Sequence[Row], column: str, problems: ProblemList, bad: int) -> Iterator[Row]:
    """Nothing where a row of it could not be read, which is in `problems` since there were `bad` of them."""
    if problems.count != bad:
        return
    if len(rows) == 1:
        yield rows[0]
        return
    first = rows[0]
    for row in rows:
        if row.values.keys() != first.values.keys():
            problems.add(DataError("the columns differ from those of the sentence's first word", where=row.where))
            return
        tags = [row.values[name] for name in usual_columns(TAG_COLUMNS, list(row.values))]
        if any(isinstance(tag, str) and len(tag.split()) > 1 for tag in tags):
            hint = "give each sentence its own number, or write one word per row"
            what = "the row is a whole sentence, but other rows have the same sentence number"
            problems.add(DataError(what, where=row.where, hint=hint))
            return
    lists = {name: [row.values[name] for row in rows] for name in first.values if name != column}
    yield Row(first.where, {column: first.values[column], **lists})
