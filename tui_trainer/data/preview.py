"""Preview of what the model receives: rows of the collated batches as text, with the trained tokens marked.

The batches are those of training, with the same order (`batching/row_order.py`) and layout (`batching/layout.py`). The
text is decoded from the arrays of a batch instead of the rows behind it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import IGNORE, Batch
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.data.progress import Meter, Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Adjacent tokens as text, all trained or all not; or one special token by name. `tag` is of the first word."""

    text: str
    tokens: int
    trained: bool
    special: bool = False
    tag: str = ""


class Speller:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(token_id for token_id, token in added.items() if token.special)}

    def pieces(self, ids: Sequence[int], trained: Sequence[bool], tags: Sequence[str] = ()) -> tuple[Piece, ...]:
        """Return all tokens in order: a piece for each special token, each tagged word, and each run of other tokens.

        `trained` [T] marks the labels. `tags` [T] holds the tag of a word at its first token, and "" at other tokens.
        """
        tags = tags or [""] * len(ids)
        tokens = list(zip(ids, trained, tags, strict=True))
        return tuple(
            piece
            for is_special, segment in groupby(tokens, key=lambda token: token[0] in self._special)
            for piece in (map(self._name_of, segment) if is_special else self._spell(list(segment)))
        )

    def _name_of(self, token: tuple[int, bool, str]) -> Piece:
        token_id, is_trained, tag = token
        name = str(self._tokenizer.convert_ids_to_tokens(int(token_id)))
        return Piece(text=name, tokens=1, trained=bool(is_trained), special=True, tag=tag)

    def _spell(self, segment: list[tuple[int, bool, str]]) -> Iterator[Piece]:
        """Yield a piece for each run, with the text that it adds: decoded alone, some tokens would lose a space."""
        old_text, end = "", 0
        for run in _runs(segment):
            start, end = end, end + len(run)
            text_so_far = self._text([token[0] for token in segment[:end]])
            extends = text_so_far.startswith(old_text)
            text = text_so_far[len(old_text) :] if extends else self._text([token[0] for token in segment[start:end]])
            old_text = text_so_far
            yield Piece(text=text, tokens=len(run), trained=bool(run[0][1]), tag=run[0][2])

    def _text(self, ids: Sequence[int]) -> str:
        token_ids = [int(token_id) for token_id in ids]
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _runs(segment: list[tuple[int, bool, str]]) -> Iterator[list[tuple[int, bool, str]]]:
    """Yield runs of tokens that are all trained or all not trained. A token with a tag begins a new run."""
    run: list[tuple[int, bool, str]] = []
    for token in segment:
        if run and (token[2] or bool(token[1]) != bool(run[0][1])):
            yield run
            run = []
        run.append(token)
    if run:
        yield run


