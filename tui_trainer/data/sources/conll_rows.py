"""CoNLL files: one word a line with its tag in the last column, and a blank line after each sentence.

Columns are separated by tabs, or by white space in lines without tabs. What stands between the word and the tag is
passed over, and so are -DOCSTART- lines and comments ("# key = value") before a sentence.
"""

from collections.abc import Iterator
from typing import BinaryIO

from tui_trainer.data.columns.row import Row
from tui_trainer.data.decoding import text_lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError

WORDS, TAGS = "tokens", "ner_tags"
_DOCUMENT = "-DOCSTART-"
_LONGEST_SENTENCE = 100_000
_HINT = "one word a line with its tag behind it, and a blank line after each sentence"


def read_conll(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    """The sentences, each under the line that it begins on. Of those with a line that cannot be read, the first such
    line goes into `problems`."""
    columns = 0
    sentence: list[tuple[int, list[str]]] = []  # what was read since the last blank line, no more than is looked at
    for line, fields in _lines(content, label):
        # A '#' that is a word has a tag, and no '='.
        is_comment = fields and (fields[0] == "#" or fields[0].startswith("# ")) and any("=" in one for one in fields)
        if fields:
            if (sentence or not is_comment) and len(sentence) <= _LONGEST_SENTENCE:
                columns = columns or len(fields)
                sentence.append((line, fields))
            continue
        wrong = ((at, _problem(found, columns, number)) for number, (at, found) in enumerate(sentence))
        if problem := next(((at, words) for at, words in wrong if words), None):
            problems.add(DataError(problem[1], where=f"{label}, line {problem[0]}", hint=_HINT))
        elif sentence:
            words, tags = zip(*((found[0], found[-1]) for _, found in sentence), strict=True)
            yield Row(f"{label}, line {sentence[0][0]}", {WORDS: list(words), TAGS: list(tags)})
        sentence = []


def _lines(content: BinaryIO, label: str) -> Iterator[tuple[int, list[str]]]:
    """(line, its fields); none for a blank line, where a document begins, and for the end of the file."""
    line = 0
    for line, text in text_lines_of(content, label):
        text = text.rstrip("\r\n")
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
