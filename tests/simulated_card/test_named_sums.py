"""A loss of named parts, with terms of the whole step and scores beside it, waits for the card nowhere in a step."""

from __future__ import annotations

import pytest

from tests.simulated_card.cases import TASKS, TaskCase
from tests.simulated_card.waits import unexpected_waits
from tests.toy_tasks import toy_pairs
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.runs.journal import read_all

PAIRS = TaskCase("llama", lambda n, text: {"prompt": text, "chosen": "yes it is" + " so" * (n % 3), "rejected": "no"})


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    toy_pairs.install()
    monkeypatch.setitem(TASKS, "toy_pairs", PAIRS)
    yield
    toy_pairs.uninstall()


@pytest.mark.parametrize("layout", ["by lengths", "padded"])
def test_pairs_are_learnt_without_a_wait_for_the_card_in_a_step(run_on_card, layout):
    settings = {"data.packing": str(layout != "padded").lower(), "training.per_device_train_batch_size": 2}
    card, folder, failure = run_on_card("toy_pairs", settings, layout)
    assert not failure, failure
    assert unexpected_waits(card) == []
    steps = [event for event in read_all(folder.journal) if isinstance(event, StepDone)]
    assert len(steps) == 2 and all(step.sums.keys() == step.counts.keys() for step in steps)
    assert {"preference", "likelihood", "accuracy", "margin"} == steps[0].sums.keys()
    [held_out] = [event for event in read_all(folder.journal) if isinstance(event, EvalDone)]
    assert held_out.scores.keys() == steps[0].sums.keys()
