"""Weights on the host, computed with on a card (FSDP2's CPU offload): whatever is on the wrong one of both is refused
by the simulated card. One process is all of the group; what goes over NCCL is not seen here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from tests.simulated_card.card import CUDA, CardTensor
from tests.simulated_card.machine import simulated_card
from tests.tiny_models import VOCABULARY, tiny_model
from tui_trainer.config.sections import TrainingSection
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.training.clock import Clock, Communication
from tui_trainer.training.collectives import gather_tensor
from tui_trainer.training.compiled import decoder_layers
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.sharded import Sharded
from tui_trainer.training.step import take_step

CPU = torch.device("cpu")
pytestmark = pytest.mark.full
STEPS, PASSES, ROWS, TOKENS = 2, 2, 2, 24


@contextmanager
def card_with_streams() -> Iterator[None]:
    with (
        simulated_card(),
        patch.object(CardTensor, "record_stream", lambda *_: None, create=True),
        # torch 2.11 calls record_stream itself.
        patch.object(_fsdp_collectives, "record_grad_output_stream", lambda *_: None, create=True),
        # A view of pinned memory is pinned as well, which FSDP2 asks.
        patch.object(torch.Tensor, "is_pinned", lambda *_: True),
    ):
        yield


@pytest.fixture
def group(monkeypatch):
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Ranks(host_group=dist.group.WORLD)
    dist.destroy_process_group()


class Trained:
    def __init__(self, ranks, device, dtype="float32", *, offloads):
        torch.manual_seed(3)
        model = tiny_model("llama").to(getattr(torch, dtype)).train()
        self.ranks, self.device, self.model = ranks, device, model
        self.precision = MixedPrecision("fp32", device)
        self.together = Sharded(
            ranks, device, model, decoder_layers(model), self.precision, Communication(Clock(device)), offloads=offloads
        )
        self.loss = NextTokenLoss(model, chunk_tokens=16)
        self.optimizer = RunOptimizer(model, TrainingSection(adam_epsilon=1e-3), lr=5e-3)
        self.random = torch.Generator().manual_seed(7)

    def batch(self):
        ids_BT = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=self.random)
        labels = ids_BT.roll(-1, 1).flatten()
        places = torch.arange(ROWS * TOKENS)
        return MicroBatch(
            inputs={"input_ids": ids_BT}, labels=labels, label_positions=places, sample_count=ROWS,
            token_count=ROWS * TOKENS,
        ).to(self.device)  # fmt: skip

    def step(self):
        return take_step(
            lambda: [self.batch() for _ in range(PASSES)], self.loss, self.optimizer, self.precision,
            Clock(self.device), lr=5e-3, max_grad_norm=1.0, ranks=self.ranks, collectives=self.together,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.e2e)])
def test_weights_on_the_host_learn_on_a_card_what_they_learn_there(group, dtype):
    # Numbers of 16 bits are rounded otherwise where the card's operations are taken apart.
    rel = 1e-6 if dtype == "float32" else 2e-3
    alone = Trained(group, CPU, dtype, offloads=False)
    expected = [(float(report.loss_sum), float(report.grad_norm)) for report in (alone.step() for _ in range(STEPS))]
    held_out = alone.batch()
    with alone.together.evaluation_context():
        expected_loss = float(alone.loss(held_out))
    with card_with_streams():
        trained = Trained(group, CUDA, dtype, offloads=True)
        found = []
        for _ in range(STEPS):
            report = trained.step()
            assert report.loss_sum.device == report.grad_norm.device == CUDA
            found.append((float(report.loss_sum), float(report.grad_norm)))
        with trained.together.evaluation_context():
            loss = trained.loss(trained.batch())
            assert loss.device == CUDA
            assert float(loss) == pytest.approx(expected_loss, rel=rel)
        optimizer = trained.optimizer
        kept = [*trained.model.parameters(), *optimizer.trained_parameters]
        kept += [value for state in optimizer.torch_optimizer.state.values() for value in state.values()]
        assert {tensor.device for tensor in kept} == {CPU}
        saved = {name: gather_tensor(tensor).cpu().clone() for name, tensor in optimizer.tensors().items()}
        optimizer.load_shards([saved])
        again = optimizer.tensors()
        assert all(
            tensor.device == CPU and torch.equal(gather_tensor(tensor), saved[name]) for name, tensor in again.items()
        )
        trained.step()
    for one, two in zip(expected, found, strict=True):
        assert two == pytest.approx(one, rel=rel)


def test_each_layer_is_gathered_by_itself_whatever_the_model_lists_as_its_parts(group, subtests):
    """mBART and Mamba list layers and what is inside of them, Electra none."""
    for family, count in (("mbart", 4), ("mamba", 2), ("electra", 2)):
        with subtests.test(family):
            model = tiny_model(family)
            layers = decoder_layers(model)
            Sharded(group, CPU, model, layers, MixedPrecision("fp32", CPU), Communication(Clock(CPU)))
            ids_BT = torch.randint(3, VOCABULARY, (2, 8))
            more = {"decoder_input_ids": ids_BT} if model.config.is_encoder_decoder else {}
            model(input_ids=ids_BT, **more).logits.sum().backward()
            assert next(layers[0].parameters()).grad is not None
            assert decoder_layers(model) == layers and len(layers) == count
