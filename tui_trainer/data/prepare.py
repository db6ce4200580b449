"""From a source of text to rows of character tokens on disk, once for each source and settings.

    pass 1   read and check every document, count characters      -> split
    pass 2   collect the characters of the training documents     -> tokenizer
    pass 3   encode both sides, cut into rows                     -> train.arrow, eval.arrow

The source is read three times, so that only one document at a time (and one batch of tokens) is in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tui_trainer.data.cache import (
    EVAL_FILE,
    TOKENIZER_FILE,
    TRAIN_FILE,
    Built,
    Counts,
    Cut,
    PreparedData,
    find_entry,
    make_entry,
)
from tui_trainer.data.columns import ColumnChoices
from tui_trainer.data.estimate import DataEstimate, estimate_characters
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources import Source
from tui_trainer.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tui_trainer.data.rows import RowWriter
    from tui_trainer.data.split import Split

__all__ = ["DataEstimate", "PreparedData", "estimate_characters", "lookup", "prepare_characters"]

BATCH_CHARACTERS = 1 << 20


def lookup(
    source: Source,
    *,
    max_length: int,
    eval_fraction: float,
    seed: int,
    max_chars: int = 0,
    cache_dir: Path,
    progress: Progress | None = None,
) -> PreparedData | None:
    """The data as an earlier `prepare_characters` left it, or None. Hashes the source, makes nothing."""
    cut = Cut(max_length=max_length, eval_fraction=eval_fraction, seed=seed, max_chars=max_chars)
    return find_entry([source], cut, cache_dir, progress)


def prepare_characters(
    source: Source,
    *,
    max_length: int,
    eval_fraction: float,
    seed: int,
    max_chars: int = 0,
    cache_dir: Path,
    progress: Progress | None = None,
) -> PreparedData:
    """Rows of `max_length` + 1 character tokens for training and evaluation, from the cache or made now.

    Raises DataError for what is wrong in the data, for too little of it, and for a cache that cannot be written.
    """
    cut = Cut(max_length=max_length, eval_fraction=eval_fraction, seed=seed, max_chars=max_chars)
    if entry := find_entry([source], cut, cache_dir, progress):
        return entry
    return make_entry([source], cut, cache_dir, progress, lambda folder: _build(source, cut, folder, progress))


@dataclass(slots=True)
class Survey:
    """What pass 1 found: `lengths` in characters of the documents with text, how many are blank, characters of all."""

    lengths: array[int] = field(default_factory=lambda: array("q"))
    blank: int = 0
    characters: int = 0


@dataclass(slots=True)
class _Side:
    """Documents of one side, encoded in batches and written as rows."""

    tokenizer: Tokenizer
    writer: RowWriter
    texts: list[str] = field(default_factory=list)
    waiting_characters: int = 0
    characters: int = 0
    documents: int = 0
    unknown: int = 0

    def add(self, text: str) -> None:
        if not text:
            return
        self.texts.append(text)
        self.documents += 1
        self.characters += len(text)
        self.waiting_characters += len(text)
        if self.waiting_characters >= BATCH_CHARACTERS:
            self.encode()

    def encode(self) -> None:
        from tui_trainer.data.characters import UNK_ID, encode_documents

        tokens = encode_documents(self.tokenizer, self.texts)
        self.unknown += int((tokens == UNK_ID).sum())
        self.writer.add(tokens)
        self.texts, self.waiting_characters = [], 0


def _build(source: Source, cut: Cut, folder: Path, progress: Progress | None) -> Built:
    from tui_trainer.data.characters import build_tokenizer, characters_of
    from tui_trainer.data.split import split_documents

    choices = ColumnChoices(source.text_column)
    survey = survey_of(source, cut.max_chars, progress, choices)
    split = split_documents(survey.lengths, cut.eval_fraction, cut.seed)
    alphabet = characters_of(train for train, _ in parts_of(source, cut.max_chars, split, progress))
    tokenizer = build_tokenizer(alphabet)
    train, held_out = _encode(source, cut, split, tokenizer, folder, sum(survey.lengths), progress)
    _refuse_too_little(source, train.writer.token_count, cut.max_length)
    (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    if not held_out.documents:
        (folder / EVAL_FILE).unlink()
    counts = Counts(
        train_rows=train.writer.row_count,
        train_tokens=train.writer.token_count,
        train_documents=train.documents,
        train_characters=train.characters,
        eval_rows=held_out.writer.row_count,
        eval_tokens=held_out.writer.token_count,
        eval_documents=held_out.documents,
        eval_characters=held_out.characters,
        vocabulary=tokenizer.get_vocab_size(),
        unknown_eval_tokens=held_out.unknown,
        train_labels=train.writer.token_count - 1,
        eval_labels=max(0, held_out.writer.token_count - 1),
        longest_row=min(cut.max_length, train.writer.token_count - 1),
    )
    return Built(counts, (*choices.notes(), *_notes(survey, cut, split, counts)))


def survey_of(source: Source, max_chars: int, progress: Progress | None, choices: ColumnChoices) -> Survey:
    """Pass 1: reads and checks every document."""
    survey = Survey()
    for document in source.documents(progress, max_chars=max_chars, choices=choices):
        survey.characters += len(document.text)
        if is_blank(document.text):
            survey.blank += 1
        else:
            survey.lengths.append(len(document.text))
    return survey


def parts_of(
    source: Source, max_chars: int, split: Split, progress: Progress | None = None
) -> Iterator[tuple[str, str]]:
    """(training text, held-out text) of each document that is not blank; one of the two is often empty."""
    texts = (document.text for document in source.documents(progress, max_chars=max_chars))
    for index, text in enumerate(text for text in texts if not is_blank(text)):
        if index >= len(split.held_out):
            raise DataError(f"{source.description} changed while it was read", hint="start again")
        yield split.parts(index, text)


def _encode(
    source: Source, cut: Cut, split: Split, tokenizer: Tokenizer, folder: Path, total: int, progress: Progress | None
) -> tuple[_Side, _Side]:
    from tui_trainer.data.rows import RowWriter

    meter = Meter(progress, "tokenising", total, "characters")
    with ExitStack() as stack:
        sides = [
            _Side(tokenizer, stack.enter_context(RowWriter(folder / name, cut.max_length)))
            for name in (TRAIN_FILE, EVAL_FILE)
        ]
        for parts in parts_of(source, cut.max_chars, split):
            for side, text in zip(sides, parts, strict=True):
                side.add(text)
            meter.report(sum(side.characters - side.waiting_characters for side in sides))
        for side in sides:
            side.encode()
    meter.finish(total)
    return sides[0], sides[1]


def _refuse_too_little(source: Source, train_tokens: int, max_length: int) -> None:
    if train_tokens < max_length + 1:
        raise DataError(
            f"the training text has {train_tokens:,} tokens, fewer than one row of {max_length + 1:,} "
            f"(data.max_length = {max_length:,}, and one)",
            where=source.description,
            hint=_more_text_hint(train_tokens),
        )


def _more_text_hint(train_tokens: int) -> str:
    """A shorter row helps only where enough rows come out to learn from."""
    shorter = train_tokens // 10
    return f"give more text, or lower data.max_length to {shorter:,} or so" if shorter >= 16 else "give more text"


def _notes(survey: Survey, cut: Cut, split: Split, counts: Counts) -> tuple[str, ...]:
    notes = [*reading_notes(survey, cut.max_chars), *split.notes]
    if counts.unknown_eval_tokens:
        notes.append(
            f"{counts.unknown_eval_tokens:,} held-out characters do not occur in the training text: read as <unk>"
        )
    return tuple(notes)


def reading_notes(survey: Survey, max_chars: int) -> list[str]:
    """What was not used of the documents that were read."""
    notes: list[str] = []
    if max_chars and survey.characters >= max_chars:
        notes.append(
            f"data.max_chars: the first {survey.characters:,} characters are used, "
            f"{len(survey.lengths):,} documents, the last of them cut there"
        )
    if survey.blank:
        notes.append(f"{survey.blank:,} documents hold only white space and are left out")
    return notes


def is_blank(text: str) -> bool:
    """Such documents are left out."""
    return not text or text.isspace()
