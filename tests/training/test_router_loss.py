"""The router loss, which spreads tokens over experts: as transformers adds it, in training only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.combinations import in_the_sweep
from tests.programs import ForkedWorker
from tests.runs.journals import read_all
from tests.tiny_models import EXPERTS, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.worker import asking

pytestmark = pytest.mark.versions
RATE, STEPS, WEIGHT = 0.003, 3, 0.5
KEY = "training.router_aux_loss_coef"
# The config of Mixtral asks for the loss.
WEIGHTS = {"mixtral": ("auto", 0.02), "qwen3_moe": (WEIGHT, WEIGHT), "gpt_oss": (WEIGHT, WEIGHT)}


@pytest.fixture(autouse=True)
def forked_questions(monkeypatch):
    """Which process counts a model is no question of these tests."""
    monkeypatch.setattr(asking, "Child", ForkedWorker)


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("experts")
    for family in (*EXPERTS, "llama"):
        save_tiny_model(place / family, family)
    return place


def trained_run(base: Path, place: Path, **changes: Any) -> RunFolder:
    """Train on four rows of different lengths. All of them are in each step, so their order does not matter."""
    for name, rows in (("rows", texts(4)), ("held", texts(8)[4:])):
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    settings = {
        "task.type": "causal_lm", "data.path": place / "rows.jsonl", "model.model_name_or_path": base,
        "data.eval_path": place / "held.jsonl", "tuning.method": "full", "data.max_length": 96, "data.packing": "false",
        "training.effective_batch_size": 4, "training.per_device_train_batch_size": 4, "training.learning_rate": RATE,
        "training.lr_scheduler_type": "constant", "training.warmup_steps": 0, "training.max_grad_norm": 0,
        "training.max_steps": STEPS, "evaluation.eval_steps": 0, "checkpoint.save_steps": 1, "logging.sample_steps": 0,
        "output.runs_dir": place / "runs", "output.name": f"run{len(list(place.glob('runs/*')))}", **changes,
    }  # fmt: skip
    run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    assert execute_run(run).exit_code == 0
    return run.folder


def steps_of(folder: RunFolder) -> list[StepDone]:
    return [event for event in read_all(folder.journal) if isinstance(event, StepDone)]


def rows_of(base: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(base)
    return [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts(4)]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the ids, the attention mask and the labels of a padded batch."""
    width = max(map(len, rows)) - 1
    ids = torch.tensor([row[:-1] + [0] * (width - len(row) + 1) for row in rows])
    labels = torch.tensor([row[1:] + [-100] * (width - len(row) + 1) for row in rows])
    return ids, (labels != -100).long(), labels


def bare_losses(family: str, base: Path, weight: float, parts: int = 1) -> list[float]:
    """Return the losses of a plain loop that adds the `aux_loss` of transformers for each part of the batch."""
    model, rows = tiny_model(family).train(), rows_of(base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0)
    batches = [padded(rows[at::parts]) for at in range(parts)]
    labels, tokens = (sum(int(mask.sum()) for _, mask, _ in batches) for _ in range(2))
    found = []
    for _ in range(STEPS):
        loss = torch.zeros(())
        for ids, mask, wanted in batches:
            made = model(input_ids=ids, attention_mask=mask, output_router_logits=True, use_cache=False)
            nats = F.cross_entropy(made.logits.flatten(0, 1), wanted.flatten(), reduction="sum")
            loss = loss + nats / labels + weight * made.aux_loss * int(mask.sum()) / tokens
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("family", "packing"),
    [("mixtral", "true"), *(in_the_sweep(family, "false") for family in EXPERTS), in_the_sweep("qwen3_moe", "true")],
)
def test_losses_equal_those_of_a_plain_loop_over_transformers(family, packing, bases, tmp_path):
    setting, weight = WEIGHTS[family]
    folder = trained_run(bases / family, tmp_path, **{KEY: setting, "data.packing": packing})
    steps = steps_of(folder)
    assert [step.loss for step in steps] == pytest.approx(bare_losses(family, bases / family, weight), abs=1e-5)
    assert all(set(step.scores) == {"next_token", "router_loss"} for step in steps)
    assert all(step.loss == pytest.approx(sum(step.scores.values())) for step in steps)
    assert all(step.scores["router_loss"] > weight for step in steps)
    plan = read_plan_file(folder.plan.read_bytes())
    assert plan.router_aux_loss_coef is not None and plan.router_aux_loss_coef.value == weight
    assert plan.training_setup.router_logits == 4 * 2
    assert f"weight {weight:g}" in (folder.model / "README.md").read_text()


