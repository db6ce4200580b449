"""Runs that learn nothing are refused before they start, or found by the doctor within 20 steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import begin
from tui_trainer.advice.examine import examine
from tui_trainer.advice.rules.learning import learns_at_all
from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import ConfigError
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import RunFailed
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import apply_events
from tui_trainer.training.optimizer import RunOptimizer

NAMES = {one.name for one in learns_at_all.symptoms}
STEPS = 20
BERT, LORA = {"family": "bert"}, {"family": "llama", "tuning.method": "lora"}
BERT_LORA = {**LORA, "family": "bert"}
Changes = dict[str, Any]


def settings_of(place: Path, changes: Changes) -> Changes:
    """Return the settings of a run of 21 steps; `family` and `model_config` describe a tiny pretrained model."""
    settings = {"training.max_steps": STEPS + 1, **changes}
    if family := settings.pop("family", ""):
        model = save_tiny_model(place / family, family)
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings.pop("model_config", {})))
        settings |= {"model.init": "pretrained", "model.model_name_or_path": model}
    return settings


def findings(run: RunFolder) -> dict[str, str]:
    """Return what the doctor finds about learning at all in the journal as it was after 20 steps of the live run."""
    state = apply_events([event for event in read_all(run.journal) if event.step <= STEPS])
    assert state.step == STEPS and state.finished is None
    return {one.name: one.cause.evidence for one in examine(state).findings if one.name in NAMES}


def outcome_of(place: Path, task: str, changes: Changes) -> str:
    """Return `refused: REASON`, or what the doctor finds."""
    try:
        run = begin(place, task, settings_of(place, changes))
    except ConfigError as error:
        return f"refused: {error}"
    code = execute_run(run).exit_code
    if code:
        (failed,) = (event for event in read_all(run.folder.journal) if isinstance(event, RunFailed))
        assert failed.step == 0
        return f"refused: {failed.message}"
    return "; ".join(f"{name}: {evidence}" for name, evidence in findings(run.folder).items())


def detached_body(patch: pytest.MonkeyPatch) -> None:
    forward = BertModel.forward

    def detached(*given: Any, **more: Any) -> Any:
        found = forward(*given, **more)
        return type(found)({name: value.detach() for name, value in found.items()})

    patch.setattr(BertModel, "forward", detached)


def longer_hidden_states(patch: pytest.MonkeyPatch) -> None:
    forward = LlamaRMSNorm.forward
    patch.setattr(LlamaRMSNorm, "forward", lambda norm, hidden: 300 * forward(norm, hidden))


@dataclass(frozen=True)
class Fault:
    task: str
    changes: Changes
    found: str
    plant: Callable[[pytest.MonkeyPatch], None] = field(default=lambda patch: None)


NOTHING = "no_gradient: no gradient reaches any of the"
FAULTS = {
    "frozen by a wrong pattern": Fault(
        "causal_lm", {**LORA, "tuning.method": "full", "tuning.trainable_layers": "layers.7."},
        "refused: --set: tuning.trainable_layers: matches no weight of the model: layers.7.",
    ),
    "labels all masked": Fault("chat", {"data.max_length": 8}, "none of the 45 training rows has a label within"),
    "learning rate 0": Fault("causal_lm", {"training.learning_rate": 0}, "refused: --set: training.learning_rate"),
    "detached head": Fault("sequence_classification", BERT, "no_gradient: no gradient reaches 24 of 25", detached_body),
    "adapter on no module": Fault(
        "causal_lm", {**LORA, "tuning.target_modules": "embed_tokens"},
        "refused: --set: tuning.target_modules: embed_tokens is not a linear layer",
    ),
    "dropout of 1": Fault("sequence_classification", {**BERT, "model_config": {"hidden_dropout_prob": 1.0}}, NOTHING),
    "dropout of 1 in adapters": Fault(
        "causal_lm", {**LORA, "tuning.lora_dropout": 1}, "refused: --set: tuning.lora_dropout"
    ),
    "norms of another model": Fault("causal_lm", LORA, "begins_high: loss ", longer_hidden_states),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name in ("dropout of 1", "norms of another model")))
        for name in FAULTS
    ],
)
def test_a_run_that_learns_nothing_is_refused_or_found(name, tmp_path, monkeypatch):
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    outcome = outcome_of(tmp_path, fault.task, fault.changes)
    assert fault.found in outcome, outcome


HEALTHY: list[tuple[str, Changes]] = [
    ("causal_lm", LORA),
    ("char_lm", {}),
    ("seq2seq", {}),
    ("causal_lm", {**LORA, "tuning.use_dora": "true", "training.learning_rate": 1e-4, "training.warmup_steps": 20}),
    ("chat", {**LORA, "tuning.lora_dropout": 0.3, "task.chat_template": "chatml", "data.max_length": 120}),
    ("sequence_classification", {**BERT_LORA, "training.learning_rate": 2e-4}),
    ("token_classification", {**BERT, "training.learning_rate": 2e-5, "training.warmup_steps": 200}),
    ("causal_lm", {**LORA, "tuning.method": "full", "tuning.trainable_layers": "last 1"}),
    ("causal_lm", {"family": "gpt2", "training.optim": "sgd", "training.learning_rate": 1e-3}),
]


@pytest.mark.parametrize(
    ("task", "changes"),
    [pytest.param(*case, marks=[pytest.mark.full] * (case[1] != LORA), id=str(case)) for case in HEALTHY],
)
def test_nothing_is_found_in_a_healthy_run(task, changes, tmp_path):
    assert outcome_of(tmp_path, task, changes) == ""


# The first gradients of an optimizer ----------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.experts = nn.Linear(4, 4), nn.Linear(4, 2), nn.ModuleList([nn.Linear(4, 4)])


ROWS = torch.ones(3, 4)


def first_gradients(model: nn.Module, loss: Callable[[Any], torch.Tensor], steps: int = 3) -> tuple[str, str] | None:
    optimizer = RunOptimizer(model, TrainingSection(), lr=0.01)
    for _ in range(steps):
        loss(model).backward()
        optimizer.apply(torch.tensor(1.0), lr=0.01, max_grad_norm=1.0)
    report = optimizer.first_gradients.words()
    assert optimizer.first_gradients.words() is None, "it is reported once"
    return report


def test_a_matrix_without_a_gradient_is_named():
    words, hint = first_gradients(TwoLayers(), lambda model: model.head(model.body(ROWS).detach()).square().sum())
    assert words == "no gradient reaches 1 of 2 trained matrices in 3 steps: body.weight"
    assert "tuning.target_modules" in hint
    words, _ = first_gradients(TwoLayers(), lambda model: model.head(model.body(0 * ROWS)).sum() * 0)
    assert words == "no gradient reaches any of the 2 trained matrices in 3 steps"


def test_a_model_that_learns_and_an_adapter_in_its_first_step_are_not_named():
    assert first_gradients(TwoLayers(), lambda model: model.head(model.body(ROWS)).square().sum()) is None
    low = TwoLayers()
    nn.init.zeros_(low.head.weight)  # as the second matrix of an adapter: the first has no gradient in step 1
    assert first_gradients(low, lambda model: (model.head(model.body(ROWS)) - 1).square().sum()) is None
    assert first_gradients(TwoLayers(), lambda model: (0 * model.head(model.body(ROWS))).sum(), steps=2) is None