_BARS = 8  # of the histogram
_MASK, _ANSWER = "attention_mask", "decoder_input_ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of the training rows, in tokens. `histogram` has bars (from, to, number of rows) of equal width."""

    median: float
    percent_90: float
    longest: int
    histogram: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> "Lengths":
        """Summarize the lengths of rows: int64 [rows], at least one."""
        shortest, longest_row = int(lengths.min()), int(lengths.max())
        bar_tokens = max(1, -(-(longest_row - shortest + 1) // _BARS))
        rows_per_bar = np.bincount((lengths - shortest) // bar_tokens)
        return cls(
            median=float(np.median(lengths)),
            percent_90=float(np.quantile(lengths, 0.9)),
            longest=longest_row,
            histogram=tuple(
                (shortest + bar * bar_tokens, min(longest_row, shortest + (bar + 1) * bar_tokens - 1), int(rows))
                for bar, rows in enumerate(rows_per_bar)
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownDocument:
    """One document of a row. `number` counts the prepared training rows from 1. If the row has several documents, such
    as a pair, `part` counts them from 1, else it is 0.

    `tokens` is the number of shown tokens, and `trained_tokens` the number of those that are labels; both include an
    `answer`. `label` is set for a document with one label. `cut`: whether it lost its end or is a window (or None)."""

    number: int
    pieces: tuple[Piece, ...]
    tokens: int
    trained_tokens: int
    cut: bool | None
    label: str = ""
    answer: tuple[Piece, ...] = ()
    part: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSample:
    """One row of a batch: its step, pass and number (from 1), its documents, and the number of padding tokens.

    `answer_padding` is the number of padding tokens after an answer."""

    step: int
    forward_pass: int
    row: int
    documents: tuple[ShownDocument, ...]
    padding: int
    answer_padding: int = 0

    @property
    def tokens(self) -> int:
        return sum(document.tokens for document in self.documents)

    @property
    def trained_tokens(self) -> int:
        return sum(document.trained_tokens for document in self.documents)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """The speller of tokens, the names of classes or tags by number, and which rows were cut, bool [rows]."""

    spell: Speller
    names: Sequence[str]
    cut: NDArray[np.bool_] | None


def preview_rows(
    rows: Rows,
    order: RowOrder,
    layout: RowLayout,
    count: int,
    *,
    tokenizer: Any,
    names: Sequence[str] = (),
    cut: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> list[ShownSample]:
    """Return the first `count` rows of the batches from step 1; fewer if an epoch has fewer. `cut`: bool [rows]."""
    decoder, meter = _Decoder(Speller(tokenizer), names, cut), Meter(progress, "decoding the samples", count, "rows")
    shown_samples: list[ShownSample] = []
    for sample in islice(_all_samples(rows, order, layout, decoder), count):
        shown_samples.append(sample)
        meter.report(len(shown_samples))
    meter.finish(len(shown_samples))
    return shown_samples


def _all_samples(rows: Rows, order: RowOrder, layout: RowLayout, decoder: _Decoder) -> Iterator[ShownSample]:
    for step in range(1, order.steps_per_epoch + 1):
        step_rows = [(int(row_number), rows.example(int(row_number))) for row_number in order.at(step)]
        row_numbers = {id(document): row_number for row_number, document in step_rows}
        for forward_pass, packed_documents in enumerate(layout.passes([document for _, document in step_rows]), 1):
            batch = layout.batch(packed_documents)
            rows_of_pass = [list(_numbered(documents, row_numbers)) for documents in packed_documents]
            if not layout.packed_width:
                rows_of_pass = [[document] for documents in rows_of_pass for document in documents]
            for row_index, numbered_documents in enumerate(rows_of_pass):
                read_row = _whole_row if _MASK in batch.model_arguments else _joined_row
                shown_documents, used_width = read_row(batch, row_index, numbered_documents, decoder)
                is_answer = _ANSWER in batch.model_arguments
                answer_padding = int((batch.labels[row_index] == IGNORE).sum()) if is_answer else 0
                yield ShownSample(
                    step=step,
                    forward_pass=forward_pass,
                    row=row_index + 1,
                    documents=shown_documents,
                    padding=batch.input_ids.shape[1] - used_width,
                    answer_padding=answer_padding,
                )


Numbered = Sequence[tuple[int, int, TokenRow]]
"""For each document: the number of its prepared row, its number within that row (0: the only one), and its tokens."""


def _numbered(rows: Sequence[TokenRow], row_numbers: Mapping[int, int]) -> Iterator[tuple[int, int, TokenRow]]:
    for row in rows:
        is_multiple = row.document_lengths is not None
        for part, document in enumerate(row.documents, 1):
            yield row_numbers[id(row)], part if is_multiple else 0, document


def _joined_row(
    batch: Batch, row: int, documents: Numbered, decoder: _Decoder
) -> tuple[tuple[ShownDocument, ...], int]:
    """Return the documents of a row of a causal model, and the number of inputs that they use.

    Labels are the tokens after the inputs: a token is trained if the position before it has a label. The last token of
    a document is not an input. It is shown if it is a label; otherwise the model never receives it."""
    shown_documents, start = [], 0
    for row_number, part, document in documents:
        end = start + len(document) - 1
        inputs, labels = batch.input_ids[row, start:end], batch.labels[row, start:end]
        has_label = labels != IGNORE
        ids = np.append(inputs, labels[-1]) if has_label[-1] else inputs
        is_trained = np.concatenate([[False], has_label])[: len(ids)]
        shown_documents.append(
            ShownDocument(
                number=row_number + 1,
                pieces=decoder.spell.pieces(ids.tolist(), is_trained.tolist()),
                tokens=len(ids),
                trained_tokens=int(is_trained.sum()),
                cut=_is_cut(decoder, row_number),
                part=part,
            )
        )
        start = end
    return tuple(shown_documents), start


def _whole_row(batch: Batch, row: int, documents: Numbered, decoder: _Decoder) -> tuple[tuple[ShownDocument, ...], int]:
    """Return the only document of a row that the model reads whole, and its number of input tokens."""
    (row_number, part, _), tokens = documents[0], int(batch.model_arguments[_MASK][row].sum())
    ids, labels = batch.input_ids[row, :tokens].tolist(), batch.labels
    is_trained, tags, label = [False] * tokens, [""] * tokens, ""
    answer_ids: list[int] = []
    if _ANSWER in batch.model_arguments:
        answer_ids = labels[row][labels[row] != IGNORE].tolist()
    elif part and len(labels) < len(batch.input_ids):  # one label for several documents, which have names themselves
        label = _name_of(part - 1, decoder.names)
    elif labels.ndim == 1 or labels.dtype.kind == "f":
        label = _label_name(labels[row], decoder.names)
    elif labels.shape[1] != batch.input_ids.shape[1]:  # the first and the last token of an answer
        first_token, last_token = labels[row].tolist()
        is_trained[first_token : last_token + 1] = [True] * (last_token + 1 - first_token)
    else:
        is_trained = (labels[row, :tokens] != IGNORE).tolist()
        tags = [_name_of(tag, decoder.names) if tag != IGNORE else "" for tag in labels[row, :tokens].tolist()]
    document = ShownDocument(
        number=row_number + 1,
        pieces=decoder.spell.pieces(ids, is_trained, tags),
        tokens=tokens + len(answer_ids),
        trained_tokens=sum(is_trained) + len(answer_ids),
        cut=_is_cut(decoder, row_number),
        part=part,
        label=label,
        answer=decoder.spell.pieces(answer_ids, [True] * len(answer_ids)),
    )
    return (document,), tokens


def _is_cut(decoder: _Decoder, number: int) -> bool | None:
    return None if decoder.cut is None else bool(decoder.cut[number])


def _label_name(label: Any, names: Sequence[str]) -> str:
    """Return the name of the class of a label, the names of several classes, or the number of a regression."""
    if np.ndim(label):
        return ", ".join(_name_of(int(class_number), names) for class_number in np.flatnonzero(label)) or "no label"
    return f"{float(label):.6g}" if label.dtype.kind == "f" else _name_of(int(label), names)


def _name_of(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def names_in(details: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of classes or tags, or of the documents of a row, by number (`PreparedData.details`)."""
    return tuple(map(str, details.get("names") or details.get("documents") or ()))
