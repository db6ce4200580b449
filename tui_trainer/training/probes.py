"""Check at the start of a run, with its model and device, whether library kernels agree with the model's own operations
and whether packed documents stay separate.

For kernels, a few rows of the data go through the model both ways. Logits must agree within rounding, and so must the
gradients of trainable vectors (norms) and of the embeddings, which depend on the backward pass of every layer. A
control pass measures the effect of rounding: it changes the output of each layer by one rounding. On small Llamas of 2
and 12 layers, norms and MLPs that are rounded once, like Liger's, differ by 0.2 to 0.3 of the control in bf16 and fp16;
norms whose weights are 2 % off differ by 1.0 to 1.6 of it in bf16, and by more than 7 in fp16.
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
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch, skip_mask_checks
from tui_trainer.losses.named_losses import NamedLossSums, no_terms
from tui_trainer.models.towers import language_config
from tui_trainer.training.compiled import Trainable, decoder_layers
from tui_trainer.training.process import reason_to_fall_back

# TF32 has a mantissa of 10 bits, fp32 of 23, but its sums of thousands in another order differ by several steps.
_TF32_STEP, _LEAST_STEP = 2.0**-10, 2.0**-20


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Results of a probe: fp32 logits of the labelled positions, and gradients, both as flat tensors."""

    logits: Tensor
    gradients: Tensor

    def distance(self, other: Self) -> tuple[float, float]:
        return float((self.logits - other.logits).norm()), float((self.gradients - other.gradients).norm())


def describe_difference(run: Trainable, batch: MicroBatch, switch: Callable[[], None]) -> str:
    """Compare the results of a batch before and after `switch()`. Return `logits differ by 3.1%`, or '' if equal."""
    reference = numbers(run, batch)
    with _one_rounding_off(run):
        control = reference.distance(numbers(run, batch))
    switch()
    distances = reference.distance(numbers(run, batch))
    for name, distance, allowed_distance, reference_values in zip(
        ("logits", "gradients"), distances, control, (reference.logits, reference.gradients), strict=True
    ):
        # Not `>`: NaN is no agreement either.
        if not distance <= allowed_distance:
            return f"{name} differ by {distance / max(float(reference_values.norm()), 1e-30):.1%}"
    return ""


def reason_against(run: Trainable, batch: MicroBatch, switch: Callable[[], None]) -> str:
    """Return why the kernels that `switch` switches on cannot be used: they differ or fail. Return '' if they can.

    Raises errors that break the device, and out-of-memory errors.
    """
    try:
        reason = describe_difference(run, batch, switch)
    except Exception as error:  # libraries and compilers raise whatever their parts raise
        return reason_to_fall_back(error)
    return reason and f"{reason} from those of the model's own operations, more than rounding explains"


def numbers(run: Trainable, batch: MicroBatch) -> ProbeResult:
    """Return the logits and gradients of a pass without dropout. The gradients in the model do not change."""
    model = run.model
    outputs: list[Any] = []
    handle = model.register_forward_hook(lambda _module, _args, output: outputs.append(output.logits))
    try:
        with cut_at_embeddings(model) as embeddings:
            with run.mixed_precision.autocast():
                result = run.loss(replace(batch, terms=no_terms(run.loss, run.device)))
            vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
            sums = NamedLossSums.of(run.loss)
            gradients = torch.autograd.grad(sums.loss(result), [embeddings[0], *vectors], allow_unused=True)
    finally:
        handle.remove()
    gradient = torch.cat([x.float().flatten() for x in gradients if x is not None])
    logits = outputs[0].detach().flatten(0, -2)
    # Kernels may differ at padding, whose logits are not used.
    if len(logits) == batch.position_count > len(batch.label_positions):
        logits = logits.index_select(0, batch.label_positions)
    return ProbeResult(logits.float().flatten(), gradient)


