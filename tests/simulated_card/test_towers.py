"""Models with towers for images on a simulated card: whole runs on text."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from tests.combinations import first_by_default
from tests.simulated_card.test_matrix import of_kind
from tests.tiny_models import TOWERS, save_tiny_model_with_towers
from tui_trainer.runs.events import StepDone

WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8}
ROWS = {"data.packing": "false", "logging.sample_steps": 1, "training.mixed_precision": "bf16"}


@pytest.mark.parametrize("family", first_by_default(TOWERS))
def test_a_language_model_in_4_bits_learns_beside_towers_of_16(family, models, run_on_card):
    base = models / f"wide-{family}"
    if not base.exists():
        save_tiny_model_with_towers(base, family, **WIDE)
    settings = {**ROWS, "model.model_name_or_path": base, "tuning.method": "qlora"}
    _, folder, failure = run_on_card("causal_lm", settings)
    assert not failure, failure
    assert all(step.loss > 0 for step in of_kind(folder, StepDone))
    adapter = load_file(folder.model / "adapter_model.safetensors")
    assert all(".language_model." in name for name in adapter)
    assert all(tensor.any() for tensor in adapter.values()), "the second matrices begin with zeros"
