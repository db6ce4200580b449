"""What a layer keeps and makes as it is set up: by dry runs, held against real layers and against what is known."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.planning.families import ROW_TOKENS, config_of, counted, layer_of, setup_of
from tui_trainer.config.sections import TuningSection
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory.parts import ModelMemory
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup
from tui_trainer.training.compiled import decoder_layers
from tui_trainer.tuning import find_method

pytestmark = pytest.mark.dry_run

HALF = {"precision": "bf16", "weights": "bfloat16"}
COMPILED = {"full 16 bits": HALF, "lora 16 bits": {"lora": True, **HALF}, "full autocast": {"precision": "bf16"},
            "lora autocast": {"lora": True, "precision": "bf16"}}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "full 16 bits"), ("gpt2", "lora 16 bits"), ("phi3", "full autocast"), ("phi", "lora autocast")],
)
def test_a_compiled_layer_keeps_what_a_dry_run_counts(family, name):
    """By torch's own partition of each layer into a forward and a backward pass, which any backend takes."""
    setup = setup_of(family, device="cuda", compiled=True, **COMPILED[name])
    few, many = (_kept_compiled(family, setup, layers) for layers in (1, 2))
    assert layer_of(config_of(family), setup).counted.kept == pytest.approx((many - few) / ROW_TOKENS, rel=0.002)


def _kept_compiled(family, setup, layers):
    """Bytes that autograd keeps of one more row."""
    fields = {**config_of(family), ("n_layer" if family == "gpt2" else "num_hidden_layers"): layers}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, setup.weights))
    autocast = setup.has_adapter or setup.weights == "float32"
    tuning = TuningSection(method=setup.method, r=max(setup.lora_rank, 1), target_modules=",".join(setup.lora_targets))
    model = find_method(setup.method).apply(model, tuning, seed=0, autocast=autocast).train()
    for layer in decoder_layers(model):
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend="aot_eager_decomp_partition")
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    found = []
    for rows in (2, 1, 2):  # the first of them compiles, with tensors that are kept on the way
        kept = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        ):
            model(input_ids=torch.randint(0, 40, (rows, ROW_TOKENS)), use_cache=False).logits.sum().backward()
        model.zero_grad()
        found.append(sum(storage.nbytes() for key, storage in kept.items() if key not in weights))
    torch._dynamo.reset()
    return found[2] - found[1]


def test_an_adapter_on_queries_and_values_keeps_only_their_input():
    both, one = (
        layer_of(config_of("llama"), setup_of("llama", lora=True, targets=targets)).counted.kept
        for targets in (("q_proj", "v_proj"), ("q_proj",))
    )
    # The input is the same one, and the narrow result one more.
    assert both - one == 4 * 5


def test_dropout_of_attention_keeps_three_numbers_a_head_for_each_pair_of_tokens():
    config = config_of("llama", attention_dropout=0.1, num_key_value_heads=1)
    short, long = (layer_of(config, row_tokens=tokens).counted.kept for tokens in (ROW_TOKENS, 2 * ROW_TOKENS))
    assert long - short == pytest.approx(4 * 3 * 4 * ROW_TOKENS, rel=0.01)


def test_a_card_attends_to_packed_documents_without_a_mask():
    kept = [
        layer_of(config_of("llama"), setup_of("llama", packed=packed, device="cuda")).counted.kept
        for packed in (True, False)
    ]
    assert kept[0] == kept[1] < layer_of(config_of("llama"), setup_of("llama", packed=True)).counted.kept


def test_what_no_dry_run_counted_goes_by_a_general_formula():
    shape, setup = shape_of(config_of("llama")), TrainingSetup(**HALF)
    general, found = (
        ModelMemory(shape, setup, ROW_TOKENS),
        ModelMemory(shape, counted(config_of("llama"), setup), ROW_TOKENS),
    )
    assert general.counted.kept == 34 * 96
    assert 0.5 < general.counted.kept / found.counted.kept < 2
    assert ModelMemory(shape, replace(setup, counted=LayerBytes(kept=7, made=9)), 8).counted.kept == 7


def test_a_card_without_a_fused_kernel_keeps_all_scores_in_fp32():
    """Whether in 16 bits or not: torch's own operations compute them so."""
    half = {**HALF, "device": "cuda", "math_attention": True}
    kept = [
        layer_of(config_of("llama"), TrainingSetup(**setup), tokens).counted.kept
        for setup in (half, {**half, "math_attention": False})
        for tokens in (ROW_TOKENS, 2 * ROW_TOKENS)
    ]
    heads = 4
    assert kept[1] - kept[0] >= 4 * heads * ROW_TOKENS
    assert kept[3] == kept[2], "a fused kernel keeps the same of each token in any row"


def test_keys_and_values_that_are_repeated_are_kept_for_each_head_of_queries():
    repeated, shared = (
        layer_of(config_of("llama"), TrainingSetup(device="cuda", repeats_keys=repeats)).counted.kept
        for repeats in (True, False)
    )
    # Two heads of keys and values of 24 numbers become four, in fp32.
    assert repeated - shared == 2 * 2 * 24 * 4
