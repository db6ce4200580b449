"""CoNLL files: one word a line with its tag in the last column, and a blank line after each sentence.

Columns are separated by tabs, or by white space in lines without tabs. What stands between the word and the tag is
passed over, and so are -DOCSTART- lines and comments ("# key = value") before a sentence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from tui_trainer.data.columns.row import Row
from tui_trainer.data.decoding import decoded, lines_of, refuse_other_encodings
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError

WORDS, TAGS = "tokens", "ner_tags"
_DOCUMENT = "-DOCSTART-"
_LONGEST_SENTENCE = 100_000
_HINT = "one word a line with its tag behind it, and a blank line after each sentence"


@dataclass(slots=True)
class _Sentence:
    """What was read since the last blank line. With a problem in one of its lines it is left out."""

    line: int
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    problem: DataError | None = None

    def add(self, fields: list[str], columns: int, where: str) -> None:
        if self.problem:
            return
        if words := _problem(fields, columns, len(self.words)):
            self.problem = DataError(words, where=where, hint=_HINT)
        self.words.append(fields[0])
        self.tags.append(fields[-1])


def read_conll(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    """The sentences, each under the line that it begins on. Of those with a line that cannot be read, the first such
    line goes into `problems`."""
    columns, sentence = 0, None
    for line, fields in _lines(content, label):
        # A '#' that is a word has a tag, and no '='.
        is_comment = fields and (fields[0] == "#" or fields[0].startswith("# ")) and any("=" in one for one in fields)
        if fields and sentence is None and not is_comment:
            sentence, columns = _Sentence(line), columns or len(fields)
        if sentence is None:
            continue
        if fields:
            sentence.add(fields, columns, f"{label}, line {line}")
            continue
        if sentence.problem:
            problems.add(sentence.problem)
        else:
            yield Row(f"{label}, line {sentence.line}", {WORDS: sentence.words, TAGS: sentence.tags})
        sentence = None


def _lines(content: BinaryIO, label: str) -> Iterator[tuple[int, list[str]]]:
    """(line, its fields); none for a blank line, where a document begins, and for the end of the file."""
    line = 0
    for line, raw, offset in lines_of(content, label):
        if line == 1:
            refuse_other_encodings(raw, label)
        text = decoded(raw, label, line=line, offset=offset).rstrip("\r\n")
        fields = [part.strip() for part in text.split("\t")] if "\t" in text else text.split()
        is_blank = not any(fields) or fields[0] == _DOCUMENT
        yield line, [] if is_blank else fields
    yield line + 1, []


def _problem(fields: list[str], columns: int, words: int) -> str:
    if len(fields) < 2 or not fields[-1]:
        return "the line has a word and no tag"
    if not fields[0]:
        return "the line has a tag and no word"
    if len(fields) != columns:
        return f"the line has {len(fields)} columns, the first one of the file {columns}"
    return f"a sentence of more than {_LONGEST_SENTENCE:,} words" if words >= _LONGEST_SENTENCE else ""
