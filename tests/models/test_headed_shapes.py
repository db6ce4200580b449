"""Shapes of classifiers and encoder-decoder models, against the models that transformers builds."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.models.headed import CASES, headed, labels_of
from tests.models.test_shape import headers_of, linears_in, linears_told
from tui_trainer.config.sections import ScratchSection
from tui_trainer.models.files.soundness import misfits
from tui_trainer.models.heads import auto_class
from tui_trainer.models.problems import length_problems
from tui_trainer.models.shape import scratch_config, scratch_problems, scratch_shape, shape_of
from tui_trainer.models.targets import (
    adapted_linears,
    adapter_parameters,
    head_modules,
    match_targets,
    saved_module_parameters,
)

# An encoder, a decoder with another head, and an encoder-decoder; the other families are in the full part.
FEW = [("bert", "token_classification"), ("llama-tied", "sequence_classification"), ("t5-gated", "seq2seq_lm")]
MORE = [case for case in CASES if case not in FEW]
FAMILIES = pytest.mark.parametrize("cases", [FEW, pytest.param(MORE, marks=pytest.mark.full)], ids=["few", "more"])
TASKS = {
    "sequence_classification": "SEQ_CLS", "token_classification": "TOKEN_CLS", "seq2seq_lm": "SEQ_2_SEQ_LM",
    "question_answering": "QUESTION_ANS",
}  # fmt: skip


@FAMILIES
def test_a_shape_is_that_of_the_model_that_transformers_builds(cases, subtests):
    for variant, head in cases:
        with subtests.test(f"{variant} {head}"):
            tiny = headed(variant, head)
            shape = shape_of(tiny.config, head=head)
            assert shape.parameters == tiny.model.num_parameters()
            assert linears_told(shape.linears) == linears_in(tiny.model)
            logits = shape.linears[-1]
            assert logits.is_head and logits.outputs == (labels_of(head) or 96)
            assert shape.labels == labels_of(head)
            names = [name for name, _ in tiny.model.named_modules()]
            for entry in (*shape.linears, *shape.parts):
                assert sum(f".{name}".endswith(f".{entry.path}") for name in names) >= entry.count, entry


@FAMILIES
def test_stored_weights_fit_the_config_and_a_missing_one_is_reported(cases, subtests):
    for variant, head in cases:
        with subtests.test(f"{variant} {head}"):
            tiny = headed(variant, head)
            shape, headers = shape_of(tiny.config, head=head), headers_of(tiny)
            assert misfits(shape, headers) == []
            table = next(name for name, facts in headers.items() if facts.shape[:1] == (96,) and "head" not in name)
            assert misfits(shape, {name: facts for name, facts in headers.items() if name != table})
            assert misfits(replace(shape, layers=7, stored_blocks=7), headers)


@FAMILIES
def test_adapters_and_the_trained_head_are_counted_as_in_peft(cases, subtests):
    for variant, head in cases:
        with subtests.test(f"{variant} {head}"):
            from peft import LoraConfig, get_peft_model

            tiny = headed(variant, head)
            shape = shape_of(tiny.config, head=head)
            whole = head_modules(shape)
            names = match_targets(shape, "all-linear", ",".join(whole))
            config = LoraConfig(
                task_type=TASKS[head], r=4, target_modules=list(names), modules_to_save=list(whole) or None
            )
            model = get_peft_model(copy.deepcopy(tiny.model), config)
            trained = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
            saved = sum(count for name, count in trained.items() if "modules_to_save" in name)
            assert adapter_parameters(adapted_linears(shape, names), 4) == sum(trained.values()) - saved > 0
            assert saved_module_parameters(shape, ",".join(whole)) == saved
            assert bool(whole) == (head != "seq2seq_lm")
            assert not [
                name for name in trained if name.startswith(tuple(f"base_model.model.{part}.lora" for part in whole))
            ]


POSITIONS = [("bert", 40), ("roberta", 38), ("mpnet", 38), ("bart", 40)]


def test_the_longest_row_is_the_one_that_the_model_takes(subtests):
    for variant, positions in POSITIONS:
        with subtests.test(variant):
            import torch

            head = "seq2seq_lm" if variant == "bart" else "sequence_classification"
            tiny = headed(variant, head)
            shape = shape_of(tiny.config, head=head)
            assert shape.max_position_embeddings == positions
            assert length_problems(shape, positions) == []
            problem = length_problems(shape, positions + 1)[0]
            assert problem.key == "data.max_length" and str(positions) in problem.hint
            with torch.no_grad():
                tiny.model(input_ids=torch.full((1, positions), 5))
                with pytest.raises((IndexError, RuntimeError)):
                    tiny.model(input_ids=torch.full((1, positions + 1), 5))


def test_rotary_and_relative_positions_have_no_limit():
    for variant in ("modernbert", "deberta-v2"):
        shape = shape_of(headed(variant, "token_classification").config, head="token_classification")
        assert length_problems(shape, 4000) == []


@pytest.mark.full
def test_shared_layers_are_counted_once_and_computed_each_time():
    shape = shape_of(headed("albert", "token_classification").config, head="token_classification")
    product = next(linear for linear in shape.linears if linear.name == "query")
    assert (product.count, product.uses, shape.layers) == (1, 2, 2)
    assert shape.matrix_parameters_read("source") > sum(linear.matrix_parameters for linear in shape.linears)


@pytest.mark.full
def test_matrices_of_an_encoder_decoder_read_the_source_or_the_target():
    """Against torch's count of a forward pass with rows of other lengths on both sides."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    for variant in ("t5-gated", "bart"):
        tiny = headed(variant, "seq2seq_lm")
        shape = shape_of(tiny.config, head="seq2seq_lm")
        counted = {}
        for source, target in ((10, 6), (11, 6), (10, 7)):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                rows = (torch.zeros(1, length, dtype=torch.long) for length in (source, target))
                tiny.model(input_ids=next(rows), decoder_input_ids=next(rows))
            products = counter.get_flop_counts()["Global"]
            counted[source, target] = sum(n for name, n in products.items() if str(name) in ("aten.mm", "aten.addmm"))
        assert counted[11, 6] - counted[10, 6] == 2 * shape.matrix_parameters_read("source")
        assert counted[10, 7] - counted[10, 6] == 2 * shape.matrix_parameters_read("target")


