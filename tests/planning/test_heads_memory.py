"""Memory and time of classifiers and encoder-decoder models: the plan against real models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.headed import headed
from tests.planning.families import counted, kept_bytes, layer_of
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.duration import training_flops
from tui_trainer.planning.memory.estimate import memory_parts, total_bytes
from tui_trainer.planning.memory.parts import BatchSizes
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup

pytestmark = pytest.mark.dry_run

ROWS, ROW_TOKENS, ANSWER_TOKENS = 2, 24, 10
HEAD = "sequence_classification"
BERT = {
    "model_type": "bert", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "pad_token_id": 0,
    "intermediate_size": 1024, "vocab_size": 8000, "max_position_embeddings": 128,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4, "num_decoder_layers": 2,
    "num_heads": 4, "vocab_size": 8000, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0,
    "pad_token_id": 0, "is_encoder_decoder": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "head"),
    [("llama-tied", HEAD), *(pytest.param(*case, marks=pytest.mark.full) for case in
                             (("bert", HEAD), ("t5-gated", "seq2seq_lm"), ("bart", "seq2seq_lm")))],
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
    assert layer_of(content, setup, ROW_TOKENS).counted.kept == pytest.approx(each, rel=0.02)


def logits_bytes(config, head, labels=0, target_tokens=0):
    shape = shape_of(config, head=head, labels=labels)
    setup = TrainingSetup(head=head, target_tokens=target_tokens, counted=LayerBytes(kept=1, made=1))
    parts = memory_parts(shape, setup, BatchSizes(rows=8, eval_rows=8, row_tokens=100))
    return next(part.bytes for part in parts if part.name == "head and loss")


def test_logits_are_counted_per_row_token_or_answer_token():
    assert logits_bytes(BERT, "sequence_classification", labels=5) == 12 * 8 * 5
    assert logits_bytes(BERT, "token_classification", labels=5) == 12 * 8 * 100 * 5
    assert logits_bytes(T5, "seq2seq_lm", target_tokens=30) == 12 * 8 * 30 * 8000


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
    shape = shape_of(BERT, head="sequence_classification", labels=2)
    lora = {"method": "lora", "lora_rank": 8, "head": "sequence_classification"}
    some, more = (
        training_flops(shape, TrainingSetup(lora_targets=names, **lora), tokens=1, row_tokens=8)
        for names in (("query",), ("query", "intermediate.dense"))
    )
    assert more - some == 6 * 6 * 8 * (256 + 1024)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "head", "answer"), [(BERT, "sequence_classification", 0), (T5, "seq2seq_lm", 32)])
def test_the_peak_on_a_cpu_is_within_a_fifth_of_the_plan(config, head, answer):
    rows, row_tokens = 16, 128
    setup = TrainingSetup(head=head, target_tokens=answer)
    parts = memory_parts(shape_of(config, head=head), counted(config, setup, row_tokens),
                         BatchSizes(rows=rows, eval_rows=rows, row_tokens=row_tokens))  # fmt: skip
    question = {"config": config, "head": head, "rows": rows, "row_tokens": row_tokens, "answer": answer}
    child = Path(__file__).with_name("peak_of_heads.py")
    done = subprocess.run([sys.executable, child, json.dumps(question)], capture_output=True, text=True, check=True)
    assert total_bytes(parts) == pytest.approx(int(done.stdout.split()[-1]), rel=0.2)
