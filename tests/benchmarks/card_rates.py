"""What a card does in a second: products, copies, launches, attention kernels, and cuDNN's plans for new shapes.

    python tests/benchmarks/card_rates.py [--only NAMES] [--device cuda] [--json FILE]

    products    TFLOP/s of the matmuls of Llama-3.1-8B and Qwen3-1.7B at the tokens of the two goals
    copies      bytes a second within the card (reads and writes), to it and from it, pageable and pinned
    launches    microseconds of the host for a kernel that computes next to nothing
    attention   seconds of each backend of SDPA and of attention by lengths at heads of 128, forward and backward, with
                fewer heads of keys and without; a backend that refuses says why
    plans       the first and the second call of 20 widths that no call had before, for cuDNN and for flash

Medians of torch.utils.benchmark. Without a card sizes are tiny: it shows that everything runs. --json writes each
figure as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer

from tui_trainer.training import varlen

# (hidden size, width of the gated MLP, heads of keys x 128, vocabulary, tokens of a pass), by their config.json.
MODELS = {"Llama-3.1-8B": (4096, 14336, 1024, 128256, 4096), "Qwen3-1.7B": (2048, 6144, 1024, 151936, 8192)}
LORA_RANK = 16
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
UNSEEN_WIDTHS = 20
Found = Iterator[tuple[str, Any]]


def seconds_of(work: Callable[[], object], device: str) -> float:
    timer = Timer("work()", globals={"work": work})
    return float(timer.blocked_autorange(min_run_time=0.1 if device == "cuda" else 0.01).median)


def products(device: str) -> Found:
    """TFLOP/s by product: tokens x inputs x outputs, weights transposed as nn.Linear has them."""
    for model, (hidden, mlp, keys, vocabulary, tokens) in MODELS.items():
        shapes = {"q, o": (hidden, hidden), "k, v": (hidden, keys), "gate, up": (hidden, mlp), "down": (mlp, hidden),
                  "LoRA A": (hidden, LORA_RANK), "LoRA B": (LORA_RANK, hidden),
                  "head": (hidden, vocabulary)}  # fmt: skip
        for name, (inputs, outputs) in shapes.items():
            rows = tokens
            if device == "cpu":
                rows, inputs, outputs = (max(8, size // 64) for size in (tokens, inputs, outputs))
            x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
            weight = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
            slope = torch.randn(rows, outputs, device=device, dtype=torch.bfloat16)
            ways = {"forward": lambda x=x, w=weight: x @ w.T, "to inputs": lambda s=slope, w=weight: s @ w,
                    "to weights": lambda s=slope, x=x: s.T @ x}  # fmt: skip
            flops = 2 * rows * inputs * outputs / 1e12
            yield f"{model} {name}", {way: flops / seconds_of(work, device) for way, work in ways.items()}


def copies(device: str) -> Found:
    """Bytes a second; one within the card is read and written."""
    size = 2**30 if device == "cuda" else 2**20
    source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    yield "within", 2 * size / seconds_of(lambda: target.copy_(source), device)
    if device == "cuda":
        for name, pinned in (("pageable", False), ("pinned", True)):
            host = torch.empty(size // 4, dtype=torch.uint8, pin_memory=pinned)
            part = target[: size // 4]
            yield f"{name} to the card", size // 4 / seconds_of(lambda p=part, h=host: p.copy_(h), device)
            yield f"{name} from the card", size // 4 / seconds_of(lambda p=part, h=host: h.copy_(p), device)


def launches(device: str) -> Found:
    """Microseconds of the host for each of 1,000 kernels in a row, and for each with the wait at the end."""
    x = torch.zeros(8, device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    hosts, wholes = [], []
    for _ in range(20):
        wait()
        started = perf_counter()
        for _ in range(1000):
            x.add_(1)
        hosts.append((perf_counter() - started) * 1000)
        wait()
        wholes.append((perf_counter() - started) * 1000)
    yield "host_microseconds", median(hosts)
    yield "with_wait_microseconds", median(wholes)


def three(device: str, tokens: int, heads: int, key_heads: int) -> list[torch.Tensor]:
    shapes = ((1, count, tokens, 128) for count in (heads, key_heads, key_heads))
    dtype = torch.bfloat16
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def dense(qkv: list[torch.Tensor]) -> torch.Tensor:
    return F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=qkv[0].shape[1] != qkv[1].shape[1])


def by_lengths(kernel: Any, qkv: list[torch.Tensor]) -> torch.Tensor:
    """One document, as the program's attention of packed rows computes it."""
    tokens, device = qkv[0].shape[2], qkv[0].device
    ends = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": tokens, "max_length_k": tokens}
    return varlen.attention_by(kernel)(torch.nn.Module(), *qkv, None, **lengths)[0]


