"""The parts of a memory estimate: their formulas, and what real optimizers and simulated runs take."""

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
import torch

from tests.planning.families import config_of, counted, setup_of
from tests.tiny_models import tiny_model
from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import match_targets
from tui_trainer.planning.disk import SMALL_FILES_BYTES, checkpoint_bytes
from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.parts import BatchSizes, Static
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.tuning import find_method

WIDE = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
        "tie_word_embeddings": True}  # fmt: skip
HALF = {"precision": "bf16", "weights": "bfloat16"}
GIB = 2**30
DEVICES = ("cpu", "cuda")


def parts(setup=None, *, micro_batch=4, eval_batch=4, row_tokens=32, config=None, **more):
    """Bytes by part; layers go by the general formula unless the setup has what a dry run counted."""
    batch = BatchSizes(rows=micro_batch, eval_rows=eval_batch, row_tokens=row_tokens, **more)
    found = memory_parts(shape_of(config or config_of("llama")), setup or TrainingSetup(), batch)
    return {part.name: part.bytes for part in found}


def wide(setup, rows=8, **changes):
    return parts(setup, micro_batch=rows, eval_batch=1, row_tokens=2048, config=WIDE, **changes)


def lora(**changes):
    names = tuple({linear.name for linear in shape_of(WIDE).linears if not linear.is_head})
    return TrainingSetup(method="lora", lora_rank=16, lora_targets=names, **changes)


def test_twice_the_rows_take_twice_the_activations_and_the_same_weights():
    small, large = parts(micro_batch=4), parts(micro_batch=8)
    for name in ("activations", "backward pass", "head and loss"):
        assert large[name] == pytest.approx(2 * small[name], abs=2), name
    for name in ("weights", "gradients", "optimizer", "libraries"):
        assert large[name] == small[name], name


def test_full_training_takes_16_bytes_per_parameter_and_4_more_for_a_tied_embedding():
    found, shape = parts(), shape_of(config_of("llama"))
    embedding = 4 * shape.vocabulary * shape.hidden_size
    assert found["weights"] + found["gradients"] + found["optimizer"] == 16 * shape.parameters + embedding


def test_checkpointing_never_takes_more_memory(subtests):
    layer = LayerBytes(kept=10_000, made=16_000, evaluated=16_000, largest_kept=10_000, largest_made=16_000)
    for layers, weights in product((1, 2, 3, 6, 12), ({}, HALF)):
        with subtests.test(f"{layers} layers, {weights}"):
            config = {**config_of("llama"), "num_hidden_layers": layers}
            setups = (TrainingSetup(gradient_checkpointing=on, counted=layer, **weights) for on in (False, True))
            found = [parts(setup, config=config) for setup in setups]
            plain, less = (each["activations"] + each["temporaries"] for each in found)
            assert less <= plain and (layers < 6 or less < plain)


def test_gradient_accumulation_holds_two_sets_of_gradients():
    trained = shape_of(config_of("llama")).parameters
    assert parts(accumulation=4)["gradients"] - parts()["gradients"] == 4 * trained
    # With weights in 16 bits: their sum in fp32, and the next gradients.
    assert parts(TrainingSetup(**HALF), accumulation=2)["gradients"] == (4 + 2) * trained
    # The sum fits into what the activations of a large batch left.
    assert parts(TrainingSetup(**HALF), micro_batch=64)["gradients"] == 2 * trained


def test_lora_has_gradients_and_moments_for_its_adapters_only():
    setup, shape = setup_of("llama", lora=True), shape_of(config_of("llama"))
    trained = 5 * sum(x.count * (x.inputs + x.outputs) for x in shape.linears if not x.is_head)
    found = parts(setup)
    assert found["gradients"] + found["optimizer"] == 12 * trained
    assert found["weights"] == 4 * (shape.parameters + trained)


def test_16_bit_weights_take_half_and_trained_ones_also_a_copy_in_fp32():
    parameters = shape_of(config_of("llama")).parameters
    adapted, half = (parts(setup_of("llama", lora=True, **changes)) for changes in ({}, HALF))
    assert adapted["weights"] - half["weights"] == 2 * parameters
    found = parts(TrainingSetup(**HALF))
    assert (found["weights"], found["master weights"]) == (2 * parameters, 4 * parameters)


def test_modules_trained_beside_adapters_have_a_copy_in_fp32(subtests):
    section = TuningSection(method="lora", r=3, modules_to_save="lm_head")
    for dtype in (torch.float32, torch.bfloat16):
        with subtests.test(str(dtype)):
            model = tiny_model("llama").to(dtype)
            shape = shape_of(model.config.to_dict())
            adapted = find_method("lora").apply(model, section, seed=0, autocast=False)
            optimizer = RunOptimizer(adapted, TrainingSection(), lr=0.1)
            trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
            saved = sum(weight.numel() for name, weight in adapted.named_parameters() if "modules_to_save" in name)
            counts = {"trained_parameters": trained, "saved_parameters": saved}
            setup = TrainingSetup(method="lora", weights=str(dtype).removeprefix("torch."), **counts)
            kept = [*adapted.parameters(), *optimizer.masters.values()]
            assert Static(shape, setup).weights().bytes == sum(weight.nbytes for weight in kept)


