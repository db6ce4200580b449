"""Models with towers for images on a simulated card: whole runs on text."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tests.combinations import first_by_default
from tests.simulated_card.cases import of_kind
from tests.tiny_models import save_tiny_model_with_towers
from tui_trainer.launching.prepare import read_plan
from tui_trainer.runs.events import StepDone

pytestmark = pytest.mark.full
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8}
ROWS = {"data.packing": "false", "training.mixed_precision": "bf16"}


# In `test_planned_memory.py` the others train on a card, their language model in 16 bits.
@pytest.mark.parametrize("family", first_by_default(["gemma3", "qwen3_5"]))
def test_a_language_model_in_4_bits_learns_beside_towers_of_16(family, models, run_on_card):
    base = models / f"wide-{family}"
    save_tiny_model_with_towers(base, family, **WIDE)
    settings = {**ROWS, "model.model_name_or_path": base, "tuning.method": "qlora", "logging.sample_steps": 2}
    _, folder, failure = run_on_card("causal_lm", settings)
    assert not failure, failure
    assert all(step.loss > 0 for step in of_kind(folder, StepDone))
    adapter = load_file(folder.model / "adapter_model.safetensors")
    assert all(".language_model." in name for name in adapter)
    assert all(tensor.any() for tensor in adapter.values()), "the second matrices begin with zeros"


@pytest.mark.parametrize("family", first_by_default(["gemma3", "qwen3_5"]))
def test_towers_on_the_host_free_their_bytes_on_the_card_and_do_not_change_the_result(family, models, run_on_card):
    base = models / family
    save_tiny_model_with_towers(base, family)
    peaks, weights, plans = {}, {}, {}
    for where in ("host", "card"):
        settings = {**ROWS, "model.model_name_or_path": base, "tuning.method": "full", "model.towers": where}
        _, folder, failure = run_on_card("causal_lm", settings, name=where)
        assert not failure, failure
        peaks[where] = max(step.peak_memory_bytes for step in of_kind(folder, StepDone))
        weights[where], plans[where] = (folder.model / "model.safetensors").read_bytes(), read_plan(folder)
    assert weights["host"] == weights["card"]
    on_host, on_card = ({part.name: part.bytes for part in plans[where].memory_parts} for where in ("host", "card"))
    towers = on_card["towers"]
    assert on_card["weights"] == on_host["weights"] and "towers" not in on_host
    assert towers > 0 and peaks["card"] - peaks["host"] == pytest.approx(towers, rel=0.02)
    assert towers in [part.bytes for part in plans["host"].host_memory_parts if part.name == "towers"]
