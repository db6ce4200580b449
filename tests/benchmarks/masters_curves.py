"""Whether bf16 weights with fp32 masters learn what fp32 weights do: losses of both, step by step, and held out.

    python -m tests.benchmarks.masters_curves [--steps 500] [--seeds 3] [--json FILE]

A byte-level Llama of random weights learns Python's language reference by the program's own step, loss and optimizer,
with products in bf16 as on a card: once with weights in fp32 (`model.dtype = "float32"`), once in bf16 with masters
(`"bfloat16"`), and, as a control, in bf16 without. The first weights and the rows are the seed's, the same in each way.
The difference of the mean held-out losses is printed beside the spread of fp32 over the seeds: as large as that is what
another seed changes as well.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tui_trainer.config.sections import TrainingSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.training.clock import Clock
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import take_step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROWS, ROW_TOKENS, PASSES, LR, WARM_UP = 4, 96, 2, 2e-3, 0.05
HELD_OUT_SHARE, HELD_OUT_ROWS = 0.1, 64
# Ids below are those of special tokens.
FIRST_BYTE = 3


@dataclass(frozen=True, kw_only=True)
class Way:
    name: str
    weights: torch.dtype
    has_masters: bool = True


FP32 = Way(name="fp32", weights=torch.float32)
MASTERS = Way(name="bf16 with masters", weights=torch.bfloat16)
CONTROL = Way(name="bf16 without", weights=torch.bfloat16, has_masters=False)
WAYS = (FP32, MASTERS, CONTROL)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Nats a byte of each step, and held out after the last."""

    losses: tuple[float, ...]
    held_out: float


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Bytes to learn from, and those that are held out."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32) + FIRST_BYTE
    held_out = int(HELD_OUT_SHARE * len(ids))
    return ids[:-held_out], ids[-held_out:]


def batch_at(ids: np.ndarray, starts: np.ndarray) -> MicroBatch:
    rows = [ids[start : start + ROW_TOKENS + 1] for start in starts]
    return micro_batch(collate(rows, 0)).to(DEVICE)


def lr_at(step: int, steps: int) -> float:
    """Linear from 0 up and down to 0."""
    warm_up = max(1, round(WARM_UP * steps))
    return LR * min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))


def learn(way: Way, seed: int, steps: int) -> Learned:
    train, held_out = corpus()
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE))
    model.to(DEVICE, way.weights).train()
    precision, clock, loss = MixedPrecision("bf16", DEVICE), Clock(DEVICE), NextTokenLoss(model)
    optimizer = RunOptimizer(model, TrainingSection(), lr=LR, has_masters=way.has_masters)
    draw = np.random.default_rng([seed, 7])

    def batches() -> list[MicroBatch]:
        return [batch_at(train, draw.integers(0, len(train) - ROW_TOKENS - 1, size=ROWS)) for _ in range(PASSES)]

    losses = []
    for step in range(steps):
        report = take_step(batches, loss, optimizer, precision, clock, lr=lr_at(step, steps), max_grad_norm=1.0)
        losses.append(float(report.loss_sum) / report.tokens)
    model.eval()
    places = np.linspace(0, len(held_out) - ROW_TOKENS - 1, HELD_OUT_ROWS).astype(int)
    total, count = 0.0, 0
    with torch.no_grad(), precision.autocast():
        for at in range(0, len(places), ROWS):
            batch = batch_at(held_out, places[at : at + ROWS])
            total, count = total + float(loss(batch)), count + batch.label_count
    return Learned(losses=tuple(losses), held_out=total / count)


def table(found: dict[str, list[Learned]], steps: int) -> Iterator[str]:
    """Means of the seeds over stretches of steps, then what is held out."""
    stretch = max(1, steps // 10)
    yield f"{'steps':>12}" + "".join(f"{name:>20}" for name in found) + f"{'difference':>14}"
    for begin in range(0, steps, stretch):
        end = min(begin + stretch, steps)
        means = [mean(mean(one.losses[begin:end]) for one in runs) for runs in found.values()]
        span = f"{begin + 1}-{end}"
        yield f"{span:>12}" + "".join(f"{value:20.4f}" for value in means) + f"{means[1] - means[0]:+14.4f}"
    yield ""
    for seed, runs in enumerate(zip(*found.values(), strict=True)):
        yield f"{f'seed {seed}':>12}" + "".join(f"{one.held_out:20.4f}" for one in runs)
    held_out = {name: [one.held_out for one in runs] for name, runs in found.items()}
    yield f"{'held out':>12}" + "".join(f"{mean(values):20.4f}" for values in held_out.values())
    exact = held_out[FP32.name]
    yield ""
    yield f"spread of fp32 over the seeds, highest less lowest: {max(exact) - min(exact):.4f} nats a byte"
    for way in WAYS[1:]:
        differences = [value - reference for value, reference in zip(held_out[way.name], exact, strict=True)]
        each = ", ".join(f"{value:+.4f}" for value in differences)
        yield f"{way.name} less fp32, held out: {mean(differences):+.4f} in the mean; by seed {each}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    # Products this small are no faster on several cores.
    torch.set_num_threads(1)
    found: dict[str, list[Learned]] = {
        way.name: [learn(way, seed, chosen.steps) for seed in range(chosen.seeds)] for way in WAYS
    }
    print(*table(found, chosen.steps), sep="\n")
    if chosen.json:
        runs = {name: [vars(one) for one in several] for name, several in found.items()}
        chosen.json.write_text(json.dumps(runs) + "\n")


if __name__ == "__main__":
    main()
