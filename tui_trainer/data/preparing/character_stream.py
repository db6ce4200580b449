"""From a source of text to rows of character tokens on disk, once for each source and settings.

    pass 1   read and check every document, count characters      -> split
    pass 2   collect the characters of the training documents     -> tokenizer
    pass 3   encode both sides, cut into rows                     -> train.arrow, eval.arrow

The source is read three times, so that only one document at a time (and one batch of tokens) is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tui_trainer.data.preparing.cache import (
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
from tui_trainer.data.preparing.estimate import DataEstimate, estimate_characters
from tui_trainer.data.preparing.reading_texts import Limits, survey_of, texts_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tui_trainer.data.preparing.token_rows import RowWriter

__all__ = ["DataEstimate", "PreparedData", "estimate_characters", "lookup", "prepare_characters"]

BATCH_CHARACTERS = 1 << 20


def lookup(
    source: Source,
    eval_source: Source | None = None,
    *,
    max_length: int,
    eval_fraction: float,
    seed: int,
    max_chars: int = 0,
    cache_dir: Path,
    progress: Progress | None = None,
) -> PreparedData | None:
    """The data as an earlier `prepare_characters` left it, or None. Hashes the sources, makes nothing."""
    cut = Cut(max_length=max_length, eval_fraction=eval_fraction, seed=seed, max_chars=max_chars)
    return find_entry(both(source, eval_source), cut, cache_dir, progress)


def prepare_characters(
    source: Source,
    eval_source: Source | None = None,
    *,
    max_length: int,
    eval_fraction: float,
    seed: int,
    max_chars: int = 0,
    cache_dir: Path,
    progress: Progress | None = None,
) -> PreparedData:
    """Rows of `max_length` + 1 character tokens for training and evaluation, from the cache or made now.

    All of `eval_source` is held out; without one, `eval_fraction` of each source. Raises DataError for what is wrong in
    the data, for too little of it, and for a cache that cannot be written.
    """
    cut = Cut(max_length=max_length, eval_fraction=eval_fraction, seed=seed, max_chars=max_chars)
    sources = both(source, eval_source)
    if entry := find_entry(sources, cut, cache_dir, progress):
        return entry
    return make_entry(sources, cut, cache_dir, progress, lambda folder: _build(sources, cut, folder, progress))


def both(source: Source, eval_source: Source | None) -> list[Source]:
    """What is trained on, and what is evaluated on if it is named."""
    return [source, eval_source] if eval_source else [source]


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
        from tui_trainer.data.preparing.character_tokenizer import UNK_ID, encode_documents

        tokens = encode_documents(self.tokenizer, self.texts)
        self.unknown += int((tokens == UNK_ID).sum())
        self.writer.add(tokens)
        self.texts, self.waiting_characters = [], 0


def _build(sources: Sequence[Source], cut: Cut, folder: Path, progress: Progress | None) -> Built:
    from tui_trainer.data.preparing.character_tokenizer import build_tokenizer, characters_of
    from tui_trainer.data.preparing.eval_split import split_each

    source, *others = sources
    limits = Limits(max_chars=cut.max_chars)
    survey = survey_of(source, limits, progress, ProblemList())
    measured = [(one, survey_of(one, Limits(), progress, ProblemList())) for one in others]
    fraction = 0.0 if others else cut.eval_fraction
    split = split_each(survey.lengths, [part.description for part in source.parts], survey.counts, fraction, cut.seed)

    def parts(told: Progress | None = None) -> Iterator[tuple[str, str]]:
        for index, text in texts_of(source, limits, len(survey.lengths), told):
            yield split.parts(index, text)

    def all_parts() -> Iterator[tuple[str, str]]:
        yield from parts()
        for one, found in measured:
            yield from (("", text) for _, text in texts_of(one, Limits(), len(found.lengths)))

    tokenizer = build_tokenizer(characters_of(train for train, _ in parts(progress)))
    total = sum(sum(found.lengths) for found in (survey, *(found for _, found in measured)))
    train, held_out = _encode(all_parts(), cut, tokenizer, folder, total, progress)
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
    told = (*survey.notes, *(note for _, found in measured for note in found.notes), *split.notes)
    return Built(counts, (*told, *_unknown_notes(counts)))


def _encode(
    parts: Iterator[tuple[str, str]],
    cut: Cut,
    tokenizer: Tokenizer,
    folder: Path,
    total: int,
    progress: Progress | None,
) -> tuple[_Side, _Side]:
    from tui_trainer.data.preparing.token_rows import RowWriter

    meter = Meter(progress, "tokenising", total, "characters")
    with ExitStack() as stack:
        sides = [
            _Side(tokenizer, stack.enter_context(RowWriter(folder / name, cut.max_length)))
            for name in (TRAIN_FILE, EVAL_FILE)
        ]
        for texts in parts:
            for side, text in zip(sides, texts, strict=True):
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


def _unknown_notes(counts: Counts) -> Iterator[str]:
    if counts.unknown_eval_tokens:
        yield f"{counts.unknown_eval_tokens:,} held-out characters do not occur in the training text: read as <unk>"