@pytest.mark.e2e
def test_the_held_out_loss_is_that_of_the_next_token_only(bases, tmp_path):
    folder = trained_run(bases / "mixtral", tmp_path, **{KEY: 1})
    [done] = [event for event in read_all(folder.journal) if isinstance(event, EvalDone)]
    model = tiny_model("mixtral").eval()
    model.load_state_dict(type(model).from_pretrained(folder.model).state_dict())
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts(8)[4:]]
    ids, mask, labels = padded(rows)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits
    assert done.loss == pytest.approx(F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item(), abs=1e-5)
    assert "router_loss" not in done.scores


@pytest.mark.e2e
def test_micro_batches_weigh_as_much_as_they_have_tokens(bases, tmp_path):
    """Each micro-batch has the router loss of its own tokens, weighted by their number."""
    changes = {KEY: WEIGHT, "training.per_device_train_batch_size": 2, "training.gradient_accumulation_steps": 2}
    losses = [step.loss for step in steps_of(trained_run(bases / "qwen3_moe", tmp_path, **changes))]
    whole = [step.loss for step in steps_of(trained_run(bases / "qwen3_moe", tmp_path, **{KEY: WEIGHT}))]
    # The order decides which rows are in which part, so the losses are only close.
    assert losses == pytest.approx(whole, rel=0.05) and losses != pytest.approx(whole, abs=1e-6)


@pytest.mark.e2e
def test_recomputed_layers_give_the_same_loss_and_a_resumed_run_the_same_bits(bases, tmp_path):
    changes = {KEY: WEIGHT, "tuning.method": "lora", "tuning.r": 2, "tuning.lora_dropout": 0}
    plain = trained_run(bases / "gpt_oss", tmp_path, **changes)
    again = trained_run(bases / "gpt_oss", tmp_path, **changes, **{"training.gradient_checkpointing": "true"})
    assert [step.loss for step in steps_of(again)] == pytest.approx([step.loss for step in steps_of(plain)], abs=1e-6)
    whole = load_file(plain.model / "adapter_model.safetensors")
    shutil.rmtree(plain.model)
    shutil.rmtree(plain.checkpoints / f"step-{STEPS}")
    assert execute_run(reopen_run(plain)).exit_code == 0
    resumed = load_file(plain.model / "adapter_model.safetensors")
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


@pytest.mark.full
def test_a_router_loss_is_refused_where_it_was_not_tried(bases, tmp_path, subtests):
    rows = [
        ("llama", {KEY: 0.1}, "is 0.1, but transformers computes no router loss for llama"),
        ("qwen3_moe", {KEY: 0.1, "training.torch_compile": "true"}, "is not tested with a router loss"),
    ]
    for family, change, words in rows:
        with subtests.test(family):
            with pytest.raises(ConfigError) as caught:
                trained_run(bases / family, tmp_path, **change)
            assert words in str(caught.value)


@pytest.mark.e2e
def test_without_a_weight_nothing_is_added(bases, tmp_path):
    """A config that does not ask for router logits has the same effect as a weight of 0."""
    runs = [trained_run(bases / "qwen3_moe", tmp_path, **change) for change in ({}, {KEY: 0})]
    assert [steps_of(run)[0].sums for run in runs] == [{}, {}]
    assert steps_of(runs[0])[-1].loss_sum == steps_of(runs[1])[-1].loss_sum
    reason = read_plan_file(runs[0].plan.read_bytes()).router_aux_loss_coef.reason
    assert "off, as in the model's config, whose coefficient is 0.001" in reason
    asked = trained_run(bases / "qwen3_moe", tmp_path, **{KEY: "model"})
    assert read_plan_file(asked.plan.read_bytes()).router_aux_loss_coef.value == 0.001
    assert set(steps_of(asked)[0].sums) == {"next_token", "router_loss"}