TUNED = [{}, {"target_modules": "q_proj,down_proj"}, {"modules_to_save": "lm_head"}]


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.full)])
def test_optimizer_state_takes_as_much_memory_and_disk_as_planned(family, subtests):
    """Compare with the optimizer after a step, apart from the single numbers that it keeps for each weight."""
    for optim, tuning in product(("adamw_torch_fused", "adamw_torch", "sgd", "adafactor"), TUNED):
        with subtests.test(f"{optim} {tuning}"):
            model, training = tiny_model(family), TrainingSection(optim=optim)
            shape = shape_of(model.config.to_dict())
            setup = TrainingSetup(optim=optim, trained_parameters=shape.parameters)
            if tuning:
                section = TuningSection(method="lora", r=3, **tuning)
                model = find_method("lora").apply(model, section, seed=0, autocast=False)
                targets = match_targets(shape, section.target_modules, section.modules_to_save)
                trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
                setup = replace(setup, method="lora", lora_rank=3, lora_targets=targets, trained_parameters=trained)
            weights = [weight for weight in model.parameters() if weight.requires_grad]
            optimizer = OPTIMIZERS[optim].build([{"params": weights}], 0.1, training)
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            state = [value for each in optimizer.state.values() for value in each.values()]
            kept = sum(value.nbytes for value in state if isinstance(value, torch.Tensor) and value.ndim)
            assert Static(shape, setup).optimizer().bytes == kept
            saved, _ = checkpoint_bytes(shape, setup)
            assert saved - SMALL_FILES_BYTES == 4 * setup.trained_parameters + kept


def test_8_bit_optimizer_states_have_scales_for_their_blocks():
    parameters = shape_of(config_of("llama")).parameters
    for optim, each in (("adamw_8bit", 2.03125), ("paged_adamw_32bit", 8)):
        assert parts(TrainingSetup(optim=optim))["optimizer"] == int(each * parameters)


def test_checkpointing_keeps_a_small_part_of_the_activations(subtests):
    for device in DEVICES:
        with subtests.test(device):
            plain, saved = (
                wide(TrainingSetup(device=device, gradient_checkpointing=on), rows=2) for on in (False, True)
            )
            assert sum(saved.values()) < sum(plain.values())
            assert saved["activations"] < plain["activations"] / 10


def test_a_chunked_loss_takes_little_and_a_trained_head_has_its_gradient_beside_it(subtests):
    for device in DEVICES:
        with subtests.test(device):
            plain, chunked = (lora(device=device, loss_chunk_tokens=chunk, **HALF) for chunk in (0, 1024))
            frozen = wide(chunked)["head and loss"]
            assert frozen < wide(plain)["head and loss"] / 10
            trained = wide(replace(chunked, saves_head=True))["head and loss"]
            assert trained - frozen == (4 + 2) * 128256 * 2048


@pytest.mark.full
@pytest.mark.dry_run
def test_allocated_bytes_of_a_card_are_those_of_a_simulated_run(subtests):
    """Llama of 1.24 billion weights, 16384 tokens: torch's allocations of two steps, on fake tensors."""
    in_chunks = {"gradient_checkpointing": True, "loss_chunk_tokens": 2048}
    for name, setup, gib in (
        ("all weights under autocast", TrainingSetup(device="cuda", precision="bf16"), 71.5),
        ("LoRA", lora(device="cuda", **HALF), 50.5),
        ("LoRA with checkpoints, loss in chunks", lora(device="cuda", **in_chunks, **HALF), 5.6),
    ):
        with subtests.test(name):
            found = wide(counted(WIDE, setup, 2048))
            allocated = sum(found.values()) - found["pieces"] - found["context"]
            assert allocated / GIB == pytest.approx(gib, rel=0.04)


def test_a_gpu_needs_memory_for_its_context_fragmentation_and_the_sum_of_gradients():
    found = wide(lora(device="cuda", **HALF))
    assert found["context"] > 0.4 * GIB
    assert found["pieces"] > 0.02 * (sum(found.values()) - found["context"] - found["pieces"])
    once, more = (wide(TrainingSetup(device="cuda", precision="bf16"), accumulation=n) for n in (1, 2))
    assert more["gradients"] == 4 * shape_of(WIDE).parameters and "gradients" not in once


@pytest.mark.full
def test_a_fused_loss_holds_the_logits_of_a_chunk_once_in_16_bits():
    setup = lora(device="cuda", loss_chunk_tokens=2048, **HALF)
    plain, fused = (wide(replace(setup, fused_loss=on), rows=1)["head and loss"] for on in (False, True))
    assert plain - fused == 4 * 2048 * 128256
    few = [wide(replace(setup, fused_loss=on), rows=1, most_labels=500)["head and loss"] for on in (False, True)]
    assert few[0] == 12 * 500 * 128256 and few[1] == 2 * 500 * (128256 + 2 * 2048)


def test_padding_costs_no_logits():
    vocabulary = shape_of(config_of("llama")).vocabulary
    for device in DEVICES:
        full, padded = (parts(TrainingSetup(device=device), micro_batch=64, most_labels=n) for n in (0, 500))
        assert full["head and loss"] - padded["head and loss"] == 12 * (64 * 32 - 500) * vocabulary
        assert padded["activations"] == full["activations"], "layers compute padding as well"
    assert parts(eval_batch=4)["evaluation"] == 0, "an evaluation counts only if it needs more than a step"
    full, padded = (parts(eval_batch=64, most_eval_labels=labels)["evaluation"] for labels in (0, 500))
    assert full - padded == 8 * (64 * 32 - 500) * vocabulary


@pytest.mark.e2e
def test_libraries_for_scores_are_loaded_before_memory_is_measured():
    code = """if True:
        import sys
        import numpy as np
        from tui_trainer.config.sections import Config
        from tui_trainer.tasks.parts.scores import class_values
        from tui_trainer.training.recorder import memory_before
        memory_before(Config.model_validate({"task": {"type": "sequence_classification"}}))
        before = set(sys.modules)
        class_values(np.array([0, 1]), np.array([0, 1]))
        sys.exit(any(name.startswith(("sklearn", "scipy")) for name in set(sys.modules) - before))
    """
    assert subprocess.run([sys.executable, "-c", code], timeout=1500).returncode == 0
