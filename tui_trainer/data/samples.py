"""Built-in data sets: `sample:NAME` works without a network.

The rows are texts and code of Python 3.11's documentation and standard library; their licence is next to them.
"""

import difflib
import gzip
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import SAMPLE_PREFIX
from tui_trainer.terminal.safe_text import one_line

SAMPLES_PYTHON: Final = (3, 11, 7)
"""Version of Python that the rows come from. Fingerprints contain it, also those that earlier versions computed."""
_FOLDER: Final = Path(__file__).with_name("sample_rows")
_CHAT, _PREFERENCES = "python-help-chat", "python-preferences"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One built-in data set: its name, its description, and its rows."""

    name: str
    title: str
    description: str
    is_table: bool = True

    def content(self) -> list[tuple[str, Any]]:
        """Return (position, content) of each row: its columns as an object or, of a text, a string."""
        return _word_order_pairs() if self.name == _PREFERENCES else _content(self.name)


@cache
def _content(name: str) -> list[tuple[str, Any]]:
    lines = gzip.decompress((_FOLDER / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [(where, content) for where, content in map(json.loads, lines)]


@cache
def _word_order_pairs() -> list[tuple[str, Any]]:
    """Return the first question and answer of each conversation, beside the same answer with two words swapped.

    Both answers have the same words and length. The first and the last word stay, because they look different."""
    pairs = []
    for where, content in _content(_CHAT):
        question, answer = [turn["content"] for turn in content["messages"] if turn["role"] != "system"][:2]
        words = answer.split(" ")
        positions = [index for index in range(1, len(words) - 2) if words[index] != words[index + 1]]
        if "\n" in answer or not positions:
            continue
        index = random.Random(where).choice(positions)
        swapped = [*words[:index], words[index + 1], words[index], *words[index + 2 :]]
        pairs.append((where, {"prompt": question, "chosen": answer, "rejected": " ".join(swapped)}))
    return pairs


_SAMPLES: Final = (
    Sample(
        name="python-docstrings",
        title="Python docstrings by topic",
        description="first paragraphs of the docstrings of Python's standard library, labelled by topic",
    ),
    Sample(
        name=_CHAT,
        title="Conversations about Python's functions",
        description="questions about the standard library, answered with its docstrings, as conversations",
    ),
    Sample(
        name=_PREFERENCES,
        title="Word order in answers about Python's functions",
        description="questions about the standard library with its docstrings as better answers, and the same with two "
        "words swapped as worse ones",
    ),
    Sample(
        name="python-questions",
        title="Questions about Python's functions",
        description="questions about the standard library's functions, with and without an answer in their "
        "documentation",
    ),
    Sample(
        name="python-reference",
        title="Python's language reference",
        description="the topics of Python's own help(), one document per topic",
        is_table=False,
    ),
    Sample(
        name="python-signatures",
        title="Python functions, from signature to summary",
        description="signatures of the standard library's functions and the first sentence of each docstring",
    ),
    Sample(
        name="python-tokens",
        title="Tagged names in Python code",
        description="lines of Python's standard library as words, with tags for the names of functions, "
        "parameters and more",
    ),
)


def built_in_samples() -> dict[str, Sample]:
    """Return the samples by name."""
    return {sample.name: sample for sample in _SAMPLES}


def find_sample(name: str) -> Sample:
    """Return the sample with this name. Raises DataError, with the nearest name and a list, if there is none."""
    known_samples = built_in_samples()
    if name in known_samples:
        return known_samples[name]
    similar_names = difflib.get_close_matches(name, known_samples, n=1, cutoff=0.5)
    suggestion = f"did you mean {SAMPLE_PREFIX}{similar_names[0]}? " if similar_names else ""
    descriptions = ", ".join(f"{SAMPLE_PREFIX}{sample.name} ({sample.title})" for sample in known_samples.values())
    raise DataError(f"there is no sample named '{one_line(name, 60)}'", hint=f"{suggestion}samples: {descriptions}")
