"""Dry runs: what a layer keeps and makes, against real layers and known figures."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.planning.families import ROW_TOKENS, config_of, kept_bytes, layer_of, setup_of
from tests.tiny_models import TOWERS
from tui_trainer.config.sections import TuningSection
from tui_trainer.models.counting import Answers
from tui_trainer.models.heads import auto_class
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory import dry_run
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.training.compiled import decoder_layers
from tui_trainer.tuning import find_method
from tui_trainer.worker import asking
from tui_trainer.worker.asking import WorkerFailed

pytestmark = [pytest.mark.full, pytest.mark.dry_run]


def measure(family, setup, row_tokens=24, **changes):
    config = config_of(family, **changes)
    return measure_layer(config, shape_of(config), setup, row_tokens)


@pytest.fixture
def counted_llama():
    """Ask what a llama consists of before the worker is replaced."""
    shape_of(config_of("llama"))


def test_a_failed_dry_run_gives_its_reason(counted_llama, monkeypatch):
    def ask(*_, **__):
        raise WorkerFailed("failed: no memory", "no memory")

    monkeypatch.setattr(asking.Worker, "ask", ask)
    found = measure("llama", setup_of("llama", lora_rank=77))
    assert found == (None, "the dry run failed: no memory")


def test_an_empty_or_partial_answer_is_reported_as_unknown(counted_llama, monkeypatch):
    for number, answer in enumerate(["", [], [{"kept": 3, "made": 3}], {"kept": None}]):
        monkeypatch.setattr(asking.Worker, "ask", lambda *_, answer=answer, **__: answer)
        monkeypatch.setattr(dry_run, "answers", Answers("dry_run", format_version=-1 - number))
        assert measure("llama", setup_of("llama"))[1] == "the dry run gave no answer"


_ROW, _ANSWER = 192, 160
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200,
    "intermediate_size": 96, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_HALVES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 200, "max_position_embeddings": 256, "pad_token_id": 0,
    "decoder_start_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip
# Attention of other kinds, experts, recurrence, and layers that differ from one another; the quick ones first.
ARCHITECTURES = {
    "lfm2": {**_SMALL, "layer_types": ["conv", "conv", "full_attention", "conv", "conv"]},
    "olmoe": {**_SMALL, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {**_SMALL, "head_dim": 16},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 4, "vocab_size": 200},
    "recurrent_gemma": {**_SMALL, "head_dim": 16, "lru_width": 64, "attention_window_size": 32},
    "modernbert": {**_SMALL, "cls_token_id": 1, "sep_token_id": 2},
    "m2m_100": _HALVES,
}
_HEADS = {"modernbert": "sequence_classification", "m2m_100": "seq2seq_lm"}


@pytest.mark.versions
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_dry_run_counts_what_any_architecture_keeps(family):
    """As much is kept as the whole model really keeps of one more row, with numbers."""
    head = _HEADS.get(family, "causal_lm")
    config = {"model_type": family, **ARCHITECTURES[family]}
    setup = TrainingSetup(head=head, target_tokens=_ANSWER if head == "seq2seq_lm" else 0)
    # Recurrent layers compute a token after the other.
    row = _ROW // 4 if family in ("mamba", "recurrent_gemma") else _ROW
    layer = layer_of(config, setup, row)
    kept_bytes = _kept_of_a_row(config, head, row) / row / layer.shape.layers
    assert layer.layer_bytes.kept == pytest.approx(kept_bytes, rel=0.15)
    assert layer.layer_bytes.made >= layer.layer_bytes.kept and layer.layer_bytes.evaluated > 0


@pytest.mark.versions
def test_a_dry_run_counts_what_dora_keeps():
    """DoRA scales the result of each adapted layer, and keeps that result for the gradient of the scale."""
    config = {**config_of("llama"), "vocab_size": 200}
    plain = setup_of("llama", lora=True)
    section = TuningSection(method="lora", r=5, use_dora=True, target_modules=",".join(plain.lora_targets))
    adapt = partial(find_method("lora").apply, tuning=section, seed=0, autocast=False)
    layer = layer_of(config, replace(plain, use_dora=True), _ROW)
    kept = _kept_of_a_row(config | {"max_position_embeddings": 256}, "causal_lm", _ROW, adapt) / _ROW
    assert layer.layer_bytes.kept == pytest.approx(kept / layer.shape.layers, rel=0.15)
    assert layer.layer_bytes.kept > 1.1 * layer_of(config, plain, _ROW).layer_bytes.kept
    assert [part.name for part in layer.dora_norms()] == ["DoRA norms"]


def _kept_of_a_row(config, head, row, adapt=lambda model: model):
    """Return the bytes that autograd keeps of one more row, in a model whose head sees one token."""
    fields = {name: value for name, value in config.items() if name != "model_type"}
    if head == "seq2seq_lm":
        fields |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # layers are skip at random
    model = auto_class(head).from_config(AutoConfig.for_model(config["model_type"], **fields)).train()
    if output := model.get_output_embeddings():
        output.register_forward_pre_hook(lambda module, given: (given[0][:, :1],))
    model = adapt(model)
    no_cache = {"use_cache": False} if head != "sequence_classification" else {}

    def run(rows):
        inputs = {"input_ids": torch.randint(3, 200, (rows, row))}
        if head == "seq2seq_lm":
            inputs["decoder_input_ids"] = torch.randint(3, 200, (rows, _ANSWER))
        model(**inputs, **no_cache)

    one, two = (kept_bytes(model, partial(run, rows)) for rows in (1, 2))
    return two - one


@pytest.mark.parametrize(("family", "method"), [("gemma3", "lora"), ("mistral3", "full")])
def test_a_language_model_beside_towers_keeps_what_it_keeps_alone(family, method):
    """A pass over text goes through no tower, and towers have no adapters."""
    whole = {"model_type": family, **TOWERS[family]}
    setup = TrainingSetup(method=method, lora_rank=4, lora_targets=("q_proj", "up_proj") if method == "lora" else ())
    found, alone = (measure_layer(each, shape_of(each), setup, 24) for each in (whole, whole["text_config"]))
    assert found == alone and found[0] is not None


HALF = {"precision": "bf16", "weights": "bfloat16"}
COMPILED = {"full 16 bits": HALF, "lora 16 bits": {"lora": True, **HALF}, "full autocast": {"precision": "bf16"},
            "lora autocast": {"lora": True, "precision": "bf16"}}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", "full 16 bits"), ("gpt2", "lora 16 bits"), ("phi3", "full autocast"), ("phi", "lora autocast")],
)
def test_a_dry_run_counts_what_a_compiled_layer_keeps(family, name):
    """Compare with torch's own partition of each layer into a forward and a backward pass, which any backend takes."""
    setup = setup_of(family, device="cuda", compiled=True, **COMPILED[name])
    without, with_one = (_kept_compiled(family, setup, layers) for layers in (0, 1))
    assert layer_of(config_of(family), setup).layer_bytes.kept == pytest.approx(
        (with_one - without) / ROW_TOKENS, rel=0.002
    )


