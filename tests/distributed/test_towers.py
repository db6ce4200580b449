"""Models with towers for images in several processes: copies, parts, and parts on the host learn what one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from tests.distributed.outcomes import FULL, LORA, SPLIT, TWO, UNEVEN, check_equal, from_model, train, weights
from tests.tiny_models import save_tiny_model_with_towers, tiny_model_with_towers
from tui_trainer.config.sections import TrainingSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.towers import freeze_towers, is_of_tower, tower_modules
from tui_trainer.training.clock import Clock, Communication
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.compiled import decoder_layers
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.replicas import Replicas
from tui_trainer.training.sharded import Sharded

pytestmark = pytest.mark.full
STRATEGIES = {"ddp": TWO, "fsdp": SPLIT, "offloaded": SPLIT | {"distributed.cpu_offload": "true"}}


def on_towers(tmp_path, family):
    return from_model(save_tiny_model_with_towers(tmp_path / family, family)) | UNEVEN


@pytest.mark.parametrize(
    ("family", "strategy", "method"),
    [
        ("gemma3", "ddp", FULL),
        ("qwen3_vl", "offloaded", FULL),
        pytest.param("mistral3", "fsdp", LORA, marks=pytest.mark.e2e),
        pytest.param("qwen2_5_vl", "ddp", LORA, marks=pytest.mark.slow),
        pytest.param("qwen3_5", "fsdp", FULL, marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_what_one_does(family, strategy, method, tmp_path, forked_ranks):
    base = on_towers(tmp_path, family) | method | {"training.learning_rate": 0.003}
    alone = train(tmp_path, "alone", "causal_lm", base)
    together = train(tmp_path, "together", "causal_lm", base | STRATEGIES[strategy])
    # A recurrence carries the last bits of sums on from token to token.
    check_equal(alone, together, later_rel=1e-5 if family == "qwen3_5" else 1e-6)
    if method is FULL:
        found, model = weights(together), tiny_model_with_towers(family)
        before = load_file(base["model.model_name_or_path"] / "model.safetensors")
        kept = [name for name in before if is_of_tower(name, {path.split(".")[-1]: 0 for path in tower_modules(model)})]
        assert kept and all(torch.equal(found[name], before[name]) for name in kept)


@pytest.mark.parametrize(
    ("family", "strategy"),
    [
        pytest.param("gemma3", "fsdp", marks=pytest.mark.e2e),
        pytest.param("mistral3", "ddp", marks=pytest.mark.slow),
        pytest.param("qwen3_vl", "offloaded", marks=pytest.mark.slow),
    ],
)
def test_the_language_model_alone_learns_in_two_processes_what_it_does_in_one(family, strategy, tmp_path, forked_ranks):
    base = on_towers(tmp_path, family) | FULL | {"model.text_only": "true"}
    alone = train(tmp_path, "alone", "causal_lm", base)
    check_equal(alone, train(tmp_path, "together", "causal_lm", base | STRATEGIES[strategy]))


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_towers_that_are_elsewhere_are_neither_copied_nor_split(strategy, group_of_one):
    """The other place is torch's `meta`: whatever went there would fail."""
    model = freeze_and_train(tiny_model_with_towers("qwen3_vl"))
    towers = list(tower_modules(model).values())
    for tower in towers:
        tower.to("meta")
    clock = Communication(Clock(torch.device("cpu")))
    if strategy == "ddp":
        optimizer = RunOptimizer(model, TrainingSection(), lr=0.1)
        together: Collectives = Replicas(model, NextTokenLoss(model), optimizer, clock)
    else:
        together = Sharded(
            Ranks(), torch.device("cpu"), model, decoder_layers(model), MixedPrecision("fp32", torch.device("cpu")),
            clock, towers_on_host=True,
        )  # fmt: skip
    batch = micro_batch(collate([np.arange(5, 25, dtype=np.int32)], 0))
    loss = (together.forward or NextTokenLoss(model))(batch)
    loss.backward()
    of_towers = [weight for tower in towers for weight in tower.parameters()]
    assert of_towers and {weight.device.type for weight in of_towers} == {"meta"}
    assert not any(isinstance(weight, DTensor) or weight.grad is not None for weight in of_towers)
    assert all(weight.grad is not None for weight in model.parameters() if weight.requires_grad)


def freeze_and_train(model):
    freeze_towers(model)
    return model.train()
