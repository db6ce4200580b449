"""Data that every Python carries, made of its standard library: `sample:NAME` works without a network.

The sources of the library are read, which every Python has; nothing is imported: modules do things when they are.
"""

import ast
import difflib
import gc
import re
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import islice
from keyword import iskeyword
from pathlib import Path
from typing import Any
from zlib import crc32

from tui_trainer.data.columns.tagged_rows import OUTSIDE
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import SAMPLE_PREFIX
from tui_trainer.terminal.safe_text import one_line

# Programs, tables and what some systems leave out.
_LEFT_OUT = {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "turtledemo"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class DocumentedFunction:
    """A function or a method. `path` is its place in the module, "PurePath.joinpath"; `arguments` without brackets."""

    module: str
    path: str
    arguments: str
    docstring: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.path}"

    @property
    def first_paragraph(self) -> str:
        """On one line."""
        return " ".join(self.docstring.strip().split("\n\n", maxsplit=1)[0].split())


@cache
def documented_functions() -> tuple[DocumentedFunction, ...]:
    """All functions with a docstring, in the order of their modules and lines. Takes 2 seconds, once in a process.

    Raises DataError where the library's sources are not installed.
    """
    # Syntax trees are so many objects that looking for garbage among them takes three times as long as parsing.
    was_on = gc.isenabled()
    gc.disable()
    try:
        found = tuple(function for module, path in module_files() for function in _functions_in(module, path))
    finally:
        if was_on:
            gc.enable()
    if not found:
        raise DataError("the sources of Python's standard library are not installed", hint="choose another data.path")
    return found


@cache
def module_files() -> tuple[tuple[str, Path], ...]:
    """(name, file) of the public modules, tests left out, sorted by their names."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [
        (".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path)
        for name in sys.stdlib_module_names - _LEFT_OUT
        if not name.startswith("_")
        for path in (root / f"{name}.py", *(root / name).rglob("*.py"))
        if path.is_file() and not {"test", "tests"}.intersection(path.relative_to(root).parts)
    ]
    return tuple(sorted(found))


def _functions_in(module: str, path: Path) -> Iterator[DocumentedFunction]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # some Pythons carry templates that are no code
    for place, function in _functions(tree.body, ""):
        if docstring := ast.get_docstring(function):
            yield DocumentedFunction(module, place, ast.unparse(function.args), docstring)


def _functions(body: Sequence[ast.stmt], place: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and of its classes, those behind an `if` or a `try` too, and none inside another."""
    for node in body:
        if isinstance(node, _FUNCTIONS):
            yield f"{place}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{place}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body, place)


@cache
def python_reference() -> list[tuple[str, str]]:
    """The topics of `help()`: Python's language reference, one document per topic.

    Many topics repeat a section of a longer one. Each text is kept once, in its longest form: otherwise a held-out
    topic could be read in the training text.
    """
    from pydoc_data.topics import topics

    return [(f"topic '{name}'", topics[name]) for name in sorted(_without_repeats(topics))]


def _without_repeats(texts: dict[str, str]) -> list[str]:
    """Names of the texts that are not part of another one, the longest first."""
    # The words alone: a section is underlined and wrapped differently where it is part of a longer topic.
    underline = re.compile(r'^([*=\-~^"#])\1+$', flags=re.MULTILINE)
    bare = {name: " ".join(underline.sub("", text).split()) for name, text in texts.items()}
    kept: list[str] = []
    seen = ""
    for name in sorted(bare, key=lambda name: (-len(bare[name]), name)):
        if bare[name] and bare[name] not in seen:
            kept.append(name)
            seen += "\0" + bare[name]
    return kept


# Which of them are there depends on the version of Python; a module that is missing is passed over.
TOPICS = {
    "windows": "tkinter turtle",
    "internet": "email mailbox http urllib imaplib smtplib ftplib nntplib poplib xmlrpc wsgiref socketserver ssl "
    "socket cgi ipaddress webbrowser html mimetypes",
    "concurrency": "asyncio multiprocessing threading concurrent subprocess queue selectors sched",
    "modules": "importlib pkgutil zipimport runpy modulefinder venv site sysconfig zipapp imp",
    "testing": "logging unittest doctest warnings traceback pdb bdb trace cProfile profile pstats timeit tracemalloc",
    "numbers": "fractions statistics random numbers datetime calendar colorsys decimal uuid hashlib secrets",
    "files": "tarfile zipfile pathlib shutil tempfile gzip bz2 lzma os ntpath posixpath genericpath fileinput filecmp "
    "glob configparser csv plistlib pickle shelve dbm xml json",
    "language": "inspect ast dis symtable tokenize typing pydoc enum collections functools contextlib dataclasses abc "
    "types pickletools codecs re string difflib textwrap",
}
_SHORTEST_PARAGRAPH = 20  # characters: less says nothing


