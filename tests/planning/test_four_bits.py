"""Plans with weights in 4 bits: their memory and time, and where they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_profiles_on_machines import FACTS, NO_CARD, loaded_on, machine
from tui_trainer.advice.remedies import make_plan
from tui_trainer.config.sections import Config, QuantizationSection, TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.catalogue import find_catalogue_entry
from tui_trainer.models.four_bits import FourBits, quantised_linears
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.disk import final_model_bytes
from tui_trainer.planning.memory.parts import Static
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import format_bytes

pytestmark = pytest.mark.dry_run

RECIPE = "llama-8b-qlora"
RTX_4070 = machine("NVIDIA GeForce RTX 4070", (8, 9), 12282)
RTX_4090 = machine("NVIDIA GeForce RTX 4090", (8, 9), 24564)
H100 = machine("NVIDIA H100 80GB HBM3", (9, 0), 81559)
# Llama 3.1 8B: width 4096, MLP 14336, keys 1024 wide, 32 layers; the rest is embedding, head and norms.
MATRICES = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
PARAMETERS = 8_030_261_248
ADAPTERS = 41_943_040


def planned(hardware=RTX_4090, recipe=RECIPE, **settings):
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    return make_plan(loaded_on(hardware, recipe, assignments), hardware, FACTS)


def part(plan, name):
    return next((part.bytes for part in plan.memory_parts if part.name == name), 0)


def test_matrices_take_4_bits_with_their_scales_and_the_rest_16():
    """Source: QLoRA, arXiv:2305.14314, section 3 (blocks of 64, and of 256 for the scales)."""
    for double, bits in (("true", 4 + 8 / 64 + 32 / 64 / 256), ("false", 4.5)):
        plan = planned(quantization__bnb_4bit_use_double_quant=double)
        wanted = MATRICES * bits / 8 + 2 * (PARAMETERS - MATRICES) + 4 * ADAPTERS
        assert part(plan, "weights") == pytest.approx(wanted, rel=1e-6)
        assert plan.trained_parameters.value == ADAPTERS
        assert (plan.weights_dtype.value, plan.learning_rate.value) == ("bfloat16", 2e-4)


def test_memory_holds_one_unpacked_matrix_in_the_compute_dtype():
    shape = shape_of(find_catalogue_entry("meta-llama/Llama-3.1-8B").config)
    setup = TrainingSetup(device="cuda", precision="bf16", weights="bfloat16", method="qlora", four_bits=FourBits())
    assert Static(shape, setup).unpacking_bytes(10) == 2 * 4096 * 14336 + 2 * 10 * 14336
    wide = replace(setup, four_bits=FourBits(compute_dtype="float32"))
    assert Static(shape, wide).unpacking_bytes(0) == 4 * 4096 * 14336
    assert Static(shape, replace(setup, four_bits=None)).unpacking_bytes(10) == 0
    plan = planned()
    rows = plan.per_device_train_batch_size.value
    assert part(plan, "unpacked") == 2 * 14336 * (4096 + rows * plan.longest_row)
    assert part(planned(tuning__method="lora"), "unpacked") == 0


@pytest.mark.full
def test_the_head_and_fully_trained_modules_are_not_quantized():
    shape = shape_of(find_catalogue_entry("meta-llama/Llama-3.1-8B").config)
    every = Config(tuning=TuningSection(method="qlora"))
    names = {linear.name for linear in quantised_linears(shape, FourBits.of(every, shape))}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    some = Config(tuning=TuningSection(method="qlora", modules_to_save="up_proj, embed_tokens"))
    kept = {linear.name for linear in quantised_linears(shape, FourBits.of(some, shape))}
    assert names - kept == {"up_proj"}
    assert quantised_linears(shape, FourBits.of(Config(), shape)) == ()
    section = QuantizationSection(bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype="float16")
    chosen = FourBits.of(every.model_copy(update={"quantization": section}), shape)
    assert chosen and (chosen.quant_type, chosen.compute_dtype) == ("fp4", "float16")


@pytest.mark.full
def test_a_qlora_run_saves_only_its_adapter():
    setup = TrainingSetup(method="qlora", four_bits=FourBits(), weights="bfloat16", trained_parameters=ADAPTERS)
    assert final_model_bytes(PARAMETERS, setup) == final_model_bytes(PARAMETERS, replace(setup, method="lora"))
    assert final_model_bytes(PARAMETERS, setup) < 5 * ADAPTERS


@pytest.mark.full
def test_unpacking_makes_an_estimated_step_longer():
    same = {"training__per_device_train_batch_size": 1}
    for card, times in ((RTX_4090, 1.28), (H100, 1.085)):
        packed, whole = (planned(card, tuning__method=method, **same).step_seconds for method in ("qlora", "lora"))
        assert packed.value == pytest.approx(times * whole.value)
        assert "estimate" in packed.reason and "unpacking" not in whole.reason and not packed.exact


def test_qlora_on_a_cpu_is_refused_and_offered_lora_in_16_bits_with_its_memory():
    with pytest.raises(ConfigError) as refused:
        planned(NO_CARD)
    problem = refused.value.problems[0]
    assert problem.key == "tuning.method" and "needs a GPU" in problem.message
    assert 'tuning.method = "lora" and model.dtype = "bfloat16"' in problem.hint
    instead = {"tuning__method": "lora", "model__dtype": "bfloat16", "training__per_device_train_batch_size": 1}
    whole = planned(NO_CARD, evaluation__per_device_eval_batch_size=1, **instead)
    assert f"about {format_bytes(whole.memory_bytes.value)} of memory" in problem.hint


def test_qlora_is_refused_without_bitsandbytes_and_offered_only_where_it_runs():
    without = replace(RTX_4070, libraries={**RTX_4070.libraries, "bitsandbytes": None})
    with pytest.raises(ConfigError, match="bitsandbytes, which is not installed") as refused:
        planned(without)
    hint = refused.value.problems[0].hint
    assert "uv pip install bitsandbytes" in hint and '"lora"' in hint
    with pytest.raises(ConfigError, match="memory") as refused:
        planned(RTX_4070, tuning__method="lora")
    assert 'tuning.method = "qlora"' in refused.value.problems[0].hint
    assert planned(RTX_4070).memory_bytes.value < RTX_4070.gpus[0].memory_bytes
    small = replace(NO_CARD, memory_bytes=8 << 30, memory_available_bytes=7 << 30)
    with pytest.raises(ConfigError, match="memory") as refused:
        planned(small, tuning__method="lora")
    assert "qlora" not in refused.value.problems[0].hint
