"""Functions of the standard library, for models that go from one text to another."""

import re
from collections.abc import Mapping
from functools import cache

from tui_trainer.data.samples import Sample
from tui_trainer.data.standard_library import documented_functions

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


SAMPLE = Sample(
    name="python-signatures",
    title="Python's functions, signature to summary",
    description="signatures of the standard library's functions and the first sentence of each docstring",
    content=python_signatures,
)