@cache
def python_docstrings() -> list[tuple[str, Mapping[str, object]]]:
    """The first paragraph of each docstring, with its topic. A text that stands twice is there once.

    They are mixed, so that the first rows have all topics.
    """
    topic_of = {module: topic for topic, modules in TOPICS.items() for module in modules.split()}
    rows: dict[str, tuple[str, Mapping[str, object]]] = {}
    for function in documented_functions():
        topic = topic_of.get(function.module.partition(".")[0])
        text = function.first_paragraph
        if topic and len(text) >= _SHORTEST_PARAGRAPH:
            rows.setdefault(text, (function.full_name, {"text": text, "topic": topic}))
    return [rows[text] for text in sorted(rows, key=lambda text: (crc32(text.encode()), text))]


# Shorter ones say nothing, longer ones are no summaries.
_SENTENCE_WORDS = range(3, 26)
_LONGEST_SIGNATURE = 120
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s|\n\s*\n")


@cache
def python_signatures() -> list[tuple[str, Mapping[str, object]]]:
    """`name(arguments)` and the first sentence of the docstring, each signature once.

    Of methods that share one sentence with others of their name, such as a pair of overrides, the first is kept: a
    model must not find the held-out answer in the training rows under the same name.
    """
    rows: list[tuple[str, Mapping[str, object]]] = []
    seen: set[tuple[str, str]] = set()
    signatures: set[str] = set()
    for function in documented_functions():
        signature = f"{function.name}({function.arguments})"
        sentence = first_sentence(function.docstring)
        if len(signature) > _LONGEST_SIGNATURE or len(sentence.split()) not in _SENTENCE_WORDS:
            continue
        if signature in signatures or (function.name, sentence) in seen:
            continue
        signatures.add(signature)
        seen.add((function.name, sentence))
        rows.append((function.full_name, {"input": signature, "output": sentence}))
    return rows


def first_sentence(docstring: str) -> str:
    """On one line."""
    return " ".join(_END_OF_SENTENCE.split(docstring.strip(), maxsplit=1)[0].split())


_QUESTIONS = ("What does {} do?", "Explain {}.", "What is {} for?", "Tell me about {}.")
_CALLS = ("How is it called?", "Which arguments does it take?")
_SYSTEM = "You answer questions about Python's standard library."
# Shorter answers say nothing, longer ones are cut by small models.
_ANSWER_CHARACTERS = range(20, 400)
_LONGEST_ARGUMENTS = 120


@cache
def python_help_chat() -> list[tuple[str, Mapping[str, object]]]:
    """Conversations of one or two questions, each answer once; some begin with a system turn.

    Functions that share their answer with an earlier one are left out: a model must not find the held-out answer in
    the training rows.
    """
    rows: list[tuple[str, Mapping[str, object]]] = []
    seen: set[str] = set()
    for function in documented_functions():
        answer = function.first_paragraph
        if len(answer) not in _ANSWER_CHARACTERS or answer in seen:
            continue
        seen.add(answer)
        rows.append((function.full_name, {"messages": _conversation(function, answer, len(rows))}))
    return rows


def _conversation(function: DocumentedFunction, answer: str, number: int) -> list[dict[str, str]]:
    """Every third conversation asks for the arguments as well, every fifth begins with a system turn."""
    name = function.full_name
    system = [{"role": "system", "content": _SYSTEM}] if number % 5 == 0 else []
    first = _turns(_QUESTIONS[number % len(_QUESTIONS)].format(name), answer)
    asks_more = number % 3 == 0 and len(function.arguments) <= _LONGEST_ARGUMENTS
    second = _turns(_CALLS[number % len(_CALLS)], f"{name}({function.arguments})") if asks_more else []
    return [*system, *first, *second]


