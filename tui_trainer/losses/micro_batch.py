"""Tensors of one forward pass, and attention masks that are built without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tui_trainer.data.batching.collate import IGNORE, Batch

_EMPTY = torch.zeros(0)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward pass, on the device that computes it.

    `inputs` are arguments of the model: input_ids_BT int64, and position_ids_BT if documents are packed. Both have one
    row if attention uses lengths. `labels` [N] are the labels that count, and `label_positions` [N] their positions in
    the flattened [B x T]. Their number N is known on the CPU, without waiting for the device. If each row has one
    label, `labels` are [B] or [B, C], and `label_positions` is empty. `documents`, int64 [N] or [B], is the number of
    each label's document, counted from 0. `document_labels`, on the host, is the number of labels of each document.
    `sample_count` counts prepared rows, and `token_count` inputs without padding. A batch that `is_idle` adds nothing
    to loss or counts: a process without rows computes it."""

    inputs: Mapping[str, Any]
    labels: Tensor
    label_positions: Tensor
    sample_count: int
    token_count: int
    is_idle: bool = False
    documents: Tensor = field(default_factory=lambda: _EMPTY.long())
    document_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    row_lengths: Tensor = field(default_factory=lambda: _EMPTY.long())
    """Number of tokens in each row of a causal model without padding, int64 [B]; empty if no row is padded."""
    row_values: Tensor = field(default_factory=lambda: _EMPTY)
    """Values computed before training for each prepared row, fp32 [samples, width] (`training/row_values.py`)."""
    row_labels: Tensor = field(default_factory=lambda: _EMPTY.long())
    """Label of each prepared row that has one beside the labels of its tokens, int64 [samples]."""
    host_row_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The same labels on the host."""
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    """Means over the whole effective batch that the loss needs, keyed by name (`losses/named_losses.py`)."""

    @property
    def label_count(self) -> int:
        """Number of labels, by which the sum of a loss is divided."""
        return 0 if self.is_idle else self.labels.numel()

    @property
    def position_count(self) -> int:
        """Number of inputs, including padding."""
        return int(self.inputs["input_ids"].numel()) if "input_ids" in self.inputs else 0

    def to(self, device: torch.device) -> MicroBatch:
        """Return this batch on another device. Copies from pinned memory do not block the host."""
        if device.type == "cpu":
            return self
        return self._convert_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> MicroBatch:
        """Return this batch in pinned memory."""
        return self._convert_tensors(lambda tensor: tensor.pin_memory())

    def _convert_tensors(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        # Each tensor is converted once, because the lengths are one tensor under two names.
        convert = cache(change)
        inputs = {name: convert(value) if isinstance(value, Tensor) else value for name, value in self.inputs.items()}
        optional_names = (name for name in ("row_lengths", "row_values", "row_labels") if len(getattr(self, name)))
        names = ("labels", "label_positions", "documents", *optional_names)
        changed_fields: dict[str, Any] = {name: convert(getattr(self, name)) for name in names}
        return replace(self, inputs=inputs, **changed_fields)


def micro_batch(batch: Batch, *, by_lengths: bool = False, keeps_padding: bool = False) -> MicroBatch:
    """Return a padded batch of rows as tensors on the CPU.

    With `by_lengths` all packed rows become one row, without padding unless `keeps_padding`, and the inputs include the
    lengths of documents. If a model does not pass the lengths on, flash attention derives them from position_ids, which
    works for one row only (`_is_packed_sequence` in transformers' modeling_flash_attention_utils.py)."""
    # numpy is faster than torch for arrays of this size.
    labels, count = batch.labels, len(batch.labels)
    if labels.ndim == 2 and labels.dtype.kind == "i":
        width, labels = labels.shape[1], labels.ravel()
        label_positions = np.flatnonzero(labels != IGNORE)
        labels, documents = labels[label_positions], label_positions // width
        if batch.documents is not None:
            documents, count = batch.documents.ravel()[label_positions], int(batch.documents.max()) + 1
        label_counts = np.bincount(documents, minlength=count)
    else:
        label_positions, documents, label_counts = np.arange(0), np.arange(count), np.ones(count, dtype=np.int64)
    arrays = {"input_ids": batch.input_ids, **batch.model_arguments}
    if batch.position_ids is not None:
        arrays["position_ids"] = batch.position_ids
    row_lengths = None if batch.token_count == batch.input_ids.size else batch.row_lengths
    document_lengths = batch.document_lengths if by_lengths else None
    if document_lengths is not None:
        if row_lengths is not None and batch.documents is not None and not keeps_padding:
            # The document number of padding is -1.
            text_positions = np.flatnonzero(batch.documents.ravel() >= 0)
            arrays = {name: values.ravel()[text_positions] for name, values in arrays.items()}
            label_positions, row_lengths = np.searchsorted(text_positions, label_positions), None
            document_lengths = np.bincount(batch.documents.ravel()[text_positions]).astype(np.int32)
        arrays = {name: values.reshape(1, -1) for name, values in arrays.items()}
    inputs: dict[str, Any] = {name: torch.from_numpy(values) for name, values in arrays.items()}
    return MicroBatch(
        inputs if document_lengths is None else inputs | _lengths(document_lengths),
        torch.from_numpy(labels),
        torch.from_numpy(label_positions),
        batch.row_count,
        batch.token_count,
        documents=torch.from_numpy(documents),
        document_labels=label_counts,
        row_lengths=_EMPTY.long() if row_lengths is None else torch.from_numpy(row_lengths),
        row_values=_EMPTY if batch.row_values is None else torch.from_numpy(batch.row_values),
        row_labels=_EMPTY.long() if batch.row_labels is None else torch.from_numpy(batch.row_labels),
        host_row_labels=np.zeros(0, dtype=np.int64) if batch.row_labels is None else batch.row_labels,
    )


def _lengths(document_lengths: NDArray[np.int32]) -> dict[str, Any]:
    """Return transformers' arguments for document lengths: cumulative sums, int32 [documents + 1], and the maximum."""
    bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(document_lengths)]).astype(np.int32))
    most_tokens = int(document_lengths.max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": most_tokens, "max_length_k": most_tokens}


# Attention masks are built without waiting for the device.
#
# Before it builds a mask, transformers checks whether the mask would be all ones, and whether each row has one
# document. These checks read GPU tensors, so the host waits for the GPU in every forward pass, although the batch has
# the answers. On a CPU the checks cost nothing, and leave out a mask of ones.


def is_off_host(batch: MicroBatch) -> bool:
    """Return whether reading a number from the batch waits for the device, because the batch is not on the CPU."""
    return bool(batch.inputs["input_ids"].device.type != "cpu")


def _without_padding(should_ignore: Callable[..., Any], padding_mask: Any = None, *args: Any, **more: Any) -> Any:
    """Return `should_ignore` without padding: whether the mask can be left out. Windows and caches may need one."""
    return should_ignore(None, *args, **more)


@contextmanager
def skip_mask_checks(batch: MicroBatch) -> Iterator[None]:
    """Return a context for a forward pass over this batch, in which transformers does not read masks on the device.

    The mask of padded or packed rows is always built, as when transformers traces a model. For other rows a mask of
    ones is left out, because flash kernels take no mask, and positions are not searched for documents."""
    if not is_off_host(batch):
        yield
        return
    from transformers import masking_utils

    is_packed = "position_ids" in batch.inputs
    replacements: dict[str, Callable[..., Any]] = {}
    if is_packed or any(name.endswith("attention_mask") for name in batch.inputs):
        is_full = not is_packed and batch.token_count == batch.position_count
        # The argument is None if there is no mask, so there is nothing to check.
        replacements["is_tracing"] = lambda *args: not is_full or args != (None,)
        for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa") if is_full else ():
            if should_ignore := getattr(masking_utils, name, None):
                replacements[name] = partial(_without_padding, should_ignore)
    if not is_packed:
        replacements["find_packed_sequence_indices"] = lambda position_ids: None
    # These are names of transformers 5.23. If another version lacks one, it waits for the device.
    originals = {name: getattr(masking_utils, name) for name in replacements if hasattr(masking_utils, name)}
    vars(masking_utils).update({name: replacements[name] for name in originals})
    try:
        yield
    finally:
        vars(masking_utils).update(originals)
