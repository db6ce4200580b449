"""What a card computes, beside float64: the products, attention and kernels that runs rely on.

Each function yields (name, figures) pairs. `off` is the norm of the difference relative to the norm of what float64
gives, and more than `bound` is wrong; `same` False is wrong as well. What a kernel refuses is a figure, too. On a CPU
sizes are tiny.
"""

from __future__ import annotations

import inspect
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.trace import counted_waits
from tui_trainer.training import varlen
from tui_trainer.training.checkpoint import _HostCopies
from tui_trainer.training.fused_lora import FusedAdapters
from tui_trainer.training.precision import DTYPES, FIRST_SCALE, MixedPrecision, keep_rotary_exact
from tui_trainer.training.process import breaks_the_device

Found = Iterator[tuple[str, Any]]
# As `FusedAdapters.describe_difference` allows: sums in another order, of products that are rounded.
_ROUNDINGS = 4


def tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of `work`, or why a library refuses. Raises what breaks the device."""
    try:
        return work()
    except Exception as error:  # libraries raise whatever their parts raise
        if breaks_the_device(error):
            raise
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def compared(found: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest difference as `off`; `worst` names the tensor."""
    norms = {name: float((found[name].double() - x).norm() / x.norm()) for name, x in expected.items()}
    # What is no number is the largest.
    worst = max(norms, key=lambda name: (norms[name] != norms[name], norms[name]))
    return {"off": norms[worst], "bound": _ROUNDINGS * torch.finfo(dtype).eps, "worst": worst}


def gradients(result: Tensor, slope: Tensor, **sources: Tensor) -> dict[str, Tensor]:
    """Return the result and its gradients, by name."""
    found = torch.autograd.grad(result, list(sources.values()), slope.to(result.dtype))
    return {"result": result.detach(), **{f"d {name}": x for name, x in zip(sources, found, strict=True)}}


def drawn(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers that ask for a gradient."""
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def wide(*tensors: Tensor) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in tensors]


def rotary(device: str) -> Found:
    """Compare cosines of 8,192 positions, for one row and two, as a run has them and by transformers alone."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    before = torch.get_float32_matmul_precision()
    for kept, rows, precision in product((True, False), (1, 2), ("high", "highest")):
        model = LlamaRotaryEmbedding(LlamaConfig(hidden_size=256, num_attention_heads=2)).to(device)
        if kept:
            keep_rotary_exact(model)
        positions = torch.arange(8192, device=device).expand(rows, -1)
        expected = (positions.double()[..., None] * model.inv_freq.double()).repeat(1, 1, 2).cos()
        torch.set_float32_matmul_precision(precision)
        try:
            off = float((model(positions[..., None].float(), positions)[0].double() - expected).abs().max())
        finally:
            torch.set_float32_matmul_precision(before)
        # An fp32 angle of 8,192 is exact to 2^-11.
        words = "as a run does" if kept else "transformers alone"
        yield f"{rows} x 8192, {precision}, {words}", {"off": off, **({"bound": 2**-10} if kept else {})}


def attention(device: str) -> Found:
    """Compare attention of packed rows by each kernel and by a mask: shared keys, windows, twice if deterministic."""
    heads, size, lengths, span = (8, 128, (40, 300, 700), 128) if device == "cuda" else (4, 16, (5, 9, 20), 4)
    tokens = sum(lengths)
    ends = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    document = torch.repeat_interleave(torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device))
    place = torch.arange(tokens, device=device)
    told: dict[str, Any] = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends)
    told |= dict.fromkeys(("max_length_q", "max_length_k"), max(lengths))
    kernels = varlen.kernels(torch.device(device))
    for keys in (heads, heads // 4):
        qkv = [drawn(1, count, tokens, size, device=device, dtype=torch.bfloat16) for count in (heads, keys, keys)]
        slope = torch.randn(1, tokens, heads, size, device=device, dtype=torch.bfloat16)
        for window in (None, span):
            far = place[:, None] - place
            mask = (document[:, None] == document) & (far >= 0) & (far < (window or tokens))

            def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor = mask) -> Tensor:
                return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)

            exact = wide(*qkv)
            expected = gradients(masked(*exact), slope, **dict(zip("qkv", exact, strict=True)))
            ways: dict[str, Callable[..., Tensor]] = {"a mask": masked}
            for kernel in kernels:
                if window and "window_size" not in inspect.signature(kernel.function).parameters:
                    continue
                name = f"lengths ({kernel.name}{', keys repeated' if kernel.repeats_keys else ''})"
                attend = varlen.attention_by(kernel)
                ways[name] = lambda *x, a=attend, w=window: a(nn.Module(), *x, None, sliding_window=w, **told)[0]
            for name, way in ways.items():
                for strict in (False, True):

                    def twice(way: Any = way, strict: bool = strict, case: Any = (qkv, slope, expected)) -> Any:
                        qkv, slope, expected = case
                        torch.use_deterministic_algorithms(strict)
                        try:
                            one, other = (gradients(way(*qkv), slope, **dict(zip("qkv", qkv, strict=True)))
                                          for _ in range(2))  # fmt: skip
                        finally:
                            torch.use_deterministic_algorithms(False)
                        same = {"same": all(torch.equal(one[x], other[x]) for x in one)} if strict else {}
                        return compared(one, expected, torch.bfloat16) | same

                    words = f"{heads} heads, {keys} of keys, {'window, ' if window else ''}"
                    yield f"{words}{'deterministic, ' if strict else ''}by {name}", tried(twice)


