"""Runs on a simulated card that start from an adapter, and those whose adapters begin as a part of the weights."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tui_trainer.runs.overview import overview

STILL = {"training.learning_rate": 1e-12, "training.max_steps": 1}


def weights_in(folder):
    return load_file(folder.model / "adapter_model.safetensors")


@pytest.mark.parametrize("method", ["qlora", "lora"])
def test_an_adapter_goes_on_where_it_ended(method, run_on_card):
    """Beside weights in 4 bits and beside those in 16."""
    settings = {"tuning.method": method, "tuning.r": 4}
    _, first, failure = run_on_card("causal_lm", settings, name="first")
    assert not failure, failure
    from_it = {**settings, "model.model_name_or_path": first.model}
    _, still, failure = run_on_card("causal_lm", {**from_it, **STILL}, name="still")
    assert not failure, failure
    assert overview(still).eval_loss == pytest.approx(overview(first).eval_loss, abs=1e-5)
    _, further, failure = run_on_card("causal_lm", {**from_it, "training.learning_rate": 0.01}, name="further")
    assert not failure, failure
    before, after = weights_in(first), weights_in(further)
    assert before.keys() == after.keys() and not any(tensor.equal(after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_adapters_begin_as_a_part_of_weights_in_16_bits(init, run_on_card):
    settings = {"tuning.method": "lora", "tuning.r": 4, "training.weight_decay": 0}
    _, usual, failure = run_on_card("causal_lm", {**settings, **STILL}, name="usual")
    assert not failure, failure
    init = {"tuning.init_lora_weights": init}
    _, still, failure = run_on_card("causal_lm", {**settings, **init, **STILL}, name="still")
    assert not failure, failure
    # What is left of the weights is rounded to 16 bits, as these were.
    assert overview(still).eval_loss == pytest.approx(overview(usual).eval_loss, rel=0.01)
    _, first, failure = run_on_card("causal_lm", {**settings, **init}, name="first")
    assert not failure, failure
    went_on = {**settings, "tuning.r": 8, "tuning.lora_alpha": 64, "model.model_name_or_path": first.model}
    _, second, failure = run_on_card("causal_lm", {**went_on, **STILL}, name="second")
    assert not failure, failure
    assert overview(second).eval_loss == pytest.approx(overview(first).eval_loss, rel=0.01)