def _kept_compiled(family, setup, layers):
    """Return the bytes that autograd keeps of one more row."""
    fields = {**config_of(family), ("n_layer" if family == "gpt2" else "num_hidden_layers"): layers}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, setup.weights))
    autocast = setup.has_adapter or setup.weights == "float32"
    if layers:
        tuning = TuningSection(
            method=setup.method, r=max(setup.lora_rank, 1), target_modules=",".join(setup.lora_targets)
        )
        model = find_method(setup.method).apply(model, tuning, seed=0, autocast=autocast)
        for layer in decoder_layers(model):
            layer._compiled_call_impl = torch.compile(layer._call_impl, backend="aot_eager_decomp_partition")
    else:
        model.requires_grad_(not setup.has_adapter)
    model.train()
    # Beside frozen weights the first layer would keep less than those behind it.
    model.get_input_embeddings().register_forward_hook(lambda module, given, states: states.requires_grad_())

    def run(rows):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            model(input_ids=torch.randint(0, 40, (rows, ROW_TOKENS)), use_cache=False).logits.sum().backward()
        model.zero_grad()

    one, two = (kept_bytes(model, partial(run, rows)) for rows in (1, 2))
    torch._dynamo.reset()
    return two - one


def test_attention_dropout_keeps_three_numbers_per_head_and_pair_of_tokens():
    config = config_of("llama", attention_dropout=0.1, num_key_value_heads=1)
    short, long = (layer_of(config, row_tokens=tokens).layer_bytes.kept for tokens in (ROW_TOKENS, 2 * ROW_TOKENS))
    assert long - short == pytest.approx(4 * 3 * 4 * ROW_TOKENS, rel=0.01)


def test_a_gpu_needs_no_mask_for_packed_documents():
    kept = [
        layer_of(config_of("llama"), setup_of("llama", packed=packed, device="cuda")).layer_bytes.kept
        for packed in (True, False)
    ]
    assert kept[0] == kept[1] < layer_of(config_of("llama"), setup_of("llama", packed=True)).layer_bytes.kept


def test_a_gpu_without_a_fused_kernel_keeps_all_scores_in_fp32():
    """Also in 16 bits: torch's own operations compute them in fp32."""
    half = {**HALF, "device": "cuda", "math_attention": True}
    kept = [
        layer_of(config_of("llama"), TrainingSetup(**setup), tokens).layer_bytes.kept
        for setup in (half, {**half, "math_attention": False})
        for tokens in (ROW_TOKENS, 2 * ROW_TOKENS)
    ]
    heads = 4
    assert kept[1] - kept[0] >= 4 * heads * ROW_TOKENS
    assert kept[3] == kept[2], "a fused kernel keeps the same of each token in any row"
