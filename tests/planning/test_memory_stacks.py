"""What layers of encoders keep and make by formula, held against real layers of every family that has a form."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.combinations import each_value_once
from tests.models_room.headed import ENCODERS, SEQ2SEQ, headed
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import linear_names
from tui_trainer.planning.memory import dry_run_child
from tui_trainer.planning.memory.encoder_decoder import EncoderDecoderLayers, layer_of
from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.layers import has_formula
from tui_trainer.planning.training_setup import TrainingSetup

ROW_TOKENS, ANSWER_TOKENS = 24, 10
HALF = {"precision": "bf16", "weights": "bfloat16"}
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# Name of a tiny model, and fields of its config that decide what its layers keep.
ENCODING = [("bert", {}), ("bert", PLAIN), ("bert", {"hidden_act": "gelu_new"}), ("roberta", {}), ("electra", {}),
            ("distilbert", {}), ("distilbert", {"attention_dropout": 0.0})]  # fmt: skip
ANSWERING = [
    ("t5", {}), ("t5-gated", {}), ("t5-gated", {"dropout_rate": 0.0}), ("mt5", {}), ("bart", {}), ("mbart", {}),
    ("pegasus", {}), ("bart", {"attention_dropout": 0.1, "activation_dropout": 0.1}),
]  # fmt: skip
MODELS = [(name, "sequence_classification", more) for name, more in ENCODING]
MODELS += [(name, "seq2seq_lm", more) for name, more in ANSWERING]


@pytest.fixture(autouse=True)
def unpatched(monkeypatch):
    """The child changes torch and transformers, as it ends with its answer; a test goes on."""
    import torch
    from transformers import masking_utils

    monkeypatch.setattr(torch.nn.Module, "_apply", torch.nn.Module._apply)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices)
    # One row is no measure: torch copies what attention multiplies only where there are several.
    monkeypatch.setattr(dry_run_child, "_ROWS", (2, 3))


def config_of(name, head, more=None):
    return {**headed(name, head).config, **(more or {})}


def setup_of(shape, *, lora=False, **changes):
    adapters = {"method": "lora", "lora_rank": 5, "lora_targets": linear_names(shape)} if lora else {}
    answer = ANSWER_TOKENS if shape.head == "seq2seq_lm" else 0
    return TrainingSetup(head=shape.head, target_tokens=answer, **adapters, **changes)


def both(name, head, more=None, **changes):
    """(what a real layer kept and made, the formula's layer)."""
    config = config_of(name, head, more)
    shape = shape_of(config, head=head)
    setup = setup_of(shape, **changes)
    return dry_run_child.count(config, asdict(setup), ROW_TOKENS), layer_of(shape, setup, ROW_TOKENS)


# One of each kind of layer; the others of a family, and fields that change little, are in the sweep.
DEFAULT = ("bert", {}, False), ("distilbert", {}, True), ("t5-gated", {}, False), ("bart", {}, True)


@pytest.mark.parametrize(
    ("model", "lora"),
    [
        pytest.param(model, lora, marks=() if (model[0], model[2], lora) in DEFAULT else pytest.mark.e2e)
        for model in MODELS
        for lora in (False, True)
    ],
)
def test_a_real_layer_keeps_what_the_formula_says(model, lora):
    name, head, more = model
    counted, layer = both(name, head, more, lora=lora)
    # A decoder's own mask, one number for each pair of its tokens, is made in the dry run only.
    assert layer.kept == pytest.approx(counted["kept"], rel=0.01)
    assert layer.made == pytest.approx(counted["made"], rel=0.05)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("model", "changes"),
    each_value_once(
        [("bert", "token_classification"), ("t5-gated", "seq2seq_lm"), ("bart", "seq2seq_lm")],
        [{"lora": True, "lora_dropout": True}, {"eager_attention": True}, {"precision": "bf16"}, HALF,
         {"lora": True, **HALF}],
    ),
)  # fmt: skip
def test_each_setup_keeps_what_the_formula_says(model, changes):
    counted, layer = both(*model, **changes)
    assert layer.kept == pytest.approx(counted["kept"], rel=0.06)


def test_dropout_is_gone_in_an_evaluation():
    shape = shape_of(config_of("bert", "sequence_classification"), head="sequence_classification")
    plain = shape_of(config_of("bert", "sequence_classification", PLAIN), head="sequence_classification")
    layers = [layer_of(one, setup_of(one), ROW_TOKENS) for one in (shape, plain)]
    assert layers[0].made_without_dropout == layers[1].made_without_dropout == layers[1].made < layers[0].made


def test_rates_that_config_json_leaves_out_are_those_of_transformers():
    config = config_of("bert", "sequence_classification")
    bare = {key: value for key, value in config.items() if "dropout" not in key}
    shape = shape_of(bare, head="sequence_classification")
    assert shape.form == shape_of(config, head="sequence_classification").form
    assert shape.attention_dropout == 0.1


def test_families_and_activations_that_nobody_counted_keep_the_dry_run():
    head = "sequence_classification"
    has = {name: has_formula(shape_of(config_of(name, head), head=head)) for name in ENCODERS}
    assert {name for name, known in has.items() if not known} == {
        "albert", "albert-groups", "deberta-v2", "deberta-v2-own-positions", "mpnet", "modernbert", "modernbert-biases",
    }  # fmt: skip
    assert all(has_formula(shape_of(config_of(name, "seq2seq_lm"), head="seq2seq_lm")) for name in SEQ2SEQ)
    strange = {**config_of("bert", head), "hidden_act": "quick_gelu"}
    assert not has_formula(shape_of(strange, head=head))


def test_longer_answers_keep_more_and_are_counted_in_checkpoints():
    shape = shape_of(config_of("t5", "seq2seq_lm"), head="seq2seq_lm")
    short, long = (
        EncoderDecoderLayers(shape, TrainingSetup(head="seq2seq_lm", target_tokens=n), ROW_TOKENS) for n in (4, 40)
    )
    assert long.kept > 1.5 * short.kept and long.input > 1.5 * short.input


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("name", "head"), [("bert", "sequence_classification"), ("t5", "seq2seq_lm")])
def test_checkpointing_keeps_one_layer_of_many(device, name, head):
    many = {"num_hidden_layers": 12, "num_layers": 12, "num_decoder_layers": 12}
    shape = shape_of({**config_of(name, head), **many}, head=head)
    plain, saved = (
        sum(part.bytes for part in memory_parts(shape, setup_of(shape, device=device, gradient_checkpointing=on),
                                                micro_batch=64, eval_batch=1, row_tokens=64)) for on in (False, True)
    )  # fmt: skip
    assert saved < plain


def test_the_backward_pass_holds_scores_where_attention_keeps_them():
    """Dropout keeps them, and so does T5's table of distances while it trains."""
    bert = shape_of(config_of("bert", "sequence_classification", PLAIN), head="sequence_classification")
    t5 = shape_of(config_of("t5", "seq2seq_lm", {"dropout_rate": 0.0}), head="seq2seq_lm")
    assert not layer_of(bert, setup_of(bert), ROW_TOKENS).keeps_scores
    assert layer_of(t5, setup_of(t5), ROW_TOKENS).keeps_scores
    assert not layer_of(t5, setup_of(t5, lora=True), ROW_TOKENS).keeps_scores