def fused_cross_entropy(device: str) -> Found:
    """Check Liger's kernel as a run does: a millionth of a loss, one rounding of a gradient."""
    from tui_trainer.losses.fused_cross_entropy import find_kernel, reason_against

    for vocabulary, name in product((128256, 151936) if device == "cuda" else (64,), ("bf16", "fp16")):

        def work(vocabulary: int = vocabulary, dtype: torch.dtype = DTYPES[name]) -> dict[str, Any]:
            settings = {"soft_cap": None, "label_smoothing": 0.0}
            reason = reason_against(find_kernel(), torch.device(device), dtype, vocabulary, **settings)
            return {"same": not reason, "reason": reason}

        yield f"{vocabulary:,} tokens, {name}", tried(work)


def lora_function(device: str) -> Found:
    """Compare a layer with its adapter, by the program's function and by peft's, forward and backward."""
    from peft import LoraConfig, get_peft_model

    inputs, outputs, rows = (4096, 14336, 1024) if device == "cuda" else (64, 128, 32)
    for name in ("bf16", "fp16", "NF4"):

        def layer(name: str = name) -> Iterator[tuple[str, dict[str, Any]]]:
            precision: Any = "bf16" if name == "NF4" else name
            dtype, holder = DTYPES[precision], nn.Sequential(OrderedDict(proj=nn.Linear(inputs, outputs, bias=False)))
            holder.to(device, dtype)
            weight = holder.proj.weight.detach()
            if name == "NF4":
                from bitsandbytes.functional import dequantize_4bit

                pack(holder, kept=(), compute_dtype=dtype)
                weight = dequantize_4bit(holder.proj.weight.data, holder.proj.weight.quant_state)
            adapted = get_peft_model(holder, LoraConfig(r=16, lora_alpha=32, target_modules=["proj"]))
            adapted.to(device)
            factors = {n.split(".")[-3]: p for n, p in adapted.named_parameters() if "lora_" in n}
            a, b = factors["lora_A"], factors["lora_B"]
            b.data.copy_(torch.randn_like(b) / 4)
            x = drawn(rows, inputs, device=device, dtype=dtype)
            slope = torch.randn(rows, outputs, device=device, dtype=dtype)
            exact_x, exact_a, exact_b = wide(x, a, b)
            exact = exact_x @ weight.double().T + 2 * (exact_x @ exact_a.T) @ exact_b.T
            expected = gradients(exact, slope, x=exact_x, A=exact_a, B=exact_b)
            mixed_precision = MixedPrecision(precision, torch.device(device))
            adapters = FusedAdapters(adapted, mixed_precision)
            for way in ("peft", "ours"):
                if way == "ours" and not adapters.switch_on():
                    raise LookupError("the function does not suit this layer")
                with mixed_precision.autocast(), adapters.copies():
                    y = adapted(x)
                yield way, compared(gradients(y, slope, x=x, A=a, B=b), expected, dtype)

        found = layer()
        for way in ("peft", "ours"):
            yield f"{name}, {way}", tried(lambda f=found: next(f)[1])


def pack(model: nn.Module, *, kept: tuple[str, ...], compute_dtype: torch.dtype) -> None:
    """Pack the linear layers into NF4 where they are, but for those whose path ends with a `kept` name."""
    import bitsandbytes as bnb

    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and not path.endswith(kept or ("no layer",)):
            packed = bnb.nn.Linear4bit(layer.in_features, layer.out_features, bias=False, compute_dtype=compute_dtype,
                                       quant_type="nf4", device="meta")  # fmt: skip
            weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
            packed.weight = weight.to(layer.weight.device)
            model.set_submodule(path, packed)
    model.is_loaded_in_4bit = True


