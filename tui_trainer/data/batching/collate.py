"""Collation: from rows of tokens to a batch, the arguments of the model as arrays and the labels.

A causal model reads inputs = row[:-1] and learns labels = row[1:], with one or several documents in a row. Every other
model reads whole rows, and needs a mask for their padding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.preparing.token_rows import TokenRow

_WIDTH_STEP = 8
IGNORE = -100  # the label that torch's cross entropy skips
Tokens = NDArray[np.int32]
Document = Tokens | TokenRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Arrays of one forward pass. `input_ids` are int64 [B, T]: B rows, padded at the right to the longest, T.

    `labels` are int64 [B, T], or int64 [B, T'] for the tokens of an answer, with IGNORE at positions without a label;
    or one per prepared row, int64 [B] or float32 [B, C]. If a prepared row has several documents, it has more rows of
    the batch than labels. `row_count` is the number of prepared rows, and `token_count` of inputs without padding.
    `model_arguments` has other arguments of the model, int64 [B, T] or, for an answer, [B, T'].

    The next three fields belong to packed batches; in other batches, each row is one document. `documents`, int64 [B,
    T], has the number of the document at each position, from 0 in the order of the rows, and -1 for padding.
    `position_ids`, int64 [B, T], count from 0 in each document and in the padding of each row. `document_lengths`,
    int32 [D], has the lengths of all documents in the order of the flattened rows, where the padding of a row is a
    document too. They sum to B * T, and cu_seq_lens are their running sum after a 0.

    `row_lengths`, int64 [B], are the lengths of a causal model's rows without padding. `row_values`, float32 [rows,
    width], are the results of a pass over the prepared rows before training, if there was one. `row_labels`, int64
    [rows], are the labels of prepared rows that have one beside the labels of their tokens."""

    input_ids: NDArray[np.int64]
    labels: NDArray[Any]
    row_count: int
    token_count: int
    model_arguments: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    documents: NDArray[np.int64] | None = None
    position_ids: NDArray[np.int64] | None = None
    document_lengths: NDArray[np.int32] | None = None
    row_lengths: NDArray[np.int64] | None = None
    row_values: NDArray[np.float32] | None = None
    row_labels: NDArray[np.int64] | None = None


class Collate(Protocol):
    """Function that joins prepared rows into a batch, one row of the batch for each."""

    def __call__(self, rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        """Return the batch, whose rows are `width` wide, or as wide as the longest if that is more."""


class CollatePacked(Protocol):
    """Function that joins packed rows into a batch. Each packed row is a list of prepared rows."""

    def __call__(self, packed: Sequence[Sequence[TokenRow]], *, width: int = 0) -> Batch:
        """Return the batch, whose rows are `width` wide, or as wide as the fullest if that is more."""


def collate(rows: Sequence[Document], pad_id: int, *, width: int = 0) -> Batch:
    """Collate rows for a causal model: inputs = row[:-1], labels = row[1:], each padded at the right.

    Documents have at least 2 tokens, and each is a row of the batch. If rows have labels of their own, these are used.
    """
    documents = documents_of(rows)
    return Batch(
        input_ids=pad_rows([tokens_of(document)[:-1] for document in documents], pad_id, width),
        labels=pad_rows([_next_labels(document) for document in documents], IGNORE, width),
        row_count=len(rows),
        token_count=sum(len(document) - 1 for document in documents),
        row_lengths=np.array([len(document) - 1 for document in documents], dtype=np.int64),
    )


def collate_packed(packed: Sequence[Sequence[Document]], pad_id: int, *, width: int = 0) -> Batch:
    """Collate packed rows: inputs = document[:-1] and labels = document[1:] of each document, one after another.

    No label is therefore a token of the next document. Documents have at least 2 tokens, and rows at least one
    document. A fixed `width` saves a compiled model from compiling for each new shape; 0: as wide as the fullest row.
    """
    rows_of_documents = [documents_of(rows) for rows in packed]
    used_widths = [sum(len(document) - 1 for document in documents) for documents in rows_of_documents]
    width = max(width, *used_widths)
    shape = (len(used_widths), width)
    lengths: list[int] = []
    document_numbers: list[int] = []
    all_documents: list[Document] = []
    for documents, used_width in zip(rows_of_documents, used_widths, strict=True):
        document_numbers.extend(range(len(all_documents), len(all_documents) + len(documents)))
        lengths.extend(len(document) - 1 for document in documents)
        all_documents.extend(documents)
        if used_width < width:
            lengths.append(width - used_width)
            document_numbers.append(-1)
    document_lengths = np.array(lengths, dtype=np.int32)
    numbers_BT = np.repeat(np.array(document_numbers, dtype=np.int64), document_lengths).reshape(shape)
    has_text = numbers_BT >= 0
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORE, dtype=np.int64)
    input_ids[has_text] = np.concatenate([tokens_of(document)[:-1] for document in all_documents])
    labels[has_text] = np.concatenate([_next_labels(document) for document in all_documents])
    starts = np.cumsum(document_lengths, dtype=np.int64) - document_lengths
    position_ids = np.arange(len(used_widths) * width, dtype=np.int64) - np.repeat(starts, document_lengths)
    return Batch(
        input_ids=input_ids,
        labels=labels,
        row_count=sum(map(len, packed)),
        token_count=sum(used_widths),
        documents=numbers_BT,
        position_ids=position_ids.reshape(shape),
        document_lengths=document_lengths,
        row_lengths=np.array(used_widths, dtype=np.int64),
    )