def test_a_t5_head_in_the_files_is_not_tied():
    """transformers loads it whatever config.json says."""
    tiny = headed("t5", "seq2seq_lm")
    headers = headers_of(tiny)
    tied = shape_of(tiny.config, headers, head="seq2seq_lm")
    assert tied.tied_embeddings and tied.parameters == tiny.model.num_parameters()
    more = headers | {"lm_head.weight": replace(next(iter(headers.values())), shape=(96, 32))}
    own = shape_of(tiny.config, more, head="seq2seq_lm")
    assert not own.tied_embeddings and own.parameters == tied.parameters + 96 * 32
    assert shape_of(tiny.config | {"tie_word_embeddings": False}, head="seq2seq_lm").parameters == own.parameters


@pytest.mark.full
def test_a_shape_from_scratch_is_that_of_the_model(subtests):
    for head in TASKS:
        with subtests.test(head):
            from transformers import AutoConfig

            scratch = ScratchSection(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, attention_dropout=0.2)
            content = scratch_config(scratch, 77, head, max_length=24, labels=5)
            model = auto_class(head).from_config(AutoConfig.for_model(**content))
            shape = scratch_shape(scratch, 77, head, max_length=24, labels=5)
            assert shape.parameters == model.num_parameters()
            assert shape.attention_dropout == 0.2
            if head == "seq2seq_lm":
                assert (shape.layers, shape.decoder_layers, shape.tied_embeddings) == (2, 2, True)
            else:
                assert (shape.max_position_embeddings, shape.labels, shape.mlp_size) == (24, 5, 128)


@pytest.mark.full
def test_a_setting_of_decoders_is_refused_for_other_models():
    scratch = ScratchSection(num_attention_heads=4, num_key_value_heads=2)
    assert scratch_problems(scratch, "causal_lm") == scratch_problems(ScratchSection(), "seq2seq_lm") == []
    for head in TASKS:
        assert scratch_problems(scratch, head)[0].key == "model.scratch.num_key_value_heads"
