"""Memory of one card of a model that is split over several: planned, against torch's FSDPMemTracker.

    python -m tests.benchmarks.split_memory [--shape 8b] [--layers 32] [--tokens 2048]

The step is the product's own (`training/sharded.py`, `training/step.py`), on tensors that have a shape and no numbers,
as one of so many processes whose collectives do nothing: neither cards nor weights are needed. What the allocator
cannot use and CUDA's context are left out of the planned bytes, as the tracker knows neither.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.benchmarks.llamas import SHAPES
from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.counting import fake_tensors
from tui_trainer.models.modules import FEW_LABELS
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import adapted_linears, adapter_parameters, match_targets
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.parts import BatchSizes, MemoryPart
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.training.clock import Clock, Communication
from tui_trainer.training.compiled import decoder_layers
from tui_trainer.training.components import checkpoint_activations
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.sharded import Sharded
from tui_trainer.training.step import take_step
from tui_trainer.tuning import find_method
from tui_trainer.units import GIB

RANK = 16
NOT_TRACKED = ("pieces", "context")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row in a pass of each of so many cards, in bf16."""

    shape: str
    method: str
    cards: int
    tokens: int
    checkpointing: bool = True
    accumulation: int = 1
    layers: int = 0
    """0: those of the shape."""

    @property
    def config(self) -> dict[str, Any]:
        found = SHAPES[self.shape].config()
        return found | {"num_hidden_layers": self.layers or found["num_hidden_layers"]}

    @property
    def weights(self) -> str:
        return "float32" if self.method == "full" else "bfloat16"

    def __str__(self) -> str:
        return f"{self.shape} {self.method:4}, {self.cards} cards, {self.accumulation} x {self.tokens} tokens"


class Alone(Ranks):
    """One of several processes: what the others would say is what it says itself."""

    def sum_counts(self, counts: Any) -> tuple[int, ...]:
        return tuple(self.world_size * count for count in counts)

    def maximum(self, *numbers: int) -> tuple[int, ...]:
        return numbers

    def sum(self, number: torch.Tensor) -> torch.Tensor:
        return number


def planned(case: Case) -> tuple[MemoryPart, ...]:
    config = {"model_type": "llama", **case.config}
    shape = shape_of(config, head="causal_lm")
    targets = match_targets(shape, "all-linear", "") if case.method == "lora" else ()
    setup = TrainingSetup(
        device="cuda",
        precision="bf16",
        weights=case.weights,  # type: ignore[arg-type]
        method=case.method,
        trained_parameters=adapter_parameters(adapted_linears(shape, targets), RANK) if targets else shape.parameters,
        lora_rank=RANK if targets else 0,
        lora_targets=targets,
        gradient_checkpointing=case.checkpointing,
        loss_chunk_tokens=FEW_LABELS,
        shards=case.cards,
    )
    layer, why_not = measure_layer(config, shape, setup, case.tokens)
    assert layer is not None, why_not
    setup = replace(setup, counted=layer)
    return memory_parts(
        shape, setup, BatchSizes(rows=1, eval_rows=1, row_tokens=case.tokens, accumulation=case.accumulation)
    )


def tracked(case: Case) -> dict[str, int]:
    """Bytes at the peak of a step, by what torch takes them for."""
    dist.init_process_group("fake", rank=0, world_size=case.cards, store=FakeStore())
    try:
        with _no_numbers():
            return _tracked(case)
    finally:
        dist.destroy_process_group()


def _tracked(case: Case) -> dict[str, int]:
    device, ranks = torch.device("cpu"), Alone(world_size=case.cards)
    config = LlamaConfig(**{**case.config, "max_position_embeddings": case.tokens})
    model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, case.weights))
    tuning = TuningSection(method=case.method, r=RANK, target_modules="all-linear")  # type: ignore[arg-type]
    model = find_method(case.method).apply(model, tuning, seed=0, autocast=True)
    if case.checkpointing:
        checkpoint_activations(model)
    model.train()
    loss = NextTokenLoss(model, chunk_tokens=FEW_LABELS)
    mixed_precision = MixedPrecision("bf16", device)
    timed = Communication(Clock(device))
    sharded = Sharded(ranks, device, model, decoder_layers(model), mixed_precision, timed)
    optimizer = RunOptimizer(model, TrainingSection(), lr=1e-4)
    ids_BT = torch.zeros(1, case.tokens, dtype=torch.int64)
    batch = MicroBatch(
        inputs={"input_ids": ids_BT}, labels=ids_BT.flatten(), label_positions=torch.arange(case.tokens),
        sample_count=1,
        token_count=case.tokens,
    )  # fmt: skip
    for parameter in optimizer.trained_parameters:
        optimizer.torch_optimizer.state[parameter] = {
            key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")
        }
    tracker = FSDPMemTracker(model, optimizer.torch_optimizer)

    def computed(batch: MicroBatch) -> torch.Tensor:
        # It follows the modules of one pass.
        tracker.reset_mod_stats()
        return loss(batch)

    # Clipping and the fused update change gradients, state and weights where they are; without numbers torch makes
    # whole ones to learn their shapes.
    with tracker, patch.object(optimizer, "apply", lambda *given, **more: torch.zeros(())):
        take_step(
            lambda: [batch] * case.accumulation, computed, optimizer, mixed_precision, Clock(device),
            lr=1e-4, max_grad_norm=1.0, ranks=ranks, collectives=sharded,
        )  # fmt: skip
    [peak] = (found for place, found in tracker.get_tracker_snapshot("peak").items() if place.type == "cpu")
    return {str(getattr(name, "value", name)): int(count) for name, count in peak.items()}


@contextmanager
def _no_numbers() -> Iterator[None]:
    """Neither first weights nor the insides of a module that changes its type; those of a mesh are numbers."""

    def mesh(*args: Any, **more: Any) -> Any:
        with unset_fake_temporarily():
            return device_mesh.DeviceMesh(args[0], torch.arange(prod(args[1])).view(args[1]), **more)

    with fake_tensors("causal_lm"), patch.object(device_mesh, "init_device_mesh", mesh):
        yield


def compare(case: Case) -> tuple[int, int]:
    """Bytes (planned, tracked), with their parts in print."""
    parts = [part for part in planned(case) if part.name not in NOT_TRACKED]
    found = tracked(case)
    total = sum(part.bytes for part in parts)
    print(f"{case}: planned {total / GIB:.2f} GiB, tracked {found['Total'] / GIB:.2f}: {total / found['Total']:.3f}")
    print("  planned:", ", ".join(f"{part.name} {part.bytes / GIB:.2f}" for part in parts if part.bytes))
    print("  tracked:", ", ".join(f"{name} {count / GIB:.2f}" for name, count in found.items() if count))
    return total, found["Total"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=2048)
    chosen = parser.parse_args()
    for cards, method in product((8, 2), ("full", "lora")):
        passes = 2 if cards > 2 else 1
        case = Case(
            shape=chosen.shape, method=method, cards=cards, tokens=chosen.tokens, accumulation=passes,
            layers=chosen.layers,
        )  # fmt: skip
        compare(case)


if __name__ == "__main__":
    main()
