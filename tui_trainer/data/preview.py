"""What the model would get: rows of the collated batches, as text with the trained tokens marked.

The batches are those of training: the same order (`batching/row_order.py`), the same layout (`batching/layout.py`).
What is shown is read out of the batch's arrays, not out of the rows that it was made of.
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
    """Tokens beside each other that are alike. `text` as it stands in the data, or the name of a special token.

    `tag` belongs to the first of them: what a word is marked with.
    """

    text: str
    tokens: int
    trained: bool
    special: bool = False
    tag: str = ""


class Speller:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}

    def pieces(self, ids: Sequence[int], trained: Sequence[bool], tags: Sequence[str] = ()) -> tuple[Piece, ...]:
        """All tokens in order: one piece for each special token, for each tagged word, and for what is alike between.

        `trained` [T] says which tokens are learnt, `tags` [T] what words are marked with: "" where none begins.
        """
        tags = tags or [""] * len(ids)
        marked = list(zip(ids, trained, tags, strict=True))
        return tuple(
            piece
            for is_special, segment in groupby(marked, key=lambda token: token[0] in self._special)
            for piece in (map(self._name, segment) if is_special else self._spell(list(segment)))
        )

    def _name(self, token: tuple[int, bool, str]) -> Piece:
        number, trained, tag = token
        name = str(self._tokenizer.convert_ids_to_tokens(int(number)))
        return Piece(text=name, tokens=1, trained=bool(trained), special=True, tag=tag)

    def _spell(self, segment: list[tuple[int, bool, str]]) -> Iterator[Piece]:
        """Texts are what each piece adds to the text before it: alone, some tokens would lose a blank."""
        before, end = "", 0
        for part in _alike(segment):
            start, end = end, end + len(part)
            whole = self._text([token[0] for token in segment[:end]])
            fits = whole.startswith(before)
            text = whole[len(before) :] if fits else self._text([token[0] for token in segment[start:end]])
            before = whole
            yield Piece(text=text, tokens=len(part), trained=bool(part[0][1]), tag=part[0][2])

    def _text(self, ids: Sequence[int]) -> str:
        numbers = [int(number) for number in ids]
        return str(self._tokenizer.decode(numbers, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _alike(segment: list[tuple[int, bool, str]]) -> Iterator[list[tuple[int, bool, str]]]:
    """Runs of tokens that are trained or not; a tag begins a new one."""
    part: list[tuple[int, bool, str]] = []
    for token in segment:
        if part and (token[2] or bool(token[1]) != bool(part[0][1])):
            yield part
            part = []
        part.append(token)
    if part:
        yield part


_BARS = 8
_MASK, _ANSWER = "attention_mask", "decoder_input_ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of the training rows. `histogram`: (from, to, rows), equally wide, without gaps."""

    median: float
    percent_90: float
    longest: int
    histogram: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> "Lengths":
        """int64 [rows], at least one."""
        low, high = int(lengths.min()), int(lengths.max())
        width = max(1, -(-(high - low + 1) // _BARS))
        counted = np.bincount((lengths - low) // width)
        return cls(
            median=float(np.median(lengths)),
            percent_90=float(np.quantile(lengths, 0.9)),
            longest=high,
            histogram=tuple(
                (low + place * width, min(high, low + (place + 1) * width - 1), int(rows))
                for place, rows in enumerate(counted)
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownDocument:
    """One document of a row. `number` counts the prepared training rows from 1; of one that is several documents, such
    as a pair, `part` counts those from 1 (0: it is one).

    `tokens` are those that are shown, `trained_tokens` those of them that are labels. A document with a label of its
    own has `label` instead, one with an answer the `answer`, whose tokens are counted in both numbers. `cut`: it lost
    its end, or is a piece of a longer document; None where that is not known.
    """

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
    """One row of a batch: where it stands (each counted from 1), its documents, and the tokens of padding after them.

    `answer_padding` are those after an answer.
    """

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
class _Shown:
    """What the numbers in a batch mean. `names` are those of classes or tags, by their numbers."""

    spell: Speller
    names: Sequence[str]
    cut: NDArray[np.bool_] | None


def samples(
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
    """The first `count` rows of the batches from step 1 on; fewer where an epoch has fewer. `cut`: bool [rows]."""
    shown, meter = _Shown(Speller(tokenizer), names, cut), Meter(progress, "decoding the samples", count, "rows")
    found: list[ShownSample] = []
    for sample in islice(_all_samples(rows, order, layout, shown), count):
        found.append(sample)
        meter.report(len(found))
    meter.finish(len(found))
    return found


def _all_samples(rows: Rows, order: RowOrder, layout: RowLayout, shown: _Shown) -> Iterator[ShownSample]:
    for step in range(1, order.steps_per_epoch + 1):
        chosen = [(int(number), rows.example(int(number))) for number in order.at(step)]
        numbers = {id(document): number for number, document in chosen}
        for place, together in enumerate(layout.passes([document for _, document in chosen]), 1):
            batch = layout.batch(together)
            rows_of_pass = [list(_numbered(documents, numbers)) for documents in together]
            if not layout.packed_width:
                rows_of_pass = [[document] for documents in rows_of_pass for document in documents]
            for row, numbered in enumerate(rows_of_pass):
                read = _whole if _MASK in batch.more else _next_tokens
                shown_documents, used = read(batch, row, numbered, shown)
                answer_padding = int((batch.labels[row] == IGNORE).sum()) if _ANSWER in batch.more else 0
                yield ShownSample(
                    step=step,
                    forward_pass=place,
                    row=row + 1,
                    documents=shown_documents,
                    padding=batch.input_ids.shape[1] - used,
                    answer_padding=answer_padding,
                )


Numbered = Sequence[tuple[int, int, TokenRow]]
"""Of each document the number of its row, which part of it it is, and its tokens."""


def _numbered(rows: Sequence[TokenRow], numbers: Mapping[int, int]) -> Iterator[tuple[int, int, TokenRow]]:
    for row in rows:
        several = row.document_lengths is not None
        yield from ((numbers[id(row)], part if several else 0, one) for part, one in enumerate(row.documents, 1))


def _next_tokens(batch: Batch, row: int, documents: Numbered, shown: _Shown) -> tuple[tuple[ShownDocument, ...], int]:
    """Labels are the tokens after the inputs: a token is trained when the place before it has a label.

    The last token of a document is no input. It is shown where it is a label; else the model never sees it.
    """
    found, start = [], 0
    for number, part, document in documents:
        end = start + len(document) - 1
        inputs, labels = batch.input_ids[row, start:end], batch.labels[row, start:end]
        counts = labels != IGNORE
        ids = np.append(inputs, labels[-1]) if counts[-1] else inputs
        trained = np.concatenate([[False], counts])[: len(ids)]
        found.append(
            ShownDocument(
                number=number + 1,
                pieces=shown.spell.pieces(ids.tolist(), trained.tolist()),
                tokens=len(ids),
                trained_tokens=int(trained.sum()),
                cut=_is_cut(shown, number),
                part=part,
            )
        )
        start = end
    return tuple(found), start


def _whole(batch: Batch, row: int, documents: Numbered, shown: _Shown) -> tuple[tuple[ShownDocument, ...], int]:
    """A model that reads whole rows: with an answer, a label for the row, or a label at some of its tokens."""
    (number, _, _), tokens = documents[0], int(batch.more[_MASK][row].sum())
    ids, labels = batch.input_ids[row, :tokens].tolist(), batch.labels
    trained, tags, label = [False] * tokens, [""] * tokens, ""
    answer: list[int] = []
    if _ANSWER in batch.more:
        answer = labels[row][labels[row] != IGNORE].tolist()
    elif labels.ndim == 1 or labels.dtype.kind == "f":
        label = _label(labels[row], shown.names)
    elif labels.shape[1] != batch.input_ids.shape[1]:  # the first and the last token of an answer
        first, last = labels[row].tolist()
        trained[first : last + 1] = [True] * (last + 1 - first)
    else:
        trained = (labels[row, :tokens] != IGNORE).tolist()
        tags = [_name(one, shown.names) if one != IGNORE else "" for one in labels[row, :tokens].tolist()]
    document = ShownDocument(
        number=number + 1,
        pieces=shown.spell.pieces(ids, trained, tags),
        tokens=tokens + len(answer),
        trained_tokens=sum(trained) + len(answer),
        cut=_is_cut(shown, number),
        label=label,
        answer=shown.spell.pieces(answer, [True] * len(answer)),
    )
    return (document,), tokens


def _is_cut(shown: _Shown, number: int) -> bool | None:
    return None if shown.cut is None else bool(shown.cut[number])


def _label(label: Any, names: Sequence[str]) -> str:
    """A class by its name, several of them, or a number."""
    if np.ndim(label):
        return ", ".join(_name(int(place), names) for place in np.flatnonzero(label)) or "no label"
    return f"{float(label):.6g}" if label.dtype.kind == "f" else _name(int(label), names)


def _name(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def names_in(details: Mapping[str, Any]) -> tuple[str, ...]:
    """Of classes or tags, as a task noted them (`PreparedData.details`)."""
    return tuple(map(str, details.get("names") or ()))