@contextmanager
def cut_at_embeddings(model: Any) -> Iterator[list[Tensor]]:
    """Return a context without dropout that yields a list. Each forward pass appends its embeddings to the list, as a
    leaf tensor whose gradient can be computed."""
    embeddings: list[Tensor] = []

    def detach(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    handle = model.get_input_embeddings().register_forward_hook(detach)
    for module in model.modules():
        # Layers checkpoint activations only in training mode, and memory may be short here too.
        module.training = bool(getattr(module, "gradient_checkpointing", False))
    try:
        yield embeddings
    finally:
        handle.remove()
        model.train()


@contextmanager
def _one_rounding_off(run: Trainable) -> Iterator[None]:
    """Return a context that changes outputs of embeddings and layers by one rounding, alternately up and down."""
    step = _rounding_step(run)

    def shift_output(_module: nn.Module, _args: Any, output: Any) -> Any:
        x = output[0] if isinstance(output, tuple) else output
        signs = torch.ones(x.shape[-1], dtype=torch.float32)
        signs[::2] = -1
        shifted_x = (x.float() * (1 + step * signs.to(x.device))).to(x.dtype)
        return (shifted_x, *output[1:]) if isinstance(output, tuple) else shifted_x

    modules = [run.model.get_input_embeddings(), *decoder_layers(run.model)]
    handles = [module.register_forward_hook(shift_output) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rounding_step(run: Trainable) -> float:
    """Return the relative distance of neighbouring numbers in the coarsest precision that the model computes in."""
    sizes = [_LEAST_STEP, torch.finfo(run.mixed_precision.dtype).eps]
    sizes += [torch.finfo(dtype).eps for dtype in {p.dtype for p in run.model.parameters()} if dtype.is_floating_point]
    if run.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        sizes.append(_TF32_STEP)
    return float(max(sizes))


# Packed documents must not see each other.
#
# Documents with tokens from the data go through the model packed into two rows, and each alone. Logits must agree, and
# so must the gradients of the embeddings, which depend on the backward pass of every attention. The control is a pass
# over packed rows that does not separate documents. If its logits do not differ, the check proves nothing.

Document = NDArray[np.int32]
# Kernels compute blocks of up to 128 tokens, and some have different code for a sequence that fits into one block.
_WIDTH = 160
# In fp32, packed and separate documents differ by rounding alone. In 16 bits and TF32, differences are compared with
# the control. Gradients are rounded more often than logits, so they are compared by their norm.
_MOST_DIFFERENCE, _MOST_GRADIENT_SHARE = 1e-5, 1e-3
_MOST_SHARE_OF_CONTROL, _MOST_GRADIENT_SHARE_OF_CONTROL = 0.1, 0.25


def packing_difference(run: Trainable, rows: Rows, *, by_lengths: bool = False) -> str | None:
    """Return how packed documents differ from the same documents alone; None if they stay separate.

    With `by_lengths` attention gets the lengths of the documents.
    """
    packed_rows = _documents(run, rows)
    # All rows get the width of the longest, because a CPU compiles kernels for each width. The padding has no effect.
    width = max(len(document) - 1 for row in packed_rows for document in row)
    results = [_pass(run, [[document]], packed=False, width=width) for row in packed_rows for document in row]
    alone = ProbeResult(torch.cat([x.logits for x in results]), torch.cat([x.gradients for x in results]))
    packed = _pass(run, packed_rows, packed=True, by_lengths=by_lengths)
    control = _pass(run, packed_rows, packed=False)
    return _difference(alone, packed, control, coarse=_is_coarse(run))


def _difference(alone: ProbeResult, packed: ProbeResult, control: ProbeResult, *, coarse: bool) -> str | None:
    """Return how packed and separate documents differ; None if their logits and gradients agree within tolerances."""
    scale = max(1.0, float(alone.logits.abs().max()))
    logit_difference, baseline = (float((x.logits - alone.logits).abs().max()) for x in (packed, control))
    # Not `>`: NaN is no agreement either.
    if not logit_difference <= (_MOST_SHARE_OF_CONTROL * baseline if coarse else _MOST_DIFFERENCE * scale):
        return f"logits differ by {logit_difference:.2g} from those of unpacked rows"
    norm = float(alone.gradients.norm())
    distance, baseline = (float((x.gradients - alone.gradients).norm()) for x in (packed, control))
    if not distance <= (_MOST_GRADIENT_SHARE_OF_CONTROL * baseline if coarse else _MOST_GRADIENT_SHARE * norm):
        return f"gradients differ by {distance / max(norm, 1e-30):.0%} from those of unpacked rows"
    return None


def _documents(run: Trainable, rows: Rows) -> list[list[Document]]:
    """Return two rows of documents made of the data's tokens. Each row has a document longer than a kernel's block."""
    max_positions = getattr(language_config(run.model.config), "max_position_embeddings", None) or _WIDTH
    width = min(_WIDTH, max_positions)
    short_length = max(1, width // 16)
    long_length = max(1, width - 2 * short_length)
    # A document of N inputs has N + 1 tokens.
    lengths = np.array([short_length, long_length, short_length, long_length, 2 * short_length]) + 1
    token_rows: list[Document] = []
    for index in range(len(rows)):
        token_rows.append(rows.row(index))
        if sum(map(len, token_rows)) >= lengths.sum():
            break
    tokens = np.resize(np.concatenate(token_rows), int(lengths.sum()))
    documents = np.split(tokens, np.cumsum(lengths)[:-1])
    return [documents[:3], documents[3:]]


def _is_coarse(run: Trainable) -> bool:
    """Return whether matmuls round to fewer bits than fp32 has."""
    uses_tf32 = run.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return uses_tf32 or run.mixed_precision.is_coarse or any(p.dtype != torch.float32 for p in run.model.parameters())


def _pass(
    run: Trainable, rows: Sequence[Sequence[Document]], *, packed: bool, by_lengths: bool = False, width: int = 0
) -> ProbeResult:
    """Compute rows of documents, and return fp32 logits_NV of N tokens and gradients_Nh of their embeddings."""
    batch = micro_batch(collate_packed(rows, run.pad_id, width=width), by_lengths=by_lengths).to(run.device)
    if not packed:
        batch = replace(batch, inputs={"input_ids": batch.inputs["input_ids"]})
    with cut_at_embeddings(run.model) as embeddings:
        with run.mixed_precision.autocast(), skip_mask_checks(batch):
            logits_NV = run.model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.label_positions].float()
            loss = F.cross_entropy(logits_NV, batch.labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, embeddings[:1])
    return ProbeResult(logits_NV.detach(), gradient.flatten(0, 1)[batch.label_positions].float())
