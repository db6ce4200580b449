"""Muon for the matrices of layers and AdamW for the others take the same steps as the two optimizers of torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.combinations import in_the_sweep
from tests.tiny_models import save_tiny_model, tiny_model
from tests.training.test_router_loss import RATE, STEPS, padded, rows_of, steps_of, trained_run
from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import ConfigError, RunError
from tui_trainer.planning.memory.parts import state_bytes
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.training.optimizer import RunOptimizer, hidden_matrices

pytestmark = pytest.mark.versions
MUON = {"training.optim": "muon", "training.weight_decay": 0.1}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("muon")
    for family in ("llama", "mixtral"):
        save_tiny_model(folder / family, family)
    return folder


def bare_losses(family, base, clip=0.0):
    """Return the losses with projections trained by Muon and all other weights by AdamW."""
    model, (ids, mask, labels) = tiny_model(family).train(), padded(rows_of(base))
    named = dict(model.named_parameters())
    hidden = [weight for name, weight in named.items() if name.endswith("_proj.weight")]
    rest = [weight for name, weight in named.items() if not name.endswith("_proj.weight")]
    adamw = [
        {"params": [p for p in rest if (p.ndim >= 2) is many], "weight_decay": 0.1 * many} for many in (True, False)
    ]
    optimizers = (
        torch.optim.Muon(hidden, lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(adamw, lr=RATE),
    )
    found = []
    for _ in range(STEPS):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.full
@pytest.mark.parametrize(("family", "clip"), [("llama", 0.5), in_the_sweep("llama", 0.0), in_the_sweep("mixtral", 0.0)])
def test_a_run_takes_the_steps_of_the_two_optimizers_of_torch(family, clip, bases, tmp_path):
    changes = {**MUON, "training.max_grad_norm": clip, "training.router_aux_loss_coef": 0}
    folder = trained_run(bases / family, tmp_path, **changes)
    losses = [step.loss for step in steps_of(folder)]
    # Muon multiplies gradients in bf16, which enlarges differences in their last bits.
    assert losses == pytest.approx(bare_losses(family, bases / family, clip), rel=5e-5)
    assert losses[-1] < losses[0]
    plain = [step.loss for step in steps_of(trained_run(bases / family, tmp_path, **{"training.max_grad_norm": clip}))]
    assert losses != pytest.approx(plain, abs=1e-3), "the control"


@pytest.mark.e2e
def test_it_learns_from_scratch_at_the_learning_rate_of_adamw(tiny_run):
    losses = {}
    for optim in ("muon", "adamw_torch_fused"):
        folder, outcome = tiny_run(optim, {"training.optim": optim, "training.max_steps": 12})
        assert outcome.exit_code == 0
        losses[optim] = [step.loss for step in steps_of(folder)]
    assert losses["muon"][0] == losses["adamw_torch_fused"][0]
    muon, adamw = losses.values()
    assert muon[0] - muon[-1] > 0.5 * (adamw[0] - adamw[-1])


def test_hidden_matrices_are_those_of_layers():
    apart = ("embed", "wte", "wpe", "lm_head", "shared", "relative", "experts", "mlp.gate.")
    for family in ("llama", "gpt2", "mixtral", "qwen3_moe", "t5"):
        model = tiny_model(family)
        hidden = hidden_matrices(model)
        named = dict(model.named_parameters())
        assert hidden and all(named[name].ndim == 2 for name in hidden), family
        assert not any(part in name for name in hidden for part in apart), hidden
        left = {name for name, weight in named.items() if weight.ndim == 2} - hidden
        assert all(any(part in name for part in apart) for name in left), left


@pytest.mark.full
def test_its_state_has_the_planned_bytes(bases, tmp_path):
    folder = trained_run(bases / "llama", tmp_path, **MUON)
    plan = read_plan_file(folder.plan.read_bytes())
    model = tiny_model("llama")
    optimizer = RunOptimizer(model, TrainingSection(optim="muon"), lr=0.01)
    for parameter in optimizer.trained_parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.apply(torch.ones(()), lr=0.01, max_grad_norm=0)
    kept = sum(tensor.nbytes for name, tensor in optimizer.tensors().items() if not name.endswith(".step"))
    assert state_bytes(plan.model_shape(), plan.training_setup, plan.training_setup.trained_parameters) == kept


def test_a_model_without_trained_hidden_matrices_is_refused(bases, tmp_path):
    model = tiny_model("llama")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    with pytest.raises(RunError, match="is for the weight matrices of layers, but none of them is trainable"):
        RunOptimizer(model, TrainingSection(optim="muon"), lr=0.01)
    with pytest.raises(ConfigError, match="is muon, which is meant for full weight matrices, but lora trains"):
        trained_run(bases / "llama", tmp_path, **MUON, **{"tuning.method": "lora"})


def test_the_same_gradients_give_the_weights_of_torch_to_the_bit():
    ours, theirs = tiny_model("llama"), tiny_model("llama")
    optimizer = RunOptimizer(ours, TrainingSection(optim="muon", weight_decay=0.1), lr=0.01)
    hidden = hidden_matrices(theirs)
    named = dict(theirs.named_parameters())
    rest = [weight for name, weight in named.items() if name not in hidden]
    adamw = [
        {"params": [p for p in rest if (p.ndim >= 2) is many], "weight_decay": 0.1 * many} for many in (True, False)
    ]
    both = (
        torch.optim.Muon([named[name] for name in hidden], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(adamw, lr=0.01, fused=True),
    )
    for step in range(4):
        torch.manual_seed(step)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.apply(torch.ones(()), lr=0.01, max_grad_norm=0)
        for one in both:
            one.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other), name
