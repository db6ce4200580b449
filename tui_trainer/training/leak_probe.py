"""Do packed documents see each other? Asked at the start of each run, of the very model on the very device.

Documents of the data's tokens are read packed into two rows, and each alone: their logits must agree, and so must the
gradients of their embeddings, which come through the backward pass of every attention. The control is the same rows
without any sign of where documents begin, whose logits must differ, or the question was not put.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import collate_packed
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.losses.masks import known_masks
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.training.compiled import Trainable
from tui_trainer.training.rounding_probe import Numbers, cut_at_embeddings

Document = NDArray[np.int32]
# Kernels go by blocks of up to 128 tokens, and some have another code for a sequence that fits into one.
_WIDTH = 160
# In fp32 both ways differ by rounding alone. In 16 bits, and in TF32, rounding is coarse: the control is the measure.
# Gradients have been rounded more often than logits; they are compared as a whole, so that no single one decides.
_MOST_DIFFERENCE, _MOST_GRADIENT_SHARE = 1e-5, 1e-3
_MOST_SHARE_OF_CONTROL, _MOST_GRADIENT_SHARE_OF_CONTROL = 0.1, 0.25


def packing_leaks(run: Trainable, rows: Rows, *, by_lengths: bool = False) -> str | None:
    """What of packed documents is too far from each alone, and how far; None: they do not leak.

    `by_lengths`: as for `Layout`.
    """
    packed_rows = _documents(run, rows)
    each = [_pass(run, [[document]], packed=False) for row in packed_rows for document in row]
    alone = Numbers(torch.cat([one.logits for one in each]), torch.cat([one.gradients for one in each]))
    packed = _pass(run, packed_rows, packed=True, by_lengths=by_lengths)
    control = _pass(run, packed_rows, packed=False)
    return _difference(alone, packed, control, coarse=_is_coarse(run))


def _difference(alone: Numbers, packed: Numbers, control: Numbers, *, coarse: bool) -> str | None:
    """Those of logits by the largest, those of gradients by the norm of all."""
    scale = max(1.0, float(alone.logits.abs().max()))
    logits, without = (float((found.logits - alone.logits).abs().max()) for found in (packed, control))
    # Not `>`: what is no number is no agreement either.
    if not logits <= (_MOST_SHARE_OF_CONTROL * without if coarse else _MOST_DIFFERENCE * scale):
        return f"logits differ by {logits:.2g} from those alone"
    norm = float(alone.gradients.norm())
    gradient, without = (float((found.gradients - alone.gradients).norm()) for found in (packed, control))
    if not gradient <= (_MOST_GRADIENT_SHARE_OF_CONTROL * without if coarse else _MOST_GRADIENT_SHARE * norm):
        return f"gradients differ by {gradient / max(norm, 1e-30):.0%} from those alone"
    return None


def _documents(run: Trainable, rows: Rows) -> list[list[Document]]:
    """Two rows of the data's tokens whose documents begin at other places, with one beyond a kernel's block in each."""
    most = getattr(run.model.config, "max_position_embeddings", None) or _WIDTH
    width = min(_WIDTH, most)
    short = max(1, width // 16)
    long = max(1, width - 2 * short)
    # A document of N inputs has N + 1 tokens.
    lengths = np.array([short, long, short, long, 2 * short]) + 1
    found: list[Document] = []
    for index in range(len(rows)):
        found.append(rows.row(index))
        if sum(map(len, found)) >= lengths.sum():
            break
    tokens = np.resize(np.concatenate(found), int(lengths.sum()))
    documents = np.split(tokens, np.cumsum(lengths)[:-1])
    return [documents[:3], documents[3:]]


def _is_coarse(run: Trainable) -> bool:
    """Whether matmuls are rounded to fewer bits than fp32 has."""
    tf32 = run.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return tf32 or run.mixed_precision.is_coarse or any(p.dtype != torch.float32 for p in run.model.parameters())


def _pass(run: Trainable, rows: Sequence[Sequence[Document]], *, packed: bool, by_lengths: bool = False) -> Numbers:
    """Forward and backward: fp32 logits_NV of N tokens, and gradients_Nh of their embeddings alone."""
    batch = micro_batch(collate_packed(rows, run.pad_id), by_lengths=by_lengths).to(run.device)
    if not packed:
        batch = replace(batch, inputs={"input_ids": batch.inputs["input_ids"]})
    with cut_at_embeddings(run.model) as embedded:
        with run.mixed_precision.autocast(), known_masks(batch):
            logits_NV = run.model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.places].float()
            loss = F.cross_entropy(logits_NV, batch.labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, embedded[:1])
    return Numbers(logits_NV.detach(), gradient.flatten(0, 1)[batch.places].float())
