"""torchao's own optimizers, where it is installed: `uv run --with torchao pytest tests/training/test_torchao.py`.

They run on a CPU, where the first step takes a minute: it is compiled.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from tui_trainer.config.sections import TrainingSection
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.parts import state_bytes
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.training.optimizer import RunOptimizer

with warnings.catch_warnings():
    # Its files have strings with odd escapes, and torch has newer names than those it registers.
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao.optim", reason="torchao is not installed")
NAMES = tuple(name for name, spec in OPTIMIZERS.items() if spec.library == "torchao")
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::UserWarning")]


def small_model(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 128)).to(dtype)


def optimizer_of(model, name) -> RunOptimizer:
    return RunOptimizer(model, TrainingSection(optim=name, weight_decay=0.1), lr=0.01)


def train(model, optimizer, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        draw = torch.Generator().manual_seed(step % 2)
        loss = model(torch.randn(5, 128, generator=draw).to(next(model.parameters()).dtype)).square().float().sum()
        loss.backward()
        optimizer.apply(loss.detach(), lr=0.01 / (1 + step), max_grad_norm=1.0)
        losses.append(loss.item())
    return losses, torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_and_resumes_from_its_saved_state_to_the_bit(name, dtype):
    model = small_model(dtype)
    optimizer = optimizer_of(model, name)
    losses, _ = train(model, optimizer, 4)
    assert losses[2] < losses[0]
    state = load(save(optimizer.tensors()))
    assert {key.rpartition(".")[2] for key in state} - {"master"} <= OPTIMIZERS[name].state_keys
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    _, expected = train(model, optimizer, 3, first=4)
    again, forgetful = small_model(dtype), small_model(dtype)
    for other in (again, forgetful):
        other.load_state_dict(weights)
    resumed = optimizer_of(again, name)
    resumed.load_shards([state])
    assert torch.equal(train(again, resumed, 3, first=4)[1], expected)
    assert not torch.equal(train(forgetful, optimizer_of(forgetful, name), 3, first=4)[1], expected), "the control"


@pytest.mark.parametrize("name", NAMES)
def test_compiling_before_the_first_step_changes_nothing(name):
    model, compiled = small_model(), small_model()
    optimizer = optimizer_of(compiled, name)
    optimizer.compile()
    assert torch.equal(compiled[0].weight, model[0].weight) and optimizer.tensors() == {}
    assert all(parameter.grad is None for parameter in compiled.parameters())
    assert torch.equal(train(compiled, optimizer, 2)[1], train(model, optimizer_of(model, name), 2)[1])


@pytest.mark.parametrize("name", NAMES)
def test_its_state_takes_the_planned_bytes(name):
    model = nn.Linear(1024, 512, bias=False)
    optimizer = optimizer_of(model, name)
    loss = model(torch.ones(1, 1024)).sum()
    loss.backward()
    optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=0.0)
    taken = sum(tensor.nbytes for tensor in optimizer.tensors().values())
    shape: ModelShape = SimpleNamespace()  # type: ignore[assignment]
    planned = state_bytes(shape, TrainingSetup(optim=name), 1024 * 512)
    assert taken == pytest.approx(planned, rel=0.01)
