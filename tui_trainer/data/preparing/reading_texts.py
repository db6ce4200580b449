"""The documents of one or several sources, read alike in every pass: what pass 1 counts, the later ones meet again."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from tui_trainer.data.columns.text_column import ColumnChoices
from tui_trainer.data.preparing.text_hash import text_hash
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much of each source is read, 0: all. `skips_bad_rows`: what cannot be used is passed over."""

    max_chars: int = 0
    max_rows: int = 0
    skips_bad_rows: bool = False


@dataclass(slots=True)
class Survey:
    """What pass 1 found: of the documents with text, in order, `lengths` in characters and, where they were wanted,
    `hashes`; how many each source has in `counts`.

    `read` counts all documents, blank ones too.
    """

    lengths: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    counts: list[int] = field(default_factory=list)
    read: int = 0
    notes: list[str] = field(default_factory=list)


def survey_of(
    source: Source, limits: Limits, progress: Progress | None, problems: ProblemList, *, hashed: bool = False
) -> Survey:
    """Pass 1: reads and checks every document. Rows that cannot be used go into `problems`.

    Raises DataError for them where they are not passed over, and for a source without text.
    """
    survey = Survey()
    for part, told in source.each(progress):
        choices = ColumnChoices(part.text_column)
        _survey_part(_documents(part, limits, told, choices, problems), limits, choices, survey, hashed)
    problems.raise_any(skips_rows=limits.skips_bad_rows)
    return survey


def _survey_part(
    documents: Iterator[str], limits: Limits, choices: ColumnChoices, survey: Survey, hashed: bool
) -> None:
    before, read, characters = len(survey.lengths), survey.read, 0
    for document in documents:
        survey.read += 1
        characters += len(document)
        if is_blank(document):
            continue
        survey.lengths.append(len(document))
        if hashed:
            survey.hashes.append(text_hash(document))
    found = len(survey.lengths) - before
    survey.counts.append(found)
    survey.notes += choices.notes()
    if limits.max_chars and characters >= limits.max_chars:
        survey.notes.append(
            f"data.max_chars: the first {characters:,} characters are used, "
            f"{found:,} documents, the last of them cut there"
        )
    if blank := survey.read - read - found:
        survey.notes.append(f"{blank:,} documents hold only white space and are left out")


def texts_of(source: Source, limits: Limits, count: int, progress: Progress | None = None) -> Iterator[tuple[int, str]]:
    """(number, text) of each document that is not blank, counted over all sources.

    Raises DataError where there are more of them than pass 1 found, `count`; mistakes in rows were told by it.
    """
    index = 0
    for part, told in source.each(progress):
        for text in _documents(part, limits, told, ColumnChoices(part.text_column), ProblemList()):
            if is_blank(text):
                continue
            if index >= count:
                raise DataError(f"{source.description} changed while it was read", hint="start again")
            yield index, text
            index += 1


def _documents(
    part: Source, limits: Limits, progress: Progress | None, choices: ColumnChoices, problems: ProblemList
) -> Iterator[str]:
    found = part.documents(
        progress, max_chars=limits.max_chars, max_rows=limits.max_rows, choices=choices, problems=problems
    )
    return (document.text for document in found)


def is_blank(text: str) -> bool:
    """Such documents are left out."""
    return not text or text.isspace()
