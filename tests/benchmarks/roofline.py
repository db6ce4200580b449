"""How fast a step could be on one card: the bytes and operations of the program's own step, by assumed rates.

    python -m tests.benchmarks.roofline [--only 8b-lora ...] [--library-kernels none] [--repeat-keys] [--plain]
                                        [--groups] [--kept]

The model, its adapters, the loss, the sum of gradients and the optimizer are the program's own, with the values that
`auto` takes on a card with bf16, on tensors that have a shape and no numbers. Each operation of torch is one kernel
that reads its arguments and writes its results; it takes as long as the slower of its bytes and its products, and never
less than a launch. Kernels of libraries (attention, Liger) are counted by the reads and writes listed beside them.
The host is taken to be always ahead. None of the rates is measured: compare two counts, not a count with a clock.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import AttentionInterface, masking_utils

from tui_trainer.config.load import Request
from tui_trainer.config.sections import TrainingSection
from tui_trainer.launching.open_run import load_config
from tui_trainer.losses import micro_batch as masks
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.fused_cross_entropy import CrossEntropy
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.counting import empty_model, fake_tensors, model_config
from tui_trainer.models.heads import CLASSIFYING_HEADS, Head
from tui_trainer.models.shape import shape_of
from tui_trainer.planning import automatic_values
from tui_trainer.planning.fused_kernels import unfused_adapters_reason
from tui_trainer.training import fused_lora, varlen
from tui_trainer.training.fused_lora import FusedAdapters
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.tuning import find_method
from tui_trainer.units import GIB

# Assumed of an H200: matmuls in bf16 at 75 and at 67 % of the dense peak, a copy at 81 % of the bandwidth,
# FlashAttention 2 (arXiv:2407.08608, figures 5 and 6), and a short kernel.
PRODUCTS_PER_SECOND = (740e12, 660e12)
RATES = {"attention": 350e12, "attention backward": 300e12}
BYTES_PER_SECOND, LAUNCH_SECONDS = 3.9e12, 3e-6

aten = torch.ops.aten
# Make no kernel: a place in memory, or another view of one.
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach",
              "lift_fresh", "alias", "_unsafe_view"}  # fmt: skip
_WRITES_ONLY = {
    "zero_",
    "fill_",
    "zeros",
    "zeros_like",
    "ones_like",
    "full",
    "full_like",
    "new_zeros",
    "ones",
    "arange",
}
# Read as much of a table as they give.
_LOOKS_UP = {"embedding", "index_select", "gather"}


@dataclass
class Count:
    """What the kernels of one group read, write and multiply."""

    kernels: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PRODUCTS_PER_SECOND))


class Counter(TorchDispatchMode):
    """Counts kernels by group; what touches something as wide as `vocabulary` and is no product belongs to the loss."""

    def __init__(self, vocabulary: int = 0) -> None:
        super().__init__()
        self.groups: dict[str, Count] = defaultdict(Count)
        self.kinds: dict[str, Count] = defaultdict(Count)
        self.vocabulary = vocabulary
        self.phase = "forward"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in _NO_KERNEL:
            return results
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        found = [x for x in tree_leaves(results) if isinstance(x, Tensor)]
        if not any(x.numel() for x in found) and not name.startswith("_fused"):
            return results
        own = {id(x) for x in given}
        if name in _LOOKS_UP:
            count = 2 * sum(map(size, found))
        elif name.startswith(("scatter", "index_add")):
            count = 3 * size(args[2])
        elif name in _WRITES_ONLY:
            count = sum(map(size, found or given))
        else:
            count = sum(map(size, given)) + sum(map(size, found))
        if name.startswith("_foreach") or name.startswith("_fused"):
            written = [x for x in found if id(x) not in own] or (args[0] if name.endswith("_") else [])
            # AdamW writes the weight and both moments, and reads the gradient.
            count = sum(map(size, given)) + sum(map(size, written)) * (3 if "adam" in name else 1)
        flops = 0
        if func.overloadpacket in flop_registry and name in ("mm", "addmm", "bmm", "baddbmm"):
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=results)
        self.add("products" if flops else self._group(given + found), count, flops, name)
        return results

    def _group(self, tensors: Sequence[Tensor]) -> str:
        if self.phase == "optimizer":
            return "optimizer"
        of_loss = any(x.dim() > 1 and x.shape[-1] == self.vocabulary for x in tensors)
        return "loss" if of_loss else f"elementwise {self.phase}"

    def add(self, group: str, count: float, flops: float = 0, name: str = "") -> None:
        """One kernel."""
        for table, key in ((self.groups, group), (self.kinds, f"{group}: {name}")):
            entry = table[key]
            entry.kernels += 1
            entry.bytes += count
            entry.flops += flops
            for place, of_products in enumerate(PRODUCTS_PER_SECOND):
                rate = RATES.get(group, of_products)
                entry.seconds[place] += max(LAUNCH_SECONDS, count / BYTES_PER_SECOND, flops / rate)

    def total(self) -> Count:
        found = Count()
        for each in self.groups.values():
            found.kernels += each.kernels
            found.bytes += each.bytes
            found.flops += each.flops
            found.seconds = [a + b for a, b in zip(found.seconds, each.seconds, strict=True)]
        return found


def size(tensor: Tensor) -> int:
    """Bytes that a kernel touches: what is expanded is there once."""
    counts = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0)
    return prod(counts) * tensor.element_size()


# Kernels of libraries -------------------------------------------------------------------------------------------------


def one_kernel(counter: Counter, group: str, name: str, tensors: Sequence[Tensor | None], flops: float = 0) -> None:
    counter.add(group, sum(size(x) for x in tensors if x is not None), flops, name)


def empty_as(*tensors: Tensor) -> Any:
    made = tuple(torch.empty_like(x) for x in tensors)
    return made if len(made) > 1 else made[0]


class Attention(torch.autograd.Function):
    """Fused attention: queries, keys, values and results once each, and the sums of each row in fp32."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, pairs: int, *tensors: Tensor | None) -> Tensor:
        query, _, value, mask = tensors
        assert query is not None and value is not None
        found = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.flops = 2 * pairs * (query.shape[-1] + value.shape[-1])
        ctx.counter = counter
        one_kernel(counter, "attention", "forward", (*tensors, found, sums), ctx.flops)
        ctx.save_for_backward(*tensors, found, sums)
        ctx.has_bias = mask is not None and mask.requires_grad
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, found, sums = ctx.saved_tensors
        gradients = empty_as(query, key, value)
        touched = (query, key, value, mask, found, sums, gradient, *gradients)
        of_bias = torch.empty_like(mask) if ctx.has_bias else None
        one_kernel(ctx.counter, "attention backward", "backward", (*touched, of_bias), 2.5 * ctx.flops)
        return None, None, *gradients, of_bias


