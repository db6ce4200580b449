"""Adapters of layers that a pattern matches, and of tensors of experts: learnt, resumed, merged and continued."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.programs import ForkedWorker
from tests.runs.journals import read_all
from tests.tiny_models import EXPERTS, save_tiny_model
from tests.training.test_router_loss import STEPS, steps_of, trained_run
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.contract import find_format
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.events import EvalDone
from tui_trainer.worker import asking

pytestmark = pytest.mark.versions
LORA = {"tuning.method": "lora", "tuning.r": 2, "training.learning_rate": 0.01, "training.router_aux_loss_coef": 0}
NAMED = {"tuning.target_modules": "q_proj", "tuning.target_parameters": '"experts.gate_up_proj, experts.down_proj"'}
BY_LAYER = {"tuning.target_modules": r"'.*layers\.1\..*_proj'"}
CASES = {
    "an expression": ("llama", BY_LAYER),
    "all-linear of Mixtral": ("mixtral", {}),
    "tensors of Qwen 3": ("qwen3_moe", NAMED),
    "tensors of gpt-oss": ("gpt_oss", NAMED),
}


@pytest.fixture(autouse=True)
def forked_questions(monkeypatch):
    """Which process counts a model is no question of these tests."""
    monkeypatch.setattr(asking, "Child", ForkedWorker)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    place = tmp_path_factory.mktemp("experts")
    for family in (*EXPERTS, "llama"):
        save_tiny_model(place / family, family)
    return place


def starting_adapter(folder):
    return load_file(folder.model / "adapter_model.safetensors")


def last_loss(folder):
    return [event.loss for event in read_all(folder.journal) if isinstance(event, EvalDone)][-1]


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_learns_is_resumed_merged_and_continued(case, bases, tmp_path):
    family, targets = CASES[case]
    base = bases / family
    folder = trained_run(base, tmp_path, **LORA, **targets)
    losses = [step.loss for step in steps_of(folder)]
    assert losses[-1] < losses[0]
    learnt = starting_adapter(folder)
    counted = read_plan_file(folder.plan.read_bytes()).trained_parameters.value
    assert counted == sum(tensor.numel() for tensor in learnt.values())
    experts = {name for name in learnt if ".experts." in name}
    assert len(experts) == (0 if family == "llama" else 2 * 2 * 2)  # layers, tensors, both matrices
    assert all(learnt[name].any() for name in learnt), "each of them has moved or was drawn"
    if family == "llama":
        assert all(".layers.1." in name for name in learnt) and len(learnt) == 2 * 7

    if case != "tensors of Qwen 3":
        shutil.rmtree(folder.model)
        shutil.rmtree(folder.checkpoints / f"step-{STEPS}")
        assert execute_run(reopen_run(folder)).exit_code == 0
        assert all(torch.equal(tensor, learnt[name]) for name, tensor in starting_adapter(folder).items())

    merged = tmp_path / "merged"
    merged.mkdir()
    find_format("merged").write(TrainedModel.of(folder), merged, lambda *told: None)
    ids = torch.arange(6, 40)[None]
    whole = AutoModelForCausalLM.from_pretrained(merged).eval()
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder.model).eval()
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, beside(ids).logits, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(whole(ids).logits, plain(ids).logits, atol=1e-3)

    still = {"training.learning_rate": 1e-12, "training.max_steps": 1}
    on = trained_run(folder.model, tmp_path, **{**LORA, **still})
    assert last_loss(on) == pytest.approx(last_loss(folder), abs=1e-6)
    tuning = read_plan_file(on.plan.read_bytes()).config.tuning
    wanted = {key.rpartition(".")[2]: value.strip("'\"") for key, value in targets.items()}
    assert tuning.target_modules == wanted.get("target_modules", "all-linear")
    assert set(tuning.target_parameters.split(", ")) == set(wanted.get("target_parameters", "").split(", "))
    if case != "tensors of gpt-oss":
        into = trained_run(folder.model, tmp_path, **{"training.router_aux_loss_coef": 0, **still})
        assert last_loss(into) == pytest.approx(last_loss(folder), abs=1e-5), "merged, and trained as a whole"


@pytest.mark.e2e
def test_an_adapter_of_experts_is_continued_with_its_own_tensors_only(bases, tmp_path):
    folder = trained_run(bases / "gpt_oss", tmp_path, **LORA, **NAMED)
    with pytest.raises(ConfigError, match=r"target_parameters: is experts\.down_proj, but the adapter to"):
        trained_run(folder.model, tmp_path, **{**LORA, **NAMED, "tuning.target_parameters": "experts.down_proj"})
    fields = json.loads((folder.model / "adapter_config.json").read_text())
    fields["alpha_pattern"] = {"down_proj": 1}
    (folder.model / "adapter_config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"the adapter has alpha_pattern = .*, which has no matching setting"):
        trained_run(folder.model, tmp_path, **LORA)


REFUSED = [
    ("llama", {"tuning.target_modules": r"'.*\.queries?'"}, "matches no layer of the model"),
    ("mixtral", {"tuning.target_parameters": "experts.up"}, "that can be adapted: mlp.gate.weight, mlp.experts."),
    ("mixtral", {"tuning.lora_dropout": 0.1}, "is 0.1, but peft has no dropout for adapters on expert tensors"),
    ("gpt_oss", {**NAMED, "tuning.method": "full"}, "but tuning.method = full has no adapter"),
    ("gpt_oss", {**NAMED, "training.torch_compile": "true"}, "which is not tested with adapters of experts"),
    ("llama", {**BY_LAYER, "model.provider": "unsloth"}, "which is not supported with model.provider = unsloth"),
]


@pytest.mark.e2e
def test_targets_that_peft_does_not_adapt_are_refused_before_the_start(bases, tmp_path, subtests):
    for family, change, words in REFUSED:
        with subtests.test(words):
            with pytest.raises(ConfigError) as caught:
                trained_run(bases / family, tmp_path, **{**LORA, **change})
            assert words in str(caught.value)
