"""A run that will miss its deadline is told within twenty steps, with three ways that are kept when applied."""

import time
from datetime import datetime

import pytest

from tui_trainer import lines
from tui_trainer.checklist.run import patched
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.start import open_new
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning.measured_gains import Gain, Measurable, keep_gain
from tui_trainer.runs.event_lines import from_line, to_line
from tui_trainer.runs.events import DeadlineAtRisk, PlanMade, RunFinished, StepDone
from tui_trainer.runs.journal import read_all
from tui_trainer.runs.state import fold
from tui_trainer.runs.targets import targets_of
from tui_trainer.training.session import Session

SLOW = {
    "training.max_steps": 200, "logging.logging_steps": 100, "training.effective_batch_size": 16,
    "model.scratch.num_hidden_layers": 2,
}  # fmt: skip


@pytest.fixture
def slow_steps(monkeypatch):
    """Each step takes 100 ms longer, and waits for nothing."""
    plain = NextTokenLoss.__call__

    def slow(self, batch):
        time.sleep(0.1)
        return plain(self, batch)

    monkeypatch.setattr(NextTokenLoss, "__call__", slow)


def risks(folder):
    return [event for event in read_all(folder.journal) if isinstance(event, DeadlineAtRisk)]


@pytest.fixture
def stopping(monkeypatch):
    """Runs end after 25 steps, as if asked to: what matters was told by then."""
    plain = Session.take_step

    def take(self, step):
        plain(self, step)
        if step >= 25:
            self.position.stopped_early = True

    monkeypatch.setattr(Session, "take_step", take)


def test_a_late_run_is_told_within_twenty_steps_with_three_ways(tiny_run, stopping, slow_steps):
    folder, _ = tiny_run("late", SLOW | {"targets.deadline": "12s"})
    (risk,) = risks(folder)
    assert 0 < risk.step <= 20 and len(risk.ways) == 3
    assert risk.expected > risk.due
    assert from_line(to_line(risk)) == risk
    state = fold(read_all(folder.journal))
    assert state.at_risk == risk and risk in state.problems
    line = lines.event_line(risk, state)
    assert "not by" in line and all(f"({number})" in line for number in (1, 2, 3))
    assert next(one for one in read_all(folder.journal) if isinstance(one, PlanMade)).deadline == risk.due
    until = [event for event in read_all(folder.journal) if not isinstance(event, RunFinished)]
    (target,) = targets_of(fold(until))
    assert target.verdict == "too late" and target.words.startswith("done ")
    report = (folder.root / "report.md").read_text()
    assert "(by " in report


def test_what_was_measured_to_be_faster_is_the_first_way(tiny_run, stopping, slow_steps):
    plan = read_plan(tiny_run("measured", SLOW | {"training.max_steps": 1})[0])
    compiled = {"training.torch_compile": True}
    keep_gain(Measurable.of(plan), compiled, plan.shape_key, Gain(at="2026-11-23T10:00:00Z", ratios=(2.0, 2.0, 2.0)))
    (risk,) = risks(tiny_run("late", SLOW | {"targets.deadline": "12s"})[0])
    assert risk.ways[0].patch.items() >= compiled.items()
    assert "2.00 times as fast, measured here" in risk.ways[0].words


@pytest.mark.e2e
def test_each_way_is_kept_by_a_real_run(tiny_run, tiny_config, monkeypatch, slow_steps):
    with monkeypatch.context() as patch:
        plain = Session.take_step

        def take(self, step):
            plain(self, step)
            if step >= 12:
                self.position.stopped_early = True

        patch.setattr(Session, "take_step", take)
        folder, _ = tiny_run("late", SLOW | {"targets.deadline": "12s"})
    (risk,) = risks(folder)
    kept = 0
    for number, way in enumerate(risk.ways):
        if "training.effective_batch_size" in way.patch or "model.scratch.num_hidden_layers" in way.patch:
            continue  # the planted 100 ms of a step do not depend on its rows
        loaded = patched(tiny_config(f"way-{number}", SLOW | {"targets.deadline": "12s"}), way.patch)
        run = open_new(loaded)
        assert carry_out(run).exit_code == 0
        events = read_all(run.folder.journal)
        done = next(event for event in events if isinstance(event, RunFinished))
        by = next(event for event in events if isinstance(event, PlanMade)).deadline
        assert datetime.fromisoformat(done.at) <= datetime.fromisoformat(by), way
        assert not risks(run.folder)
        kept += 1
    assert kept >= 1


def test_a_run_in_time_is_told_nothing(tiny_run):
    folder, _ = tiny_run("early", {"targets.deadline": "9d"})
    assert not risks(folder) and any(isinstance(event, StepDone) for event in read_all(folder.journal))
    (target,) = targets_of(fold(read_all(folder.journal)))
    assert target.verdict == "met"


def test_a_run_without_a_deadline_is_not_watched(tiny_run):
    folder, _ = tiny_run("free")
    assert not risks(folder) and targets_of(fold(read_all(folder.journal))) == []