class Norm(torch.autograd.Function):
    """Liger's RMSNorm: ops/rms_norm.py."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, x: Tensor, weight: Tensor) -> Tensor:
        found, scales = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)
        one_kernel(counter, "elementwise forward", "liger norm", (x, weight, found, scales))
        ctx.save_for_backward(x, weight, scales)
        ctx.counter = counter
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        one_kernel(ctx.counter, "elementwise backward", "liger norm", (gradient, x, weight, scales, gradient))
        ctx.counter.add("elementwise backward", 132 * 4 * weight.numel(), name="liger norm: sum of the weight")
        return None, torch.empty_like(x), torch.empty_like(weight)


class GatedProduct(torch.autograd.Function):
    """Liger's SiLU and product: ops/swiglu.py."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, gate: Tensor, up: Tensor) -> Tensor:
        found = torch.empty_like(up)
        one_kernel(counter, "elementwise forward", "liger gated product", (gate, up, found))
        ctx.save_for_backward(gate, up)
        ctx.counter = counter
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        one_kernel(ctx.counter, "elementwise backward", "liger gated product", (gradient, gate, up, gate, up))
        return None, *empty_as(gate, up)


class Rotation(torch.autograd.Function):
    """Liger's rotary embedding, in place: ops/rope.py."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        one_kernel(counter, "elementwise forward", "liger rotation", (q, k, cos, sin, q, k))
        ctx.counter, ctx.tables = counter, (cos, sin)
        return torch.empty_like(q), torch.empty_like(k)

    @staticmethod
    def backward(ctx: Any, of_q: Tensor, of_k: Tensor) -> tuple[Tensor | None, ...]:
        one_kernel(ctx.counter, "elementwise backward", "liger rotation", (of_q, of_k, *ctx.tables, of_q, of_k))
        return None, *empty_as(of_q, of_k), None, None


def fused_loss(counter: Counter) -> CrossEntropy:
    """Liger's cross entropy, in place: ops/cross_entropy.py reads the logits twice and writes their gradient."""

    def kernel(logits_NV: Tensor, labels_N: Tensor, *, gradient_scale: float | None, **_: Any) -> Tensor:
        losses = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)
        touched = (logits_NV,) * (1 if gradient_scale is None else 3)
        one_kernel(counter, "loss", "liger cross entropy", (*touched, labels_N, losses))
        return losses

    return kernel


