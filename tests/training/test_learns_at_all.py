"""Ways to learn nothing are refused before the start, or named by the doctor within 20 steps; healthy runs are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tests.tiny_models import save_tiny_model
from tests.trained_runs import begin
from tui_trainer.advice.examine import examine
from tui_trainer.advice.rules.learning import LearnsAtAll
from tui_trainer.errors import ConfigError
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.runs.events import RunFailed
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import read_all
from tui_trainer.runs.state import fold

NAMES = {one.name for one in LearnsAtAll.during}
STEPS = 20
BERT, LORA = {"family": "bert"}, {"family": "llama", "tuning.method": "lora"}
BERT_LORA = {**LORA, "family": "bert"}
Changes = dict[str, Any]


def settings_of(place: Path, changes: Changes) -> Changes:
    """Of a run of 20 steps and one more; `family` and `model_config` are those of a tiny pretrained model."""
    settings = {"training.max_steps": STEPS + 1, **changes}
    if family := settings.pop("family", ""):
        model = save_tiny_model(place / family, family)
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings.pop("model_config", {})))
        settings |= {"model.init": "pretrained", "model.model_name_or_path": model}
    return settings


def named(run: RunFolder) -> dict[str, str]:
    """What the doctor says of learning at all, from the journal as it was after 20 steps of the run that lived."""
    state = fold([event for event in read_all(run.journal) if event.step <= STEPS])
    assert state.step == STEPS and state.finished is None
    return {one.name: one.found.evidence for one in examine(state).findings if one.name in NAMES}


def came_to(place: Path, task: str, changes: Changes) -> str:
    """`refused: REASON`, or what the doctor names."""
    try:
        run = begin(place, task, settings_of(place, changes))
    except ConfigError as error:
        return f"refused: {error}"
    code = carry_out(run).exit_code
    if code:
        (failed,) = (event for event in read_all(run.folder.journal) if isinstance(event, RunFailed))
        assert failed.step == 0
        return f"refused: {failed.message}"
    return "; ".join(f"{name}: {evidence}" for name, evidence in named(run.folder).items())


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
class Way:
    task: str
    changes: Changes
    found: str
    plant: Callable[[pytest.MonkeyPatch], None] = field(default=lambda patch: None)


NOTHING = "no_gradient: no gradient reaches any of the"
WAYS = {
    "frozen by a wrong pattern": Way(
        "causal_lm", {**LORA, "tuning.method": "full", "tuning.trainable_layers": "layers.7."},
        "refused: --set: tuning.trainable_layers: fits no weight of the model: layers.7.",
    ),
    "labels all masked": Way("chat", {"data.max_length": 8}, "none of the 45 training rows has a label within"),
    "learning rate 0": Way("causal_lm", {"training.learning_rate": 0}, "refused: --set: training.learning_rate"),
    "learning rate that is 0 in 32 bits": Way("causal_lm", {"training.learning_rate": "1e-323"}, "rate_of_zero"),
    "detached head": Way("sequence_classification", BERT, "no_gradient: no gradient reaches 24 of 25", detached_body),
    "adapter on no module": Way(
        "causal_lm", {**LORA, "tuning.target_modules": "embed_tokens"},
        "refused: --set: tuning.target_modules: embed_tokens is no linear layer",
    ),
    "dropout of 1": Way("sequence_classification", {**BERT, "model_config": {"hidden_dropout_prob": 1.0}}, NOTHING),
    "dropout of 1 in adapters": Way(
        "causal_lm", {**LORA, "tuning.lora_dropout": 1}, "refused: --set: tuning.lora_dropout"
    ),
    "norms of another model": Way("causal_lm", LORA, "begins_high: loss ", longer_hidden_states),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_each_way_to_learn_nothing_is_named_or_refused(name, tmp_path, monkeypatch):
    way = WAYS[name]
    way.plant(monkeypatch)
    found = came_to(tmp_path, way.task, way.changes)
    assert way.found in found, found


HEALTHY: list[tuple[str, Changes]] = [
    *((task, {"training.seed": seed})
      for task in ("causal_lm", "char_lm", "chat", "seq2seq", "sequence_classification", "token_classification")
      for seed in (1, 2)),
    ("causal_lm", LORA),
    ("causal_lm", {**LORA, "tuning.use_dora": "true", "training.seed": 3}),
    ("causal_lm", {**LORA, "training.learning_rate": 1e-4, "training.warmup_steps": 20}),
    ("chat", {**LORA, "tuning.lora_dropout": 0.3, "task.chat_template": "chatml", "data.max_length": 120}),
    ("sequence_classification", BERT),
    ("sequence_classification", {**BERT_LORA, "training.learning_rate": 2e-4}),
    ("token_classification", {**BERT, "training.learning_rate": 2e-5, "training.warmup_steps": 200}),
    ("causal_lm", {**LORA, "tuning.method": "full", "tuning.trainable_layers": "last 1"}),
    ("causal_lm", {"family": "gpt2", "training.optim": "sgd", "training.learning_rate": 1e-3}),
]  # fmt: skip


@pytest.mark.parametrize(("task", "changes"), HEALTHY, ids=partial(str))
def test_no_healthy_run_is_named(task, changes, tmp_path):
    assert came_to(tmp_path, task, changes) == ""