def liger_layers(device: str) -> Found:
    """Compare Liger's norm, rotary embedding and gate of a hidden size of 4,096."""
    from liger_kernel.transformers import functional as liger

    rows, size, heads = (2048, 4096, 32) if device == "cuda" else (8, 64, 2)
    head = size // heads
    x, gate = (drawn(rows, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    w = drawn(size, device=device, dtype=torch.bfloat16)
    q, k = (drawn(1, heads, rows, head, device=device, dtype=torch.bfloat16) for _ in range(2))
    frequencies = 500_000 ** -(torch.arange(head // 2, device=device) * 2 / head)
    angles = torch.arange(rows, device=device)[:, None] * frequencies
    cos, sin = (f(angles).repeat(1, 2)[None].bfloat16() for f in (torch.cos, torch.sin))

    def turned(y: Tensor) -> Tensor:
        half = torch.cat((-y[..., head // 2 :], y[..., : head // 2]), dim=-1)
        return y * cos.double() + half * sin.double()

    def normed(x: Tensor, w: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    def both(q: Tensor, k: Tensor) -> Tensor:
        return torch.cat(liger.liger_rope(q.clone(), k.clone(), cos, sin), dim=-1)

    cases: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], dict[str, Tensor]]] = {
        "norm": (lambda x, w: liger.liger_rms_norm(x, w, 1e-6, in_place=False), normed, {"x": x, "w": w}),
        "rotary": (both, lambda q, k: torch.cat((turned(q), turned(k)), dim=-1), {"q": q, "k": k}),
        "gate": (liger.liger_swiglu, lambda a, b: F.silu(a) * b, {"a": x, "b": gate}),
    }  # fmt: skip
    for name, (ours, formula, sources) in cases.items():

        def work(ours: Any = ours, formula: Any = formula, sources: dict[str, Tensor] = sources) -> dict[str, Any]:
            exact = dict(zip(sources, wide(*sources.values()), strict=True))
            wanted = formula(*exact.values())
            slope = torch.randn(wanted.shape, device=device, dtype=torch.bfloat16)
            found = gradients(ours(*sources.values()), slope, **sources)
            return compared(found, gradients(wanted, slope, **exact), torch.bfloat16)

        yield name, tried(work)


def host_copies(device: str) -> Found:
    """Copy 2 GB to the host as a checkpoint does, while another stream computes: bit for bit, and bytes a second."""
    size, on_card = (2**28, True) if device == "cuda" else (2**16, False)
    tensors = [torch.randint(256, (size,), dtype=torch.uint8, device=device) for _ in range(8)]
    x = torch.randn(*(8192, 8192) if on_card else (8, 8), device=device)
    if on_card:
        torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) if on_card else nullcontext():
        for _ in range(50):
            x = x @ x
    copies, started = _HostCopies(), perf_counter()
    found = [copies.begin(tensor) for tensor in tensors]
    copies.finish()
    rate = 8 * size / (perf_counter() - started)
    same = all(torch.equal(copy, tensor.cpu()) for copy, tensor in zip(found, tensors, strict=True))
    yield "beside a busy stream", {"same": same, "bytes_per_second": rate}


def step_with_infinity(device: str) -> Found:
    """Take a step of AdamW after a gradient that overflowed: nothing moves, the scale halves, and nothing waits."""
    weight = nn.Parameter(torch.ones(64, device=device))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=FIRST_SCALE)
    waits = Counter[str]()
    for name, factor in (("finite", 1.0), ("infinite", float("inf"))):
        before = weight.detach().clone()
        scaler.scale((weight * factor).sum()).backward()
        with counted_waits(waits):
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved, scale = not torch.equal(before, weight), scaler.get_scale()
        right = moved == (factor == 1.0) and scale == (FIRST_SCALE if factor == 1.0 else FIRST_SCALE / 2)
        yield name, {"same": right, "moved": moved, "scale": scale, "waits": sum(waits.values())}


def grouped_products(device: str) -> Found:
    """Compare the products of experts, forward and backward, and count the waits of torch's slower way."""
    experts, rows, inputs, outputs = (8, 512, 1024, 2048) if device == "cuda" else (4, 16, 32, 64)
    grouped = getattr(F, "grouped_mm", None) or torch._grouped_mm
    offsets = torch.arange(1, experts + 1, device=device, dtype=torch.int32) * rows
    for name in ("bf16", "fp32"):
        dtype = DTYPES[name]
        x = drawn(experts * rows, inputs, device=device, dtype=dtype)
        w = drawn(experts, inputs, outputs, device=device, dtype=dtype)
        slope = torch.randn(experts * rows, outputs, device=device, dtype=dtype)

        def work(x: Tensor = x, w: Tensor = w, slope: Tensor = slope) -> dict[str, Any]:
            exact_x, exact_w = wide(x, w)
            exact = torch.cat([rows @ w for rows, w in zip(exact_x.split(rows), exact_w, strict=True)])
            expected, waits = gradients(exact, slope, x=exact_x, w=exact_w), Counter[str]()
            with counted_waits(waits):
                found = gradients(grouped(x, w, offs=offsets), slope, x=x, w=w)
            return compared(found, expected, x.dtype) | {"waits": sum(waits.values())}

        yield name, tried(work)


PROBES: dict[str, Callable[[str], Found]] = {
    "rotary angles": rotary, "attention by lengths": attention, "fused cross entropy": fused_cross_entropy,
    "LoRA function": lora_function, "Liger's layers": liger_layers, "copies to the host": host_copies,
    "a step with infinity": step_with_infinity, "products of experts": grouped_products,
}  # fmt: skip