class FourBitProduct(torch.autograd.Function):
    """bitsandbytes' linear layer: the weight is unpacked before each product, forward and backward."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.counter = counter
        return x @ unpacked(counter, weight, "forward").T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return None, gradient @ unpacked(ctx.counter, weight, "backward"), None


def unpacked(counter: Counter, weight: Tensor, phase: str) -> Tensor:
    counter.add(f"elementwise {phase}", 2.516 * weight.numel(), name="unpacked 4 bits")
    return weight


def use_liger(model: nn.Module, counter: Counter, stack: ExitStack) -> None:
    """What `training/fused_kernels.py` lets Liger change in a Llama and what is made like it."""
    norm = MethodType(lambda self, x: Norm.apply(counter, x, self.weight), nn.Module())
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm"):
            module.forward = MethodType(norm.__func__, module)
        elif kind.endswith(("LlamaMLP", "Qwen3MLP")):
            module.forward = MethodType(
                lambda self, x: self.down_proj(GatedProduct.apply(counter, self.gate_proj(x), self.up_proj(x))), module
            )
        elif kind in ("LlamaAttention", "Qwen3Attention"):
            names = __import__(type(module).__module__, fromlist=["x"])
            rotate = lambda q, k, cos, sin, *_, **__: Rotation.apply(counter, q, k, cos, sin)  # noqa: E731
            stack.enter_context(patch.object(names, "apply_rotary_pos_emb", rotate))


def pack(model: nn.Module, counter: Counter, stack: ExitStack, *, is_copied: bool) -> None:
    """The frozen matrices in 4 bits, and the copy that peft makes of what such a layer gives (lora/bnb.py)."""

    def product(base: nn.Linear, x: Tensor) -> Tensor:
        found: Tensor = FourBitProduct.apply(counter, x.to(torch.bfloat16), base.weight)
        return found.clone() if is_copied else found

    stack.enter_context(
        patch.object(fused_lora, "_unpacked", lambda weight, dtype: unpacked(counter, weight, "backward"))
    )
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if type(base) is nn.Linear:
            base.forward = MethodType(product, base)


@contextmanager
def card_kernels(counter: Counter) -> Iterator[None]:
    """Attention and dropout of a card, and norms as autocast has them there."""
    layer_norm = functional.layer_norm

    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *_: Any, **more: Any) -> Tensor:
        three = (query, key, value)
        if torch.is_autocast_enabled("cpu"):
            three = (query.bfloat16(), key.bfloat16(), value.bfloat16())
        rows, heads, tokens, _ = query.shape
        pairs = rows * heads * tokens * key.shape[2] // (2 if more.get("is_causal") else 1)
        found: Tensor = Attention.apply(counter, pairs, *three, attn_mask)
        return found

    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mask = torch.empty_like(x, dtype=torch.bool)
            one_kernel(counter, "elementwise forward", "dropout", (x, mask, x))
            ctx.save_for_backward(mask)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            one_kernel(counter, "elementwise backward", "dropout", (gradient, *ctx.saved_tensors, gradient))
            return torch.empty_like(gradient)

    def norm(x: Tensor, *given: Any, **more: Any) -> Tensor:
        return layer_norm(x.float() if torch.is_autocast_enabled("cpu") else x, *given, **more)

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return Dropout.apply(x) if training and p else x

    with (
        patch.object(functional, "scaled_dot_product_attention", attend),
        patch.object(functional, "dropout", dropout),
        patch.object(functional, "layer_norm", norm),
    ):
        yield


def lengths_kernel(counter: Counter, *, shares_keys: bool) -> Callable[..., Tensor]:
    """torch's attention by lengths of rows that are one document each; `shares_keys`: as from torch 2.12 on."""

    def kernel(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Any, max_q: int, max_k: int,
               *, window_size: Any = (-1, -1), scale: float | None = None) -> Tensor:  # fmt: skip
        pairs = query.shape[0] * query.shape[1] * max_k // 2
        found: Tensor = Attention.apply(counter, pairs, query, key, value, None)
        return found

    if not shares_keys:
        return kernel

    def shared(
        *given: Any, window_size: Any = (-1, -1), scale: float | None = None, enable_gqa: bool = False
    ) -> Tensor:
        return kernel(*given)

    return shared


