"""Questions about functions of the standard library, answered with a part of their documentation."""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from tui_trainer.data.samples import Sample
from tui_trainer.data.samples.python_signatures import first_sentence
from tui_trainer.data.standard_library import DocumentedFunction, documented_functions

_LONGEST_CONTEXT, _LONGEST_ARGUMENTS = 400, 80
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
        if len(context) > _LONGEST_CONTEXT or len(function.arguments) > _LONGEST_ARGUMENTS or context in seen:
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
    arguments = [found for found in _ARGUMENT.finditer(function.arguments) if _is_name(function.arguments, found)]
    first = arguments[0].span() if arguments else (-opened, -opened)
    yield "What is its first argument?", opened + first[0], opened + first[1]
    default = _DEFAULT.search(function.arguments)
    span = default.span(1) if default else (-opened, -opened)
    yield "Which default comes first?", opened + span[0], opened + span[1]
    sentence = first_sentence(function.first_paragraph)
    start = context.index("\n") + 1
    if context.startswith(sentence, start):
        yield "What does it do?", start, start + len(sentence)


def _is_name(arguments: str, found: "re.Match[str]") -> bool:
    """Whether an argument begins here, not what is said of one."""
    return arguments[: found.start()].rstrip(" *").endswith(",") or not arguments[: found.start()].strip(" *")


SAMPLE = Sample(
    name="python-questions",
    title="Questions about Python's functions",
    description="questions about the standard library's functions, whose answers stand in their documentation or not",
    content=python_questions,
)
