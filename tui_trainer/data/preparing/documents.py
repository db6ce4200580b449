"""From a source of text to rows of tokens on disk: one row for each document, once for each source and settings.

    pass 1   read and check every document, count characters                          -> split
    pass 2   only where the tokenizer is made here: train it on the training side     -> tokenizer.json
    pass 3   encode both sides, cut what is longer than a row                         -> train.arrow, eval.arrow

Documents do not run into each other: with inputs = row[:-1] and labels = row[1:], no label is the first token of
another document. The source is read once for each pass, so that one batch of documents at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tui_trainer.data.preparing.byte_bpe import EOS_ID, TRAINED_HERE, train_tokenizer
from tui_trainer.data.preparing.cache import (
    EVAL_FILE,
    TOKENIZER_FILE,
    TRAIN_FILE,
    Built,
    Counts,
    DocumentCut,
    PreparedData,
    find_entry,
    make_entry,
    quantiles,
)
from tui_trainer.data.preparing.character_stream import both
from tui_trainer.data.preparing.encoding import BATCH_CHARACTERS, DocumentEncoder, Encode
from tui_trainer.data.preparing.estimate import estimate_documents
from tui_trainer.data.preparing.eval_split import Split
from tui_trainer.data.preparing.mixture import SourceRows, source_details, source_notes, source_rows
from tui_trainer.data.preparing.reading_texts import Limits, Survey, survey_of, texts_of
from tui_trainer.data.preparing.row_notes import bad_row_details, notes_of_counts, write_cut_rows
from tui_trainer.data.preparing.row_selection import LEFT_OUT, Choice, choose_documents
from tui_trainer.data.preparing.token_rows import DocumentWriter, Rows
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["DocumentCut", "Encode", "estimate_documents", "find_documents", "prepare_documents"]


def find_documents(
    source: Source, eval_source: Source | None, *, cut: DocumentCut, cache_dir: Path, progress: Progress | None = None
) -> PreparedData | None:
    """The data as an earlier `prepare_documents` left it, or None. Hashes the sources, makes nothing."""
    return find_entry(both(source, eval_source), cut, cache_dir, progress)


def prepare_documents(
    source: Source,
    eval_source: Source | None,
    encode: Encode | None,
    *,
    cut: DocumentCut,
    cache_dir: Path,
    progress: Progress | None = None,
) -> PreparedData:
    """Rows of up to `cut.max_length` + 1 tokens for training and evaluation, from the cache or made now.

    All of `eval_source` is held out; without one, `cut.eval_fraction` of each source in `source`. `cut.max_chars` and
    `cut.max_rows` limit `source` alone. `encode` is None where `cut.tokenizer` is TRAINED_HERE: the tokenizer is then
    trained on the training side, and saved beside the rows.

    Raises DataError for what is wrong in the data, for too little of it, and for a cache that cannot be written.
    """
    if (encode is None) != (cut.tokenizer == TRAINED_HERE):
        raise ValueError("a tokenizer is either given or trained here")
    sources = both(source, eval_source)
    if entry := find_entry(sources, cut, cache_dir, progress):
        return entry
    work = _Preparation(sources, cut, progress)
    return make_entry(sources, cut, cache_dir, progress, lambda folder: work.build(folder, encode))


@dataclass(slots=True)
class _Side:
    """Documents of one side, encoded in batches and written as rows."""

    encoder: DocumentEncoder
    writer: DocumentWriter
    texts: list[str] = field(default_factory=list)
    waiting_characters: int = 0
    characters: int = 0
    short_documents: int = 0

    def add(self, text: str) -> None:
        if not text:
            return
        if self.waiting_characters + len(text) > BATCH_CHARACTERS:
            self.encode()
        self.texts.append(text)
        self.waiting_characters += len(text)

    def encode(self) -> None:
        """Documents of fewer than two tokens have no label, and are left out."""
        if not self.texts:
            return
        tokens, lengths = self.encoder.batch(self.texts)
        enough = lengths >= 2
        if not enough.all():
            tokens, lengths = tokens[np.repeat(enough, lengths)], lengths[enough]
        self.writer.add(tokens, lengths)
        self.short_documents += len(self.texts) - len(lengths)
        self.characters += self.waiting_characters
        self.texts, self.waiting_characters = [], 0


@dataclass(frozen=True, slots=True)
class _ChosenTexts:
    """The documents as pass 1 has chosen them: read again, each as often as it is used."""

    sources: Sequence[Source]
    limits: Sequence[Limits]
    choice: Choice
    split: Split

    def all(self) -> Iterator[tuple[str, str]]:
        """(training text, held-out text): one of the two is empty."""
        yield from self._of_first(None)
        if len(self.sources) > 1:
            copies = self.choice.copies[1]
            texts = texts_of(self.sources[1], self.limits[1], len(copies))
            yield from (("", text) for index, text in texts if copies[index])

    def training(self, progress: Progress | None) -> Iterator[str]:
        """Pass 2. Raises what `progress` raises."""
        return (text for text, _ in self._of_first(progress) if text)

    def _of_first(self, progress: Progress | None) -> Iterator[tuple[str, str]]:
        """Of what is trained on, with the part of it that is held out."""
        sides, copies = self.choice.sides[0], self.choice.copies[0]
        for index, text in texts_of(self.sources[0], self.limits[0], len(sides), progress):
            if sides[index] == LEFT_OUT:
                continue
            train, held_out = self.split.parts(index, text)
            if held_out:
                yield "", held_out
            if train:
                yield from repeat((train, ""), int(copies[index]))


class _Preparation:
    """The passes over the sources, and what they found out."""

    def __init__(self, sources: Sequence[Source], cut: DocumentCut, progress: Progress | None) -> None:
        self._sources = sources
        self._cut = cut
        self._progress = progress
        self._problems = ProblemList()
        own = Limits(max_chars=cut.max_chars, max_rows=cut.max_rows, skips_bad_rows=cut.skip_bad_rows)
        self._limits = [own, Limits(skips_bad_rows=cut.skip_bad_rows)][: len(sources)]

    def build(self, folder: Path, encode: Encode | None) -> Built:
        surveys = [
            survey_of(source, limits, self._progress, self._problems, hashed=True)
            for source, limits in zip(self._sources, self._limits, strict=True)
        ]
        names = [part.description for part in self._sources[0].parts]
        choice, split = choose_documents(surveys, names, self._cut)
        used = source_rows(self._sources[0], surveys[0].counts, choice.trained, self._cut.weights)
        texts = _ChosenTexts(self._sources, self._limits, choice, split)
        encoder, vocabulary = self._encoder(folder, encode, texts)
        uses = zip(surveys, choice.copies, strict=True)
        characters = sum(int(np.dot(survey.lengths, copies)) for survey, copies in uses)
        train, held_out = self._encode(folder, encoder, texts, characters)
        self._refuse_nothing(train, held_out)
        if not held_out.writer.row_count:
            (folder / EVAL_FILE).unlink()
        write_cut_rows(folder, np.concatenate(train.writer.cut_rows))
        counts = replace(
            _counts(train, held_out, vocabulary),
            documents_read=self._problems.count + sum(survey.read for survey in surveys),
            bad_rows=self._problems.count,
            repeated_rows=choice.repeated,
            leaked_rows=choice.leaked,
        )
        return Built(
            counts,
            tuple(self._notes(surveys, split, used, counts)),
            quantiles(Rows(folder / TRAIN_FILE).lengths - 1),
            bad_row_details(self._problems) | source_details(used),
        )

    def _encoder(self, folder: Path, encode: Encode | None, texts: _ChosenTexts) -> tuple[DocumentEncoder, int]:
        """With the number of tokens that it knows. Where none is given, pass 2 makes one."""
        if encode is not None:
            return DocumentEncoder(encode, self._cut.eos_id), self._cut.vocabulary
        tokenizer = train_tokenizer(texts.training(self._progress), self._cut.vocabulary)
        (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        return DocumentEncoder(_encode_with(tokenizer), EOS_ID), tokenizer.get_vocab_size()

    def _notes(
        self, surveys: Sequence[Survey], split: Split, used: Sequence[SourceRows], counts: Counts
    ) -> Iterator[str]:
        for survey in surveys:
            yield from survey.notes
        yield from self._problems.notes()
        yield from split.notes
        yield from source_notes(used)
        yield from notes_of_counts(counts, self._cut)
        yield from _length_notes(counts, self._cut.max_length)

    def _encode(
        self, folder: Path, encoder: DocumentEncoder, texts: _ChosenTexts, characters: int
    ) -> tuple[_Side, _Side]:
        """Pass 3."""
        meter = Meter(self._progress, "tokenising", characters, "characters")
        with ExitStack() as stack:
            train, held_out = (
                _Side(encoder, stack.enter_context(DocumentWriter(folder / name, self._cut.max_length)))
                for name in (TRAIN_FILE, EVAL_FILE)
            )
            for train_text, held_out_text in texts.all():
                train.add(train_text)
                held_out.add(held_out_text)
                meter.report(train.characters + held_out.characters)
            train.encode()
            held_out.encode()
        meter.finish(characters)
        return train, held_out

    def _refuse_nothing(self, train: _Side, held_out: _Side) -> None:
        if not train.writer.row_count:
            where, side = self._sources[0].description, "training"
        elif len(self._sources) > 1 and not held_out.writer.row_count:
            where, side = self._sources[1].description, "evaluation"
        else:
            return
        raise DataError(f"no document for {side} has two tokens or more", where=where, hint="give more text")


def _encode_with(tokenizer: Tokenizer) -> Encode:
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]


def _counts(train: _Side, held_out: _Side, vocabulary: int) -> Counts:
    return Counts(
        train_rows=train.writer.row_count,
        train_tokens=train.writer.token_count,
        train_documents=train.writer.document_count,
        train_characters=train.characters,
        eval_rows=held_out.writer.row_count,
        eval_tokens=held_out.writer.token_count,
        eval_documents=held_out.writer.document_count,
        eval_characters=held_out.characters,
        vocabulary=vocabulary,
        unknown_eval_tokens=0,
        train_labels=train.writer.token_count - train.writer.document_count,
        eval_labels=held_out.writer.token_count - held_out.writer.document_count,
        longest_row=max(train.writer.longest_row, held_out.writer.longest_row),
        cut_documents=train.writer.cut_documents + held_out.writer.cut_documents,
        pieces=train.writer.pieces + held_out.writer.pieces,
        short_documents=train.short_documents + held_out.short_documents,
    )


def _length_notes(counts: Counts, max_length: int) -> Iterator[str]:
    if counts.cut_documents:
        documents = counts.train_documents + counts.eval_documents
        yield (
            f"{counts.cut_documents:,} of {documents:,} documents are longer than {max_length:,} tokens "
            f"and were cut into {counts.pieces:,} pieces; nothing is dropped"
        )
    if counts.short_documents:
        yield f"{counts.short_documents:,} documents have fewer than two tokens and are left out"