def collate_whole(rows: Sequence[TokenRow], pad_id: int, labels: NDArray[Any], *, width: int = 0) -> Batch:
    """Collate rows for a model that reads whole rows. Each document of a row is a row of the batch. The arguments
    include a mask of the padding."""
    documents = [document for row in rows for document in row.documents]
    names = documents[0].model_arguments
    arguments = {name: pad_rows([document.model_arguments[name] for document in documents], 0, width) for name in names}
    mask = pad_rows([np.ones(len(document), dtype=np.int32) for document in documents], 0, width)
    return Batch(
        input_ids=pad_rows([document.tokens for document in documents], pad_id, width),
        labels=labels,
        row_count=len(rows),
        token_count=int(mask.sum()),
        model_arguments={"attention_mask": mask, **arguments},
    )


def collate_answers(rows: Sequence[TokenRow], pad_id: int, start_id: int | None, *, width: int = 0) -> Batch:
    """Collate rows for an encoder-decoder: whole inputs, and the tokens of the answers as labels, int64 [B, T'].

    The decoder reads `start_id` and the answer without its last token: `decoder_input_ids`, int64 [B, T']. Without a
    `start_id`, the last token of each answer comes first, as in mBART. `width` is the width of the inputs."""
    answers = [tokens_of(row) if row.labels is None else row.labels for row in rows]
    labels = pad_rows(answers, IGNORE)
    decoder_inputs = pad_rows(answers, pad_id)[:, :-1]
    start_ids = [answer[-1] if start_id is None else start_id for answer in answers]
    batch = collate_whole(rows, pad_id, labels, width=width)
    arguments = {"decoder_input_ids": np.insert(decoder_inputs, 0, start_ids, axis=1)}
    return replace(batch, model_arguments={**batch.model_arguments, **arguments})


def pad_rows(rows: Sequence[Tokens], fill_value: int, width: int = 0) -> NDArray[np.int64]:
    """Return int64 [B, T]: the rows, padded at the right to the longest, or to `width` if that is more."""
    array = np.full((len(rows), max(width, *map(len, rows))), fill_value, dtype=np.int64)
    for row_index, row in enumerate(rows):
        array[row_index, : len(row)] = row
    return array


def documents_of(rows: Sequence[Document]) -> Sequence[Document]:
    """Return the documents of these rows, in order."""
    if all(not isinstance(row, TokenRow) or row.document_lengths is None for row in rows):
        return rows
    return [part for row in rows for part in (row.documents if isinstance(row, TokenRow) else (row,))]


def count_inputs(row: Document) -> int:
    """Return the number of inputs that a causal model reads: the tokens without the last one of each document."""
    return row.input_count if isinstance(row, TokenRow) else len(row) - 1


def tokens_of(document: Document) -> Tokens:
    return document.tokens if isinstance(document, TokenRow) else document


def _next_labels(document: Document) -> Tokens:
    own_labels = document.labels if isinstance(document, TokenRow) else None
    return (tokens_of(document) if own_labels is None else own_labels)[1:]


def round_up_to_multiple(count: int, limit: int, step: int = _WIDTH_STEP) -> int:
    """Round `count` up to a multiple of `step`, but not beyond `limit`.

    Without rounding, results have so many different sizes that glibc cannot reuse freed memory: a BERT of 128 x 2 with
    rows of 20 to 64 tokens took 98 MiB instead of 56 MiB. On GPUs, multiplications of rounded widths are faster."""
    return max(count, min(-(-count // step) * step, limit))


def round_up_coarsely(count: int, limit: int) -> int:
    """Round `count` up like `round_up_to_multiple`; above 128, to a multiple of an eighth of the power of two below.
    This limits the number of sizes: oneDNN compiles and caches a kernel for each size of 16-bit numbers on a CPU."""
    return round_up_to_multiple(count, limit, max(_WIDTH_STEP, 1 << max(0, (count - 1).bit_length() - 4)))


def count_coarse_sizes(limit: int) -> int:
    """Return how many different sizes `round_up_coarsely` returns for counts from 1 to `limit`."""
    octaves = max(0, (limit - 1).bit_length() - 7)
    if not octaves:
        return -(-limit // _WIDTH_STEP)
    return 16 + 8 * octaves - ((1 << (7 + octaves)) - limit) // (1 << (3 + octaves))


Rounding = Callable[[int, int], int]
"""A function that rounds a width up, from the required width and the largest permitted one."""


def round_collate_widths(collate: Collate, pad_id: int, widest: int, target_limit: int, rounding: Rounding) -> Collate:
    """Return a collate function that rounds up widths with `rounding`: those of inputs to `widest` at most, and those
    of an encoder-decoder's answers to `target_limit`. Only for models whose results do not depend on padding."""

    def collate_rounded(rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        batch = collate(rows, width=max(width, rounding(max(row.longest for row in rows), widest)))
        if (decoder_inputs := batch.model_arguments.get("decoder_input_ids")) is None:
            return batch
        answer_width = rounding(decoder_inputs.shape[1], target_limit)
        arguments = {**batch.model_arguments, "decoder_input_ids": _filled(decoder_inputs, answer_width, pad_id)}
        return replace(batch, labels=_filled(batch.labels, answer_width, IGNORE), model_arguments=arguments)

    return collate_rounded


def round_packed_widths(collate: CollatePacked, widest: int) -> CollatePacked:
    """Return a collate function that rounds up the width of packed rows (`round_up_coarsely`), to `widest` at most."""

    def collate_rounded(packed: Sequence[Sequence[TokenRow]], *, width: int = 0) -> Batch:
        used_width = max(sum(row.input_count for row in rows) for rows in packed)
        return collate(packed, width=max(width, round_up_coarsely(used_width, widest)))

    return collate_rounded


def _filled(rows_BT: NDArray[Any], width: int, fill_value: int) -> NDArray[Any]:
    return np.pad(rows_BT, ((0, 0), (0, width - rows_BT.shape[1])), constant_values=fill_value)
