"""Memory and time of classifiers and encoder-decoder models: the plan against real models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.headed import LABELS, headed
from tests.planning.families import kept_bytes, layer_of
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.duration import training_flops
from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.parts import BatchSizes
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup

pytestmark = pytest.mark.dry_run

ROWS, ROW_TOKENS, ANSWER_TOKENS = 2, 24, 10
HEAD = "sequence_classification"


@pytest.mark.parametrize(
    ("variant", "head"),
    [("llama-tied", HEAD), *(pytest.param(*case, marks=pytest.mark.full) for case in
                             (("bert", HEAD), ("t5-gated", "seq2seq_lm")))],
)  # fmt: skip
def test_layers_keep_as_many_bytes_as_the_dry_run_counted(variant, head):
    """Compare with the difference of real models with two layers more."""
    import torch
    from transformers import AutoConfig

    from tui_trainer.models.heads import auto_class

    content = headed(variant, head).config
    shape = shape_of(content, head=head)
    rows = torch.ones(ROWS, ROW_TOKENS, dtype=torch.int64)
    mask = rows.clone()
    mask[0, -3:] = 0
    inputs = {"input_ids": rows, "attention_mask": mask}
    if head == "seq2seq_lm":
        inputs["decoder_input_ids"] = torch.ones(ROWS, ANSWER_TOKENS, dtype=torch.int64)
    found = []
    for more in (0, 2):
        fields = {key: value for key, value in content.items() if key not in ("model_type", "layer_types")}
        config = AutoConfig.for_model(content["model_type"], **fields)
        config.num_hidden_layers = shape.layers + more
        if decoder := next((n for n in ("num_decoder_layers", "decoder_layers") if getattr(config, n, None)), ""):
            setattr(config, decoder, shape.decoder_layers * (shape.layers + more) // shape.layers)
        model = auto_class(head).from_config(config).train()
        found.append(kept_bytes(model, lambda model=model: model(**inputs)))
    each = (found[1] - found[0]) / 2 / ROWS / ROW_TOKENS
    setup = TrainingSetup(head=head, target_tokens=ANSWER_TOKENS if head == "seq2seq_lm" else 0)
    assert layer_of(content, setup, ROW_TOKENS).layer_bytes.kept == pytest.approx(each, rel=0.02)


def test_logits_are_counted_per_row_token_or_answer_token():
    for variant, head, logits in (
        ("llama-tied", HEAD, LABELS),
        ("bert", "token_classification", 100 * LABELS),
        ("t5-gated", "seq2seq_lm", 30 * 96),
    ):
        answer = 30 if head == "seq2seq_lm" else 0
        setup = TrainingSetup(head=head, target_tokens=answer, counted=LayerBytes(kept=1, made=1))
        batch = BatchSizes(rows=8, eval_rows=8, row_tokens=100)
        parts = memory_parts(shape_of(headed(variant, head).config, head=head), setup, batch)
        assert next(part.bytes for part in parts if part.name == "head and loss") == 12 * 8 * logits, head


def test_operations_of_a_forward_pass_are_those_that_torch_counts(subtests):
    for variant, head in [("bert", "token_classification"), ("t5-gated", "seq2seq_lm")]:
        with subtests.test(variant):
            import torch
            from torch.utils.flop_counter import FlopCounterMode

            tiny = headed(variant, head)
            setup = TrainingSetup(
                head=head, target_tokens=ANSWER_TOKENS if head == "seq2seq_lm" else 0, longest_row=ROW_TOKENS
            )
            shape = shape_of(tiny.config, head=head)
            inputs = {"input_ids": torch.ones(1, ROW_TOKENS, dtype=torch.int64)}
            if head == "seq2seq_lm":
                inputs["decoder_input_ids"] = torch.ones(1, ANSWER_TOKENS, dtype=torch.int64)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                tiny.model(**inputs)
            forward = training_flops(shape, setup, tokens=ROW_TOKENS, row_tokens=ROW_TOKENS) / 3
            assert counter.get_total_flops() == pytest.approx(forward, rel=0.03)


def test_adapters_named_by_path_add_their_operations():
    head = "token_classification"
    shape, setup = (
        shape_of(headed("bert", head).config, head=head),
        TrainingSetup(method="lora", lora_rank=8, head=head),
    )
    some, more = (
        training_flops(shape, replace(setup, lora_targets=names), tokens=1, row_tokens=8)
        for names in (("query",), ("query", "intermediate.dense"))
    )
    assert more - some == 6 * 2 * 8 * (32 + 48)
