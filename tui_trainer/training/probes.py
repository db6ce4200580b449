"""Do other kernels compute the same? Asked at the start of a run, of the very model on the very device.

A few of the data's rows go through the model both ways: their logits must agree within rounding, and so must gradients:
those of the embeddings, which come through the backward pass of every layer, and those of trainable vectors (norms).
How far rounding goes in this model and precision is measured: by a control whose layers each pass on numbers that are
one rounding off. Measured on small Llamas of 2 and 12 layers: norms and MLPs that are rounded once, as Liger's, are at
0.2 to 0.3 of the control in bf16 and fp16, norms whose weights are 2 % off at 1.0 to 1.6 in bf16 and above 7 in fp16.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tui_trainer.data.batching.collate import collate_packed
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.losses.micro_batch import MicroBatch, known_masks, micro_batch
from tui_trainer.losses.several_parts import Sums, no_terms
from tui_trainer.models.towers import language_config
from tui_trainer.training.compiled import Trainable, decoder_layers
from tui_trainer.training.process import reason_to_fall_back

# TF32 has a mantissa of 10 bits, fp32 of 23, but its sums of thousands in another order differ by several steps.
_TF32_STEP, _LEAST_STEP = 2.0**-10, 2.0**-20


@dataclass(frozen=True, slots=True)
class Numbers:
    """fp32 logits of the places with a label, and gradients."""

    logits: Tensor
    gradients: Tensor

    def distance(self, other: Self) -> tuple[float, float]:
        return float((self.logits - other.logits).norm()), float((self.gradients - other.gradients).norm())


def difference(run: Trainable, batch: MicroBatch, switch: Callable[[], None]) -> str:
    """What of the batch is not the same once `switch` was called, and how far it is off; empty: all is."""
    reference = numbers(run, batch)
    with _one_rounding_off(run):
        control = reference.distance(numbers(run, batch))
    switch()
    found = reference.distance(numbers(run, batch))
    for what, far, rounding, whole in zip(
        ("logits", "gradients"), found, control, (reference.logits, reference.gradients), strict=True
    ):
        # Not `>`: what is no number is no agreement either.
        if not far <= rounding:
            return f"{what} differ by {far / max(float(whole.norm()), 1e-30):.1%}"
    return ""


def reason_against(run: Trainable, batch: MicroBatch, switch: Callable[[], None]) -> str:
    """Why what `switch` switches on cannot be used: it does not compute the same, or fails. Raises what breaks the
    device, and what memory there is not enough for."""
    try:
        reason = difference(run, batch, switch)
    except Exception as error:  # libraries and compilers raise whatever their parts raise
        return reason_to_fall_back(error)
    return reason and f"{reason} from those of the model's own operations, more than rounding explains"


def numbers(run: Trainable, batch: MicroBatch) -> Numbers:
    """Of a forward and a backward pass without dropout, as vectors; no weight gets a gradient."""
    model = run.model
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda _module, _args, output: outputs.append(output.logits))
    try:
        with cut_at_embeddings(model) as embedded:
            with run.mixed_precision.autocast():
                found = run.loss(replace(batch, terms=no_terms(run.loss, run.device)))
            vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
            sums = Sums.of(run.loss)
            gradients = torch.autograd.grad(sums.loss(found), [embedded[0], *vectors], allow_unused=True)
    finally:
        handle.remove()
    gradient = torch.cat([one.float().flatten() for one in gradients if one is not None])
    logits = outputs[0].detach().flatten(0, -2)
    # What stands at padding is nobody's, and kernels differ there.
    if len(logits) == batch.positions > len(batch.places):
        logits = logits.index_select(0, batch.places)
    return Numbers(logits.float().flatten(), gradient)


@contextmanager
def cut_at_embeddings(model: Any) -> Iterator[list[Tensor]]:
    """Without dropout: what the embeddings of each forward pass give, where its gradients end."""
    embedded: list[Tensor] = []

    def detach(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    handle = model.get_input_embeddings().register_forward_hook(detach)
    for module in model.modules():
        # Layers that are recomputed for the backward pass are so here, where memory may be as short.
        module.training = bool(getattr(module, "gradient_checkpointing", False))
    try:
        yield embedded
    finally:
        handle.remove()
        model.train()


@contextmanager
def _one_rounding_off(run: Trainable) -> Iterator[None]:
    """Embeddings and layers pass on numbers that are larger or smaller, by turns, by what a rounding may take."""
    step = _step(run)

    def off(_module: nn.Module, _args: Any, output: Any) -> Any:
        x = output[0] if isinstance(output, tuple) else output
        signs = torch.ones(x.shape[-1], dtype=torch.float32)
        signs[::2] = -1
        moved = (x.float() * (1 + step * signs.to(x.device))).to(x.dtype)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    modules = [run.model.get_input_embeddings(), *decoder_layers(run.model)]
    handles = [module.register_forward_hook(off) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _step(run: Trainable) -> float:
    """The coarsest step between two numbers that the model computes with."""
    steps = [_LEAST_STEP, torch.finfo(run.mixed_precision.dtype).eps]
    steps += [torch.finfo(dtype).eps for dtype in {p.dtype for p in run.model.parameters()} if dtype.is_floating_point]
    if run.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        steps.append(_TF32_STEP)
    return float(max(steps))


# Do packed documents see each other? Asked at the start of each run, of the very model on the very device.
#
# Documents of the data's tokens are read packed into two rows, and each alone: their logits must agree, and so must
# the
# gradients of their embeddings, which come through the backward pass of every attention. The control is the same rows
# without any sign of where documents begin, whose logits must differ, or the question was not put.

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
    # All as wide as the longest: on a CPU each width costs kernels of its own. No place sees padding at its right.
    width = max(len(document) - 1 for row in packed_rows for document in row)
    each = [_pass(run, [[document]], packed=False, width=width) for row in packed_rows for document in row]
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
        return f"logits differ by {logits:.2g} from those of unpacked rows"
    norm = float(alone.gradients.norm())
    gradient, without = (float((found.gradients - alone.gradients).norm()) for found in (packed, control))
    if not gradient <= (_MOST_GRADIENT_SHARE_OF_CONTROL * without if coarse else _MOST_GRADIENT_SHARE * norm):
        return f"gradients differ by {gradient / max(norm, 1e-30):.0%} from those of unpacked rows"
    return None


def _documents(run: Trainable, rows: Rows) -> list[list[Document]]:
    """Two rows of the data's tokens whose documents begin at other places, with one beyond a kernel's block in each."""
    most = getattr(language_config(run.model.config), "max_position_embeddings", None) or _WIDTH
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


def _pass(
    run: Trainable, rows: Sequence[Sequence[Document]], *, packed: bool, by_lengths: bool = False, width: int = 0
) -> Numbers:
    """Forward and backward: fp32 logits_NV of N tokens, and gradients_Nh of their embeddings alone."""
    batch = micro_batch(collate_packed(rows, run.pad_id, width=width), by_lengths=by_lengths).to(run.device)
    if not packed:
        batch = replace(batch, inputs={"input_ids": batch.inputs["input_ids"]})
    with cut_at_embeddings(run.model) as embedded:
        with run.mixed_precision.autocast(), known_masks(batch):
            logits_NV = run.model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.places].float()
            loss = F.cross_entropy(logits_NV, batch.labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, embedded[:1])
    return Numbers(logits_NV.detach(), gradient.flatten(0, 1)[batch.places].float())