def _turns(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


_LONGEST_CONTEXT, _LONGEST_ARGUMENTS_ASKED = 400, 80
_ARGUMENT = re.compile(r"[A-Za-z_]\w*")
_DEFAULT = re.compile(r"=([\w.'\"-]+)")


@cache
def python_questions() -> list[tuple[str, Mapping[str, object]]]:
    """Signature and first paragraph of each function, once, with one question about it, in the form of SQuAD 2.0.

    The kinds of questions follow each other. What a signature does not say has no answer: the default of a function
    without any, the first argument of one that takes none.
    """
    rows: list[tuple[str, Mapping[str, object]]] = []
    seen: set[str] = set()
    for function in documented_functions():
        signature = f"{function.name}({function.arguments})"
        context = f"{signature}\n{function.first_paragraph}"
        if len(context) > _LONGEST_CONTEXT or len(function.arguments) > _LONGEST_ARGUMENTS_ASKED or context in seen:
            continue
        seen.add(context)
        kinds = list(_questions(function, context))
        question, start, end = kinds[len(rows) % len(kinds)]
        found = {"text": [context[start:end]], "answer_start": [start]} if end else {"text": [], "answer_start": []}
        rows.append((function.full_name, {"question": question, "context": context, "answers": found}))
    return rows


def _questions(function: DocumentedFunction, context: str) -> Iterator[tuple[str, int, int]]:
    """(question, the characters of the answer); an answer that ends at 0 is none."""
    opened = len(function.name) + 1
    yield "What is the function called?", 0, opened - 1
    arguments = [
        found for found in _ARGUMENT.finditer(function.arguments) if _names_an_argument(function.arguments, found)
    ]
    first = arguments[0].span() if arguments else (-opened, -opened)
    yield "What is its first argument?", opened + first[0], opened + first[1]
    default = _DEFAULT.search(function.arguments)
    span = default.span(1) if default else (-opened, -opened)
    yield "Which default comes first?", opened + span[0], opened + span[1]
    sentence = first_sentence(function.first_paragraph)
    start = context.index("\n") + 1
    if context.startswith(sentence, start):
        yield "What does it do?", start, start + len(sentence)


def _names_an_argument(arguments: str, found: "re.Match[str]") -> bool:
    """Whether an argument begins here, not what is said of one."""
    return arguments[: found.start()].rstrip(" *").endswith(",") or not arguments[: found.start()].strip(" *")


# Some of the longer modules, as different as they are.
_TAGGED_MODULES = (
    "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "collections", "configparser", "contextlib", "csv",
    "dataclasses", "difflib", "doctest", "enum", "filecmp", "fileinput", "fractions", "ftplib", "functools", "gettext",
    "gzip", "heapq", "inspect", "ipaddress", "json.decoder", "json.encoder", "locale", "logging", "mailbox",
    "mimetypes", "optparse", "os", "pdb", "pickle", "pprint", "queue", "random", "reprlib", "sched", "selectors",
    "shlex", "shutil", "smtplib", "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile",
    "textwrap", "threading", "timeit", "trace", "traceback", "turtle", "types", "typing", "unittest.case",
    "unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref", "zipfile",
)  # fmt: skip
_ROWS_OF_A_MODULE = 60  # of a module, from its beginning
_FEWEST_WORDS, _MOST_WORDS = 4, 40  # words of a row
_OPEN, _CLOSE = "([{", ")]}"
_STRING = "''"
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


@cache
def python_tokens() -> list[tuple[str, Mapping[str, object]]]:
    """Lines of the standard library as words, tagged with what each name is for, in IOB2; each text once.

        FUNC, CLASS   what `def` and `class` name             PARAM    parameters of a def or a lambda
        MODULE        what is imported, `os . path`            CALL     what is called, `self . lines . append`
        KEYWORD       names of arguments in a call             TARGET   what is assigned, looped over, or named by `as`

    The same name is now the one and now the other, so only its place tells. Strings are written '', numbers as they
    are. Takes about 2 seconds, once in a process. Raises DataError where the library's sources are not installed.
    """
    files, seen = dict(module_files()), set[str]()
    # Some modules are gone in a later Python.
    rows = [
        row
        for name in _TAGGED_MODULES
        if name in files
        for row in islice(_rows_of(name, files[name], seen), _ROWS_OF_A_MODULE)
    ]
    if not rows:
        raise DataError("the sources of Python's standard library are not installed", hint="choose another data.path")
    return rows


def _rows_of(module: str, path: Path, seen: set[str]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The lines of a module that mark something and are in no module before."""
    for line, words in _logical_lines(path.read_text(encoding="utf-8")):
        text = " ".join(words)
        if not _FEWEST_WORDS <= len(words) <= _MOST_WORDS or text in seen:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One built-in data set. `content` has (where, columns) of the rows of a table, or (where, text), always in one
    order."""

    name: str
    title: str
    description: str
    content: Callable[[], Sequence[tuple[str, Any]]]
    is_table: bool = True


@cache
def samples() -> dict[str, Sample]:
    found = (
        Sample(
            name="python-docstrings",
            title="Python docstrings by topic",
            description="first paragraphs of the docstrings of Python's standard library, labelled by topic",
            content=python_docstrings,
        ),
        Sample(
            name="python-help-chat",
            title="Conversations about Python's functions",
            description="questions about the standard library, answered with its docstrings, as conversations",
            content=python_help_chat,
        ),
        Sample(
            name="python-questions",
            title="Questions about Python's functions",
            description="questions about the standard library's functions, with and without an answer in their "
            "documentation",
            content=python_questions,
        ),
        Sample(
            name="python-reference",
            title="Python's language reference",
            description="the topics of Python's own help(), one document per topic",
            content=python_reference,
            is_table=False,
        ),
        Sample(
            name="python-signatures",
            title="Python functions, from signature to summary",
            description="signatures of the standard library's functions and the first sentence of each docstring",
            content=python_signatures,
        ),
        Sample(
            name="python-tokens",
            title="Tagged names in Python code",
            description="lines of Python's standard library as words, with tags for the names of functions, "
            "parameters and more",
            content=python_tokens,
        ),
    )
    return {sample.name: sample for sample in found}


def find_sample(name: str) -> Sample:
    """Raises DataError with the nearest name and the list when there is no such sample."""
    known = samples()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {SAMPLE_PREFIX}{near[0]}? " if near else ""
    listed = ", ".join(f"{SAMPLE_PREFIX}{sample.name} ({sample.title})" for sample in known.values())
    raise DataError(f"there is no sample named '{one_line(name, 60)}'", hint=f"{guess}samples: {listed}")
