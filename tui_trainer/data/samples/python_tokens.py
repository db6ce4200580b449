"""Lines of the standard library as words, tagged with what each name is for, in IOB2.

    FUNC, CLASS   what `def` and `class` name             PARAM    parameters of a def or a lambda
    MODULE        what is imported, `os . path`            CALL     what is called, `self . lines . append`
    KEYWORD       names of arguments in a call             TARGET   what is assigned, looped over, or named by `as`

The same name is now the one and now the other, so only its place tells. Strings are written '', numbers as they are.
"""

import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from io import StringIO
from itertools import islice
from keyword import iskeyword
from pathlib import Path

from tui_trainer.data.columns.tags import OUTSIDE
from tui_trainer.data.samples import Sample
from tui_trainer.data.standard_library import module_files
from tui_trainer.errors import DataError

# Some of the longer modules, as different as they are.
_MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "collections", "configparser", "contextlib", "csv",
    "dataclasses", "difflib", "doctest", "enum", "filecmp", "fileinput", "fractions", "ftplib", "functools", "gettext",
    "gzip", "heapq", "inspect", "ipaddress", "json.decoder", "json.encoder", "locale", "logging", "mailbox",
    "mimetypes", "optparse", "os", "pdb", "pickle", "pprint", "queue", "random", "reprlib", "sched", "selectors",
    "shlex", "shutil", "smtplib", "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile",
    "textwrap", "threading", "timeit", "trace", "traceback", "turtle", "types", "typing", "unittest.case",
    "unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref", "zipfile",
)  # fmt: skip
_ROWS = 60  # of a module, from its beginning
_FEWEST, _MOST = 4, 40  # words of a row
_OPEN, _CLOSE = "([{", ")]}"
_STRING = "''"
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


@cache
def python_tokens() -> list[tuple[str, Mapping[str, object]]]:
    """The rows, each text once. Takes about 2 seconds, once in a process. Raises DataError where the library's sources
    are not installed."""
    files, seen = dict(module_files()), set[str]()
    # Some modules are gone in a later Python.
    rows = [row for name in _MODULES if name in files for row in islice(_rows_of(name, files[name], seen), _ROWS)]
    if not rows:
        raise DataError("the sources of Python's standard library are not installed", hint="choose another data.path")
    return rows


def _rows_of(module: str, path: Path, seen: set[str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The lines of a module that mark something and are in no module before."""
    for line, words in _logical_lines(path.read_text(encoding="utf-8")):
        text = " ".join(words)
        if not _FEWEST <= len(words) <= _MOST or text in seen:
            continue
        seen.add(text)
        tags = tags_of(words)
        if tags != [OUTSIDE] * len(words):
            yield f"{module}, line {line}", {"tokens": words, "ner_tags": tags}


def _logical_lines(source: str) -> Iterator[tuple[int, list[str]]]:
    """(its first line, the words) of each statement."""
    words: list[str] = []
    start, inside = 0, 0
    for token in tokenize.generate_tokens(StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "NEWLINE":
            yield start, words
            words = []
        elif kind == "FSTRING_END":
            inside -= 1
        elif token.type not in _SKIPPED and not inside:
            start = start if words else token.start[0]
            words.append(_STRING if kind in ("STRING", "FSTRING_START") else token.string)
        inside += kind == "FSTRING_START"


def tags_of(words: list[str]) -> list[str]:
    tags = [OUTSIDE] * len(words)
    for start, end, kind in [*_imports(words), *_definitions(words), *_targets(words), *_in_brackets(words)]:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tags


_Span = tuple[int, int, str]


def _imports(words: list[str]) -> Iterator[_Span]:
    if words[0] not in ("import", "from"):
        return
    end = words.index("import") if words[0] == "from" and "import" in words else len(words)
    for place in range(1, end):
        if _is_name(words[place]) and words[place - 1] in ("import", "from", ",", "...", "."):
            last = _chain_end(words, place)
            if words[place - 1] != "." or place == 2:
                yield place, last, "MODULE"


def _definitions(words: list[str]) -> Iterator[_Span]:
    for place, word in enumerate(words[:-1]):
        if word in ("def", "class") and _is_name(words[place + 1]):
            yield place + 1, place + 2, "FUNC" if word == "def" else "CLASS"


def _targets(words: list[str]) -> Iterator[_Span]:
    end = _chain_end(words, 0) if _is_name(words[0]) else 0
    if end and end < len(words) and words[end] in ("=", "+=", "-=", ":"):
        yield 0, end, "TARGET"
    for place in range(1, len(words)):
        if _is_name(words[place]) and words[place - 1] == "as":
            yield place, _chain_end(words, place), "TARGET"
    for place, word in enumerate(words):
        if word == "for" and "in" in words[place:]:
            names = range(place + 1, words.index("in", place))
            yield from ((at, at + 1, "TARGET") for at in names if _is_name(words[at]))


def _in_brackets(words: list[str]) -> Iterator[_Span]:
    """Calls with their keywords, and parameters: what a bracket belongs to tells what stands in it."""
    brackets: list[str] = []
    for place, word in enumerate(words):
        before, after = words[place - 1] if place else "", words[place + 1] if place + 1 < len(words) else ""
        inside = brackets[-1] if brackets else ""
        if word in _OPEN:
            brackets.append(_owner(words, place))
        elif word in _CLOSE and brackets:
            brackets.pop()
        elif word == "lambda":
            brackets.append("lambda")
        elif word == ":" and inside == "lambda":
            brackets.pop()
        elif not _is_name(word):
            continue
        elif inside in ("def", "lambda") and words[place - 1 - (before in ("*", "**"))] in ("(", ",", "lambda"):
            yield place, place + 1, "PARAM"
        elif inside == "call" and after == "=" and before in ("(", ","):
            yield place, place + 1, "KEYWORD"
        elif after == "(" and before not in ("def", "class"):
            start = _chain_start(words, place)
            yield start, place + 1, "CALL"


def _owner(words: list[str], place: int) -> str:
    if words[place] != "(" or place == 0 or not _is_name(words[place - 1]):
        return ""
    before = words[place - 2] if place > 1 else ""
    return {"def": "def", "class": "class"}.get(before, "call")


def _chain_start(words: list[str], place: int) -> int:
    """Where `a . b . c` begins, of which the word at `place` is the last."""
    while place > 1 and words[place - 1] == "." and _is_name(words[place - 2]):
        place -= 2
    return place


def _chain_end(words: list[str], place: int) -> int:
    """Behind `a . b . c`, of which the word at `place` is the first."""
    while place + 2 < len(words) and words[place + 1] == "." and _is_name(words[place + 2]):
        place += 2
    return place + 1


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word)


SAMPLE = Sample(
    name="python-tokens",
    title="names in Python's code by what they are for",
    description="lines of Python's standard library as words, with tags for names of functions, parameters and more",
    content=python_tokens,
)
