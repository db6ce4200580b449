"""What a whole run allocates on a simulated card, and copies to the host, beside what its plan says.

The model is large enough for its layers to be most of it, and small enough for seconds. What the allocator of a card
cannot fill is not simulated.
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.combinations import first_by_default
from tests.simulated_card.cases import TASKS, of_kind
from tests.tiny_models import save_tiny_model, save_tiny_model_with_towers, texts
from tests.trained_runs import write_rows
from tui_trainer.launching.prepare import read_plan
from tui_trainer.models.files import shards
from tui_trainer.planning.measured_steps import NOT_ALLOCATED
from tui_trainer.planning.memory import host
from tui_trainer.runs.events import StepDone
from tui_trainer.training import components
from tui_trainer.units import MIB

pytestmark = [pytest.mark.full, pytest.mark.dry_run]
ROW_TOKENS = 128
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256}  # fmt: skip
SETTINGS = {
    "data.max_length": ROW_TOKENS, "data.packing": "true", "training.effective_batch_size": 8,
    "training.per_device_train_batch_size": 8, "training.mixed_precision": "bf16", "evaluation.max_eval_rows": 16,
    "tuning.target_modules": "all-linear", "checkpoint.save_steps": 0,
}  # fmt: skip
_LITTLE = {
    "tuning.method": "lora", "training.gradient_checkpointing": "true", "training.loss_chunk_tokens": 128,
}  # fmt: skip
CASES = {
    "full in 16 bits": {"tuning.method": "full", "model.dtype": "bfloat16"},
    "lora, checkpoints, chunks": {**_LITTLE, "evaluation.per_device_eval_batch_size": 1, "evaluation.max_eval_rows": 2},
    "qlora": {"tuning.method": "qlora"},
    "accumulation": {"tuning.method": "full", "training.per_device_train_batch_size": 2},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A model and documents longer than a row."""
    folder = tmp_path_factory.mktemp("sources")
    save_tiny_model(folder / "model", "llama", vocab_size=2048, tie_word_embeddings=False, **SHAPE)
    lines = texts(800)
    documents = [" ".join(lines[at : at + 40]) for at in range(0, len(lines), 20)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    (folder / "documents.jsonl").write_text(rows)
    assert TASKS["causal_lm"].family == "llama"
    return {"model.model_name_or_path": folder / "model", "data.path": folder / "documents.jsonl"}


@pytest.mark.parametrize("case", first_by_default(CASES))
def test_a_run_allocates_on_the_card_what_is_planned(case, sources, run_on_card):
    _, folder, failure = run_on_card("causal_lm", {**SETTINGS, **sources, **CASES[case]})
    assert not failure, failure
    plan = read_plan(folder)
    planned = sum(part.bytes for part in plan.memory_parts if part.name not in NOT_ALLOCATED)
    peak = max(step.peak_memory_bytes for step in of_kind(folder, StepDone))
    # Planned are full rows; what is left of a row is not computed.
    assert 0.9 * peak <= planned <= 1.15 * peak


@pytest.mark.parametrize("method", first_by_default(["full", "lora"]))
def test_preferences_take_the_memory_of_supervised_training_on_the_same_tokens(method, sources, tmp_path, run_on_card):
    """A pair has the tokens of two conversations. The reference takes no memory, because it is computed before.

    All answers are as long as rows, so that rows are full, as planned."""
    words = {"chosen": "yes", "rejected": "not"}
    pairs = [
        {"prompt": "Go on.", **{side: f"{word} {n:02} {'said the sheep. ' * 15}" for side, word in words.items()}}
        for n in range(40)
    ]
    chats = [{"prompt": row["prompt"], "completion": row[side]} for row in pairs for side in ("chosen", "rejected")]
    peaks = []
    for task, rows, count in (("chat", chats, 16), ("preference", pairs, 8)):
        path = write_rows(tmp_path / f"{task}.jsonl", rows)
        own = {"data.path": path, "output.name": task, "task.chat_template": "chatml", "tuning.method": method}
        own |= {f"training.{name}": count for name in ("effective_batch_size", "per_device_train_batch_size")}
        _, folder, failure = run_on_card(task, {**SETTINGS, **sources, **own, "evaluation.max_eval_rows": count})
        assert not failure, failure
        planned = sum(part.bytes for part in read_plan(folder).memory_parts if part.name not in NOT_ALLOCATED)
        peaks.append(max(step.peak_memory_bytes for step in of_kind(folder, StepDone)))
        assert 0.9 * peaks[-1] <= planned <= (1.1 if method == "full" else 1.15) * peaks[-1]
    assert peaks[1] <= 1.05 * peaks[0]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "method"), [("gemma3", "lora"), ("mistral3", "full"), ("qwen2_5_vl", "full"), ("qwen3_vl", "lora")]
)
def test_a_run_with_towers_allocates_on_the_card_what_is_planned(family, method, sources, tmp_path, run_on_card):
    # Kinds of layers are listed in some configs, one each.
    wide = {key: value for key, value in SHAPE.items() if key != "num_hidden_layers"}
    if family == "qwen2_5_vl":
        # Its sections of positions are those of heads of 8.
        wide |= {"num_attention_heads": SHAPE["hidden_size"] // 8, "num_key_value_heads": SHAPE["hidden_size"] // 16}
    base = save_tiny_model_with_towers(tmp_path / family, family, **wide)
    own = {"model.model_name_or_path": base, "data.packing": "false", "tuning.method": method, "model.towers": "card"}
    _, folder, failure = run_on_card("causal_lm", {**SETTINGS, **sources, **own})
    assert not failure, failure
    parts = {part.name: part.bytes for part in read_plan(folder).memory_parts if part.name not in NOT_ALLOCATED}
    peak = max(step.peak_memory_bytes for step in of_kind(folder, StepDone))
    assert parts["towers"] > 0 and "towers loaded" not in parts
    assert sum(parts.values()) == pytest.approx(peak, rel=0.1)


@pytest.mark.e2e
def test_towers_for_the_host_are_in_the_plan_for_as_long_as_they_are_on_the_card(tmp_path, run_on_card, monkeypatch):
    """They come with the weights, and are more than all that the steps of so small a language model need."""
    vision = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    base = save_tiny_model_with_towers(tmp_path / "gemma3", "gemma3", vision)
    loaded, place = [], components.move_to_device

    def placed(*args, **given):
        loaded.append(torch.cuda.max_memory_allocated())
        place(*args, **given)

    monkeypatch.setattr(components, "move_to_device", placed)
    own = {"model.model_name_or_path": base, "tuning.method": "lora", "model.towers": "host"}
    own |= {"data.max_length": 32, "data.packing": "false", "model.dtype": "float32"}
    _, folder, failure = run_on_card("causal_lm", own)
    assert not failure, failure
    plan = read_plan(folder)
    parts = {part.name: part.bytes for part in plan.memory_parts if part.name not in NOT_ALLOCATED}
    towers = sum(plan.model_shape().towers.values()) * 4
    steps = max(step.peak_memory_bytes for step in of_kind(folder, StepDone))
    assert max(steps, *loaded) == pytest.approx(sum(parts.values()), rel=0.1)
    assert steps == loaded[0] > towers and towers / 2 < parts["towers loaded"] < towers


@pytest.mark.e2e
def test_an_evaluation_takes_no_more_than_is_planned(sources, run_on_card):
    """All results of one layer are reckoned for it, though some are given back within."""
    settings = {**SETTINGS, **sources, **_LITTLE, "evaluation.eval_steps": 1}
    _, folder, failure = run_on_card("causal_lm", {**settings, "evaluation.per_device_eval_batch_size": 16})
    assert not failure, failure
    parts = {part.name: part.bytes for part in read_plan(folder).memory_parts if part.name not in NOT_ALLOCATED}
    peak = max(step.peak_memory_bytes for step in of_kind(folder, StepDone))
    assert parts["evaluation"] > 0
    assert sum(parts.values()) - parts["evaluation"] < peak <= sum(parts.values())


@pytest.mark.e2e
def test_a_checkpoint_copies_no_more_to_the_host_than_is_planned(sources, run_on_card, monkeypatch):
    """Shard by shard: never all weights, and never all of the optimizer's state."""
    for module in (shards, host):
        monkeypatch.setattr(module, "SHARD_BYTES", MIB)
    card, folder, failure = run_on_card(
        "causal_lm",
        {
            **SETTINGS,
            **sources,
            "tuning.method": "full",
            "checkpoint.save_steps": 1,
            "checkpoint.save_in_background": "false",
        },
    )
    assert not failure, failure
    plan = read_plan(folder)
    planned = host._saving(plan.model_shape(), plan.training_setup).bytes - host.PINNED_BYTES
    # safetensors may make one more copy of each.
    assert 0.9 * planned / 2 <= card.copied_peak_bytes <= planned
    assert card.copied_peak_bytes < plan.trained_parameters.value * 4 / 3
    assert card.pinned_peak_bytes == host.PINNED_BYTES
