"""Texts that every Python carries, as data sets: `sample:NAME` works without a network.

To add one, write a function that returns (name of the document, text) pairs and list it in SAMPLES.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

PREFIX = "sample:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One built-in data set. `read` returns (where, text) pairs, always in the same order."""

    name: str
    title: str
    description: str
    read: Callable[[], list[tuple[str, str]]]


@cache
def python_reference() -> list[tuple[str, str]]:
    """The topics of `help()`: Python's language reference, one document per topic.

    Many topics repeat a section of a longer one. Each text is kept once, in its longest form: otherwise a held-out
    topic could be read in the training text.
    """
    from pydoc_data.topics import topics

    return [(f"topic '{name}'", topics[name]) for name in sorted(_without_repeats(topics))]


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample(
            name="python-reference",
            title="Python's language reference",
            description="the topics of Python's own help(), one document per topic",
            read=python_reference,
        ),
    )
}


def find_sample(name: str) -> Sample:
    """Raises DataError with the nearest name and the list when there is no such sample."""
    if name in SAMPLES:
        return SAMPLES[name]
    near = difflib.get_close_matches(name, SAMPLES, n=1, cutoff=0.5)
    guess = f"did you mean {PREFIX}{near[0]}? " if near else ""
    known = ", ".join(f"{PREFIX}{sample.name} ({sample.title})" for sample in SAMPLES.values())
    raise DataError(f"there is no sample named '{one_line(name, 60)}'", hint=f"{guess}samples: {known}")


def _without_repeats(texts: dict[str, str]) -> list[str]:
    """Names of the texts that are not part of another one, the longest first."""
    bare = {name: _bare(text) for name, text in texts.items()}
    kept: list[str] = []
    seen = ""
    for name in sorted(bare, key=lambda name: (-len(bare[name]), name)):
        if bare[name] and bare[name] not in seen:
            kept.append(name)
            seen += "\0" + bare[name]
    return kept


def _bare(text: str) -> str:
    """The words alone: a section is underlined and wrapped differently where it is part of a longer topic."""
    return " ".join(re.sub(r'^([*=\-~^"#])\1+$', "", text, flags=re.MULTILINE).split())
