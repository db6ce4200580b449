"""Do other kernels compute the same? Asked at the start of a run, of the very model on the very device.

A few of the data's rows go through the model both ways: their logits must agree within rounding, and so must gradients:
those of the embeddings, which come through the backward pass of every layer, and those of trainable vectors (norms).
How far rounding goes in this model and precision is measured: by a control whose layers each pass on numbers that are
one rounding off. Measured on small Llamas of 2 and 12 layers: norms and MLPs that are rounded once, as Liger's, are at
0.2 to 0.3 of the control in bf16 and fp16, norms whose weights are 2 % off at 1.0 to 1.6 in bf16 and above 7 in fp16.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named import Sums, no_terms
from tui_trainer.training.compiled import Trainable, decoder_layers
from tui_trainer.training.device import reason_to_fall_back

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
    return reason and f"with it {reason}, more than rounding does here"


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