# Cases ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pass of `rows` rows of `tokens`, packed and by lengths with a causal head."""

    title: str
    config: dict[str, Any]
    head: Head = "causal_lm"
    method: str = "full"
    rows: int = 1
    tokens: int
    answer_tokens: int = 0
    settings: tuple[str, ...] = ()


_LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3_1_7B = {
    "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
_LORA = ("tuning.r=16", "tuning.target_modules=all-linear", "tuning.lora_dropout=0")
CASES = {
    "8b-lora": Case(title="Llama-3.1-8B, LoRA r=16, 1 x 4096", config=_LLAMA_8B, method="lora", tokens=4096,
                    settings=_LORA),
    "8b-lora-dropout": Case(title="Llama-3.1-8B, LoRA r=16 with dropout, 1 x 4096", config=_LLAMA_8B, method="lora",
                            tokens=4096, settings=(*_LORA[:2], "tuning.lora_dropout=0.05")),
    "1.7b-lora": Case(title="Qwen3-1.7B, LoRA r=16, 1 x 2048", config=_QWEN3_1_7B, method="lora", tokens=2048,
                      settings=_LORA),
    "1.7b-full": Case(title="Qwen3-1.7B, full, 2 x 4096", config=_QWEN3_1_7B, rows=2, tokens=4096),
    "1.7b-full-bf16": Case(title="Qwen3-1.7B, full, bf16 and fp32 masters, 2 x 4096", config=_QWEN3_1_7B, rows=2,
                           tokens=4096, settings=("model.dtype=bfloat16",)),
    "8b-qlora": Case(title="Llama-3.1-8B, QLoRA r=16, 1 x 4096", config=_LLAMA_8B, method="qlora", tokens=4096,
                     settings=_LORA),
    "bert": Case(title="BERT of 110 M, full, 32 x 128", config={"model_type": "bert"}, head="sequence_classification",
                 rows=32, tokens=128),
    "t5-base": Case(title="T5-base, full, 8 x 512, answers of 128", head="seq2seq_lm", rows=8, tokens=512,
                    answer_tokens=128, config={"model_type": "t5", "d_model": 768, "d_ff": 3072, "d_kv": 64,
                                               "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12}),
}  # fmt: skip


@dataclass
class Found:
    """Of one pass, of the sum of gradients that each further pass adds, and of the optimizer's step."""

    one_pass: Counter
    sum_of_gradients: Counter
    step: Counter
    kept_bytes: int
    keepers: dict[str, list[int]]
    """Tensors that are kept for the backward pass and their bytes, by what keeps them first."""


def count(case: Case, *, library_kernels: bool, shares_keys: bool, plain: bool = False) -> Found:
    """`plain`: adapters beside their layers, all logits at once and without a kernel, masks of batches without padding,
    keys and values copied for each head of queries."""
    apart = ("tuning.fused_adapters=false",) if plain else ()
    loaded = load_config(Request(assignments=(f"tuning.method={case.method}", *case.settings, *apart)))
    labels = 2 if case.head in CLASSIFYING_HEADS else 0
    config = model_config(case.config, labels)
    shape = shape_of(config.to_dict(), head=case.head, labels=labels)
    target = automatic_values.TrainingDevice(device="cuda", reason="", gpu=None)
    weights = automatic_values.weights_dtype(loaded, target, "bf16", shape).value
    chunk = 0 if plain else automatic_values.loss_chunk(loaded, target, shape).value
    tuning = loaded.config.tuning
    counter = Counter(shape.vocabulary)
    with ExitStack() as stack:
        asks = {name: getattr(masking_utils, name) for name in dir(masking_utils) if name.startswith("_ignore_")}
        stack.enter_context(fake_tensors(case.head))
        stack.enter_context(card_kernels(counter))
        # As on a card, where nobody looks at a mask, and one of a batch without padding is left out.
        stack.enter_context(patch.multiple(masking_utils, **asks))
        stack.enter_context(patch.object(masks, "is_off_host", lambda batch: True))
        model = empty_model(config, case.head, dtype=getattr(torch, weights))
        # What the layers compute beside weights in 4 bits is LoRA's.
        four_bits = case.method == "qlora"
        method = find_method("lora" if four_bits else case.method)
        model = method.apply(model, tuning, seed=0, autocast=True).train()
        if library_kernels:
            use_liger(model, counter, stack)
        is_fused = not unfused_adapters_reason(loaded.config, "ddp")
        if four_bits:
            pack(model, counter, stack, is_copied=not is_fused)
        adapters = FusedAdapters(model, MixedPrecision("bf16", torch.device("cpu")))
        if is_fused:
            adapters.switch_on()
            # As on a card.
            stack.enter_context(patch.object(fused_lora, "has_wide_results", lambda tensor: True))
        if case.head == "causal_lm":
            shares_keys = shares_keys and not plain
            kernel = varlen.Kernel("counted", lengths_kernel(counter, shares_keys=shares_keys), not shares_keys)
            AttentionInterface.register(varlen.ATTENTION_NAME, varlen.attention_by(kernel))
            model.set_attn_implementation(varlen.ATTENTION_NAME)
        loss = loss_of(case, model, chunk)
        if library_kernels and not plain and isinstance(loss, NextTokenLoss) and case.head == "causal_lm":
            loss.kernel = fused_loss(counter)
        optimizer = RunOptimizer(model, TrainingSection(), lr=1e-4)
        batch = batch_of(case)
        if plain:
            # As if one position were padding.
            batch = replace(batch, token_count=batch.token_count - 1)
        return counted(batch, model, loss, optimizer, adapters, counter)


def loss_of(case: Case, model: Any, chunk: int) -> Callable[[MicroBatch], Tensor]:
    if case.head in CLASSIFYING_HEADS:
        return ClassificationLoss(model, "single_label_classification")
    return NextTokenLoss(model, chunk_tokens=chunk)


def counted(
    batch: MicroBatch, model: Any, loss: Any, optimizer: RunOptimizer, adapters: FusedAdapters, counter: Counter
) -> Found:
    weights = {x.untyped_storage()._cdata for x in [*model.parameters(), *model.buffers()]}
    kept: dict[int, Any] = {}
    keepers: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights | kept.keys():
            kept[storage._cdata] = storage  # held, so that no other takes its place
            entry = keepers[f"{keeper()}: {tuple(tensor.shape)}, {tensor.dtype}".replace("torch.", "")]
            entry[0] += 1
            entry[1] += storage.nbytes()
        return tensor

    hooks, autocast = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16)
    with counter, adapters.copies():
        with hooks, autocast:
            found = loss(batch)
        kept_bytes = sum(storage.nbytes() for storage in kept.values())
        kept.clear()
        counter.phase = "backward"
        found.backward()
    of_sum, of_step = Counter(), Counter()
    of_sum.phase = of_step.phase = "optimizer"
    # Behind the first pass gradients lie where backward left them; each further one adds its own to them.
    with of_sum:
        optimizer.collect()
        for parameter in optimizer.trained_parameters:
            if optimizer.masters:
                parameter.grad.add_(torch.empty_like(parameter, dtype=torch.bfloat16))  # type: ignore[union-attr]
            elif parameter.grad is not None:
                parameter.grad.add_(torch.empty_like(parameter))
    for parameter in optimizer.trained_parameters:
        moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.torch_optimizer.state[parameter] = {"step": torch.zeros(()), **moments}
    with of_step:
        optimizer.apply(found.detach(), lr=1e-4, max_grad_norm=1.0)
    return Found(counter, of_sum, of_step, kept_bytes, keepers)


def keeper() -> str:
    """The function of the model or the program that keeps a tensor, with its class where it is a method."""
    frame = sys._getframe(2)
    while frame.f_back:
        own, name = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(own, nn.Module):
            return type(own).__name__
        if not any(part in frame.f_code.co_filename for part in ("/torch/", "roofline.py")) or name == "forward":
            return f"{Path(frame.f_code.co_filename).name} {name}"
        frame = frame.f_back
    return "?"


def batch_of(case: Case) -> MicroBatch:
    ids_BT = torch.zeros(case.rows, case.tokens, dtype=torch.int64)
    positions = case.rows * case.tokens
    if case.head == "causal_lm":
        ends = torch.zeros(case.rows + 1, dtype=torch.int32)
        inputs: dict[str, Any] = {
            "input_ids": ids_BT.view(1, -1), "position_ids": torch.zeros(1, positions, dtype=torch.int64),
            "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": case.tokens, "max_length_k": case.tokens,
        }  # fmt: skip
        labels, places = ids_BT.flatten(), torch.zeros(positions, dtype=torch.int64)
    else:
        inputs = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
        labels, places = torch.zeros(case.rows, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    if case.answer_tokens:
        inputs["decoder_input_ids"] = ids_BT[:, : case.answer_tokens].clone()
        labels = places = torch.zeros(case.rows * case.answer_tokens, dtype=torch.int64)
    return MicroBatch(
        inputs=inputs, labels=labels, label_positions=places, sample_count=case.rows, token_count=positions
    )


# Report ---------------------------------------------------------------------------------------------------------------


def report(case: Case, found: Found, *, plain: bool, groups: bool, kept: bool) -> None:
    tokens = case.rows * case.tokens
    total = found.one_pass.total()
    title = f"{case.title}, plain" if plain else case.title
    print(f"{title}: {total.kernels} kernels, {total.bytes / 1e9:.1f} GB, {total.flops / 1e12:.1f} TFLOP, "
          f"{found.kept_bytes / GIB:.2f} GiB kept for the backward pass")  # fmt: skip
    for place, rate in enumerate(PRODUCTS_PER_SECOND):
        one, more, step = (x.total().seconds[place] for x in (found.one_pass, found.sum_of_gradients, found.step))
        line = f"  {rate / 1e12:.0f} TFLOP/s: {one * 1e3:.1f} ms, {tokens / one:,.0f} tokens/s"
        if case.method == "full":
            for passes in (1, 8):
                seconds = passes * one + (passes - 1) * more + step
                line += f"; with the optimizer's step behind {passes}: {passes * tokens / seconds:,.0f}"
        print(line)
    if groups:
        parts = [*found.one_pass.groups.items(), ("optimizer's step", found.step.total())]
        for name, each in sorted(parts, key=lambda pair: -pair[1].seconds[0]):
            print(f"    {name:22} {each.seconds[0] * 1e3:7.1f} ms {each.kernels:6} kernels {each.bytes / 1e9:8.1f} GB")
    if groups:
        for name, each in sorted(found.one_pass.kinds.items(), key=lambda pair: -pair[1].seconds[0])[:12]:
            print(
                f"      {name:40} {each.seconds[0] * 1e3:7.1f} ms {each.kernels:6} kernels {each.bytes / 1e9:8.1f} GB"
            )
    if kept:
        for name, (count_, bytes_) in sorted(found.keepers.items(), key=lambda pair: -pair[1][1])[:16]:
            print(f"    {name:80} {count_:5} tensors {bytes_ / GIB:7.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--library-kernels", choices=("liger", "none"), default="liger")
    parser.add_argument("--repeat-keys", action="store_true", help="attention by lengths as torch has it before 2.12")
    parser.add_argument(
        "--plain", action="store_true", help="before it the same with adapters, masks, keys and logits as libraries do"
    )
    parser.add_argument("--groups", action="store_true", help="where the time goes")
    parser.add_argument("--kept", action="store_true", help="what is kept for the backward pass")
    chosen = parser.parse_args()
    kernels, shares = chosen.library_kernels == "liger", not chosen.repeat_keys
    for name in chosen.only:
        for plain in (True, False) if chosen.plain else (False,):
            found = count(CASES[name], library_kernels=kernels, shares_keys=shares, plain=plain)
            report(CASES[name], found, plain=plain, groups=chosen.groups, kept=chosen.kept)


if __name__ == "__main__":
    main()
