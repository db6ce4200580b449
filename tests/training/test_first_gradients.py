"""Whether a gradient reaches all that should learn is told within the first steps."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.tiny_models import save_tiny_model
from tests.trained_runs import train
from tui_trainer.config.sections import TrainingSection
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.journal import read_all
from tui_trainer.training.optimizer import RunOptimizer


def told_of(model: nn.Module, loss, steps: int = 3) -> tuple[str, str] | None:
    optimizer = RunOptimizer(model, TrainingSection(), lr=0.01)
    for _ in range(steps):
        loss(model).backward()
        optimizer.apply(torch.tensor(1.0), lr=0.01, max_grad_norm=1.0)
    found = optimizer.first_gradients.words()
    assert optimizer.first_gradients.words() is None  # told once
    return found


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.experts = nn.Linear(4, 4), nn.Linear(4, 2), nn.ModuleList([nn.Linear(4, 4)])


ROWS = torch.ones(3, 4)


def test_a_part_without_a_gradient_is_named():
    words, hint = told_of(Two(), lambda model: model.head(model.body(ROWS).detach()).square().sum())
    assert words == "no gradient reaches 1 of 2 trained matrices in 3 steps: body.weight"
    assert "tuning.target_modules" in hint


def test_a_gradient_of_zero_everywhere_is_named():
    words, _ = told_of(Two(), lambda model: model.head(model.body(0 * ROWS)).sum() * 0)
    assert words == "no gradient reaches any of the 2 trained matrices in 3 steps: nothing learns"


def test_what_learns_is_not_named_nor_an_adapter_in_its_first_step():
    assert told_of(Two(), lambda model: model.head(model.body(ROWS)).square().sum()) is None
    low = Two()
    nn.init.zeros_(low.head.weight)  # as the second matrix of an adapter: the first has no gradient in step 1
    assert told_of(low, lambda model: (model.head(model.body(ROWS)) - 1).square().sum()) is None
    assert told_of(Two(), lambda model: (0 * model.head(model.body(ROWS))).sum(), steps=2) is None


def problems(folder) -> list[RunProblem]:
    return [event for event in read_all(folder.journal) if isinstance(event, RunProblem)]


def test_a_model_that_drops_everything_is_told_in_its_run(tmp_path):
    folder = save_tiny_model(tmp_path / "bert", "bert")
    content = json.loads((folder / "config.json").read_text())
    changes = {"model.init": "pretrained", "model.model_name_or_path": folder, "training.max_steps": 5}
    for name in ("healthy", "dead"):
        (tmp_path / name).mkdir()
    run = train(tmp_path / "healthy", "sequence_classification", changes)
    assert not [one for one in problems(run) if one.kind == "no gradient"]
    (folder / "config.json").write_text(json.dumps(content | {"hidden_dropout_prob": 1.0}))
    (told,) = [
        one
        for one in problems(train(tmp_path / "dead", "sequence_classification", changes))
        if one.kind == "no gradient"
    ]
    assert told.step <= 5 and "nothing learns" in told.message and "dropout" in told.hint


@pytest.mark.parametrize(
    ("task", "adapted"),
    [
        ("causal_lm", False),
        ("causal_lm", True),
        ("char_lm", False),
        ("chat", False),
        ("seq2seq", False),
        ("sequence_classification", False),
        ("token_classification", False),
    ],
)
def test_no_healthy_run_is_told_of(task, adapted, finished):
    assert "no gradient" not in [one.kind for one in problems(finished(task, adapted))]
