"""Do packed documents see each other? Asked at the start of each run, of the very model on the very device.

A few documents of the data are read packed into one row, and each alone: the logits must agree. The control is the same
row without any sign of where documents begin, whose logits must differ, or the question was not put.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tui_trainer.data.pack import collate_packed
from tui_trainer.data.rows import Rows
from tui_trainer.losses.micro_batch import micro_batch

if TYPE_CHECKING:
    from tui_trainer.training.learner import Learner

_DOCUMENTS, _MOST_TOKENS = 3, 48
# In fp32 both ways differ by rounding alone. In 16 bits, and in TF32, rounding is coarse: the control is the measure.
_MOST_DIFFERENCE, _MOST_SHARE_OF_CONTROL = 1e-5, 0.1


def packing_leaks(learner: Learner, rows: Rows, *, by_lengths: bool = False) -> float | None:
    """How far logits of packed documents are from those of each alone, if that is too far; None: they do not leak.

    `by_lengths`: as for `Layout`.
    """
    documents = [rows.row(index)[:_MOST_TOKENS] for index in range(min(_DOCUMENTS, len(rows)))]
    learner.model.eval()
    try:
        with torch.inference_mode(), learner.numbers.autocast():
            alone = torch.cat([_logits(learner, [document], packed=False) for document in documents])
            packed = _logits(learner, documents, packed=True, by_lengths=by_lengths)
            control = _logits(learner, documents, packed=False)
    finally:
        learner.model.train()
    scale = float(alone.abs().max())
    difference, without = (float((found - alone).abs().max()) for found in (packed, control))
    limit = _MOST_SHARE_OF_CONTROL * without if _is_coarse(learner) else _MOST_DIFFERENCE * max(1.0, scale)
    return None if difference <= limit else difference


def _is_coarse(learner: Learner) -> bool:
    """Whether products are rounded to fewer bits than fp32 has."""
    tf32 = learner.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return tf32 or learner.numbers.is_coarse or any(p.dtype != torch.float32 for p in learner.model.parameters())


def _logits(
    learner: Learner, documents: Sequence[NDArray[np.int32]], *, packed: bool, by_lengths: bool = False
) -> Tensor:
    """fp32 logits [tokens, V] of documents one behind another in one row."""
    batch = micro_batch(collate_packed([documents], learner.pad_id), by_lengths=by_lengths).to(learner.device)
    inputs = batch.inputs if packed else {"input_ids": batch.inputs["input_ids"]}
    logits: Tensor = learner.model(**inputs, use_cache=False).logits
    return logits[0].float()
