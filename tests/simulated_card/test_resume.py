"""A run on a simulated card that is taken up again ends with the bytes of the run that was never stopped: dropout is
drawn from the card's own generator, states of optimizers lie on the card or in paged memory."""

from __future__ import annotations

import shutil

import pytest
from safetensors.torch import load_file

from tests.simulated_card.liger_stand_in import calls as liger
from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.methods.optimizers import OptimizerSpec
from tui_trainer.training import checkpoint, fused_lora

DROPOUT = {
    "data.packing": "false",
    "tuning.lora_dropout": 0.3,
    "training.max_steps": 3,
    "checkpoint.save_total_limit": 3,
}
random_tensors = checkpoint.random_tensors


def weights_of(folder, step=3):
    return {
        (path.name, name): tensor
        for path in sorted((folder.checkpoints / f"step-{step}").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def differing(ends, again) -> list[tuple[str, str]]:
    assert ends.keys() == again.keys()
    return [key for key, tensor in ends.items() if not tensor.equal(again[key])]


@pytest.fixture
def taken_up_again(run_on_card):
    """`taken_up_again(method, optim, precision, kernels)`: which tensors of the last checkpoint a resume changes."""

    def run(method, optim, precision="bf16", kernels="none", **more):
        settings = {**DROPOUT, "tuning.method": method, "training.optim": optim, "training.mixed_precision": precision}
        settings |= {"model.kernels": kernels, **more}
        _, folder, failure = run_on_card("causal_lm", settings)
        assert not failure, failure
        whole = weights_of(folder)
        for step in (2, 3):
            shutil.rmtree(folder.checkpoints / f"step-{step}")
        assert (folder.checkpoints / "step-1").is_dir()
        shutil.rmtree(folder.model)
        _, _, failure = run_on_card("causal_lm", folder=folder)
        assert not failure, failure
        return differing(whole, weights_of(folder))

    return run


@pytest.mark.parametrize(
    ("method", "optim", "precision"),
    [
        ("lora", "adamw_torch_fused", "fp16"),
        ("qlora", "paged_adamw_8bit", "bf16"),
        ("full", "adamw_torch", "fp16"),
        pytest.param("lora", "adafactor", "no", marks=pytest.mark.e2e),
        pytest.param("full", "adamw_torch_4bit", "bf16", marks=pytest.mark.e2e),
    ],
)
def test_a_run_that_is_taken_up_again_ends_with_the_same_bytes(method, optim, precision, taken_up_again):
    assert taken_up_again(method, optim, precision) == []


def test_so_does_one_whose_loss_is_fused(taken_up_again):
    assert taken_up_again("full", "adamw_torch_fused", kernels="liger") == []
    assert liger.losses


@pytest.mark.parametrize(
    ("method", "switched", "owner", "name"),
    [
        ("lora", {"tuning.lora_dropout": 0}, fused_lora, "_unpacked"),
        ("full", {"training.loss_chunk_tokens": 8}, HeadLoss, "sum"),
    ],
    ids=["fused adapters", "chunks"],
)
def test_so_does_one_with_each_switch(method, switched, owner, name, taken_up_again, monkeypatch):
    computes, calls = getattr(owner, name), []

    def counted(*given, **more):
        calls.append(name)
        return computes(*given, **more)

    monkeypatch.setattr(owner, name, counted)
    assert taken_up_again(method, "adamw_torch_fused", **switched) == []
    assert calls


def test_without_the_random_state_of_the_card_it_does_not(taken_up_again, monkeypatch):
    monkeypatch.setattr(checkpoint, "random_tensors", lambda: {"cpu": random_tensors()["cpu"]})
    assert taken_up_again("lora", "adamw_torch_fused")


def test_a_state_that_is_put_back_on_the_host_is_found(taken_up_again, monkeypatch):
    monkeypatch.setattr(OptimizerSpec, "placed", lambda self, key, value, parameter: value)
    with pytest.raises(AssertionError, match=r"two devices|same device|one group are on"):
        taken_up_again("lora", "adamw_torch_fused")