def attention(device: str) -> Found:
    """Milliseconds of forward and backward passes, and TFLOP/s of both; or why the kernel refuses."""
    heads, tokens = (32, 4096) if device == "cuda" else (4, 64)
    chosen: dict[str, tuple[Callable[[list[torch.Tensor]], torch.Tensor], Any]] = {
        backend.name.lower(): (dense, backend) for backend in BACKENDS
    }
    chosen |= {"torch's choice": (dense, None)}
    # Those that the program would try, in its order.
    kernels = varlen.kernels(torch.device(device))
    chosen |= {f"by lengths {n}": (partial(by_lengths, one), None) for n, one in enumerate(kernels, start=1)}
    for key_heads, words in ((heads // 4, "a quarter of the heads for keys"), (heads, "as many heads for keys")):
        for name, (attend, backend) in chosen.items():
            qkv = three(device, tokens, heads, key_heads)
            try:
                with sdpa_kernel(backend) if backend else nullcontext(), catch_warnings(record=True) as said:
                    simplefilter("always")
                    result = attend(qkv)
                    slope = torch.randn_like(result)
                    forward = seconds_of(lambda a=attend, q=qkv: a(q), device)
                    backward = seconds_of(
                        lambda r=result, q=qkv, s=slope: torch.autograd.grad(r, q, s, retain_graph=True), device
                    )
            except (RuntimeError, TypeError) as error:
                # torch warns of each reason, and raises that no kernel is left.
                reasons = [str(error), *(str(warning.message) for warning in said)]
                yield f"{name}, {words}", {"refused": " ".join(" ".join(reasons).split())[:400]}
                continue
            # Two products of the scores forward, five backward, half of each for causal ones.
            flops = 2 * tokens**2 * 128 * heads / 1e12
            yield f"{name}, {words}", {
                "forward_milliseconds": forward * 1000, "backward_milliseconds": backward * 1000,
                "forward_teraflops": flops / forward, "backward_teraflops": 2.5 * flops / backward,
            }  # fmt: skip


def plans(device: str) -> Found:
    """Milliseconds of the first and of the second forward and backward pass of a width, medians and the sum of 20."""
    heads, first = (32, 3801) if device == "cuda" else (2, 21)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        times: list[list[float]] = [[], []]
        try:
            with sdpa_kernel(backend):
                for width in range(first, first + UNSEEN_WIDTHS):
                    qkv = three(device, width, heads, heads // 2)
                    for several in times:
                        wait()
                        started = perf_counter()
                        dense(qkv).sum().backward()
                        wait()
                        several.append((perf_counter() - started) * 1000)
        except RuntimeError as error:
            yield backend.name.lower(), {"refused": " ".join(str(error).split())[:200]}
            continue
        # The first width of all also loads the library.
        yield backend.name.lower(), {
            "first_call_milliseconds": median(times[0][1:]), "second_call_milliseconds": median(times[1][1:]),
            "more_for_19_widths_milliseconds": sum(times[0][1:]) - sum(times[1][1:]),
        }  # fmt: skip


MEASURED: dict[str, Callable[[str], Found]] = {
    "products": products, "copies": copies, "launches": launches, "attention": attention, "plans": plans,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASURED))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    for name in chosen.only.split(","):
        figures[name] = {}
        for key, value in MEASURED[name](chosen.device):
            figures[name][key] = value
            print(f"{name:<10} {key:<50} {json.dumps(value)}", flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
