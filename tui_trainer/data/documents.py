"""From a source of text to rows of tokens on disk: one row for each document, once for each source and settings.

    pass 1   read and check every document, count characters                          -> split
    pass 2   only where the tokenizer is made here: train it on the training side     -> tokenizer.json
    pass 3   encode both sides, cut what is longer than a row                         -> train.arrow, eval.arrow

Documents do not run into each other: with inputs = row[:-1] and labels = row[1:], no label is the first token of
another document. The source is read once for each pass, so that one batch of documents at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tui_trainer.data.byte_bpe import EOS_ID, TRAINED_HERE, train_tokenizer
from tui_trainer.data.cache import (
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
from tui_trainer.data.columns import ColumnChoices
from tui_trainer.data.encoding import BATCH_CHARACTERS, DocumentEncoder, Encode
from tui_trainer.data.estimate import estimate_documents
from tui_trainer.data.prepare import Survey, is_blank, parts_of, reading_notes, survey_of
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.row_notes import write_cut_rows
from tui_trainer.data.rows import DocumentWriter, Rows
from tui_trainer.data.sources import Source
from tui_trainer.data.split import Split, split_documents
from tui_trainer.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["DocumentCut", "Encode", "estimate_documents", "find_documents", "prepare_documents"]


def find_documents(
    source: Source, eval_source: Source | None, *, cut: DocumentCut, cache_dir: Path, progress: Progress | None = None
) -> PreparedData | None:
    """The data as an earlier `prepare_documents` left it, or None. Hashes the sources, makes nothing."""
    return find_entry(_sources(source, eval_source), cut, cache_dir, progress)


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

    All of `eval_source` is held out; without one, `cut.eval_fraction` of the documents of `source`. `cut.max_chars`
    limits `source` alone. `encode` is None where `cut.tokenizer` is TRAINED_HERE: the tokenizer is then trained on the
    training side, and saved beside the rows.

    Raises DataError for what is wrong in the data, for too little of it, and for a cache that cannot be written.
    """
    if (encode is None) != (cut.tokenizer == TRAINED_HERE):
        raise ValueError("a tokenizer is either given or trained here")
    sources = _sources(source, eval_source)
    if entry := find_entry(sources, cut, cache_dir, progress):
        return entry
    work = _Preparation(source, eval_source, cut, progress)
    return make_entry(sources, cut, cache_dir, progress, lambda folder: work.build(folder, encode))


def _sources(source: Source, eval_source: Source | None) -> list[Source]:
    return [source, eval_source] if eval_source else [source]


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


class _Preparation:
    """The passes over the sources, and what they found out."""

    def __init__(self, source: Source, eval_source: Source | None, cut: DocumentCut, progress: Progress | None) -> None:
        self._source = source
        self._eval_source = eval_source
        self._cut = cut
        self._progress = progress
        self._split = Split(held_out=np.zeros(0, dtype=np.bool_))
        self._characters = 0
        self._notes: list[str] = []

    def build(self, folder: Path, encode: Encode | None) -> Built:
        self._survey()
        vocabulary, eos_id = self._cut.vocabulary, self._cut.eos_id
        if encode is None:
            tokenizer = train_tokenizer(self._training_texts(), vocabulary)
            (folder / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
            encode, vocabulary, eos_id = _encode_with(tokenizer), tokenizer.get_vocab_size(), EOS_ID
        train, held_out = self._encode(folder, DocumentEncoder(encode, eos_id))
        self._refuse_nothing(train, held_out)
        if not held_out.writer.row_count:
            (folder / EVAL_FILE).unlink()
        write_cut_rows(folder, np.concatenate(train.writer.cut_rows))
        counts = _counts(train, held_out, vocabulary)
        self._notes.extend(_length_notes(counts, self._cut.max_length))
        return Built(counts, tuple(self._notes), quantiles(Rows(folder / TRAIN_FILE).lengths - 1))

    def _survey(self) -> None:
        """Pass 1."""
        survey = self._survey_of(self._source, self._cut.max_chars)
        self._characters = sum(survey.lengths)
        if self._eval_source:
            self._characters += sum(self._survey_of(self._eval_source, 0).lengths)
            self._split = Split(held_out=np.zeros(len(survey.lengths), dtype=np.bool_))
        else:
            self._split = split_documents(survey.lengths, self._cut.eval_fraction, self._cut.seed)
            self._notes.extend(self._split.notes)

    def _survey_of(self, source: Source, max_chars: int) -> Survey:
        choices = ColumnChoices(source.text_column)
        survey = survey_of(source, max_chars, self._progress, choices)
        self._notes.extend((*choices.notes(), *reading_notes(survey, max_chars)))
        return survey

    def _training_texts(self) -> Iterator[str]:
        """Pass 2. Raises what `progress` raises."""
        parts = parts_of(self._source, self._cut.max_chars, self._split, self._progress)
        return (text for text, _ in parts if text)

    def _parts(self) -> Iterator[tuple[str, str]]:
        """(training text, held-out text): of two sources, one of the two is always empty."""
        yield from parts_of(self._source, self._cut.max_chars, self._split)
        if self._eval_source:
            texts = (document.text for document in self._eval_source.documents())
            yield from (("", text) for text in texts if not is_blank(text))

    def _encode(self, folder: Path, encoder: DocumentEncoder) -> tuple[_Side, _Side]:
        """Pass 3."""
        meter = Meter(self._progress, "tokenising", self._characters, "characters")
        with ExitStack() as stack:
            train, held_out = (
                _Side(encoder, stack.enter_context(DocumentWriter(folder / name, self._cut.max_length)))
                for name in (TRAIN_FILE, EVAL_FILE)
            )
            for train_text, held_out_text in self._parts():
                train.add(train_text)
                held_out.add(held_out_text)
                meter.report(train.characters + held_out.characters)
            train.encode()
            held_out.encode()
        meter.finish(self._characters)
        return train, held_out

    def _refuse_nothing(self, train: _Side, held_out: _Side) -> None:
        if not train.writer.row_count:
            where, side = self._source.description, "training"
        elif self._eval_source and not held_out.writer.row_count:
            where, side = self._eval_source.description, "evaluation"
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
