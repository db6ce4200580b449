"""The time between steps: of other events, of the journal, of emptying the cache, and the rest."""

from __future__ import annotations

import pytest

from tui_trainer.runs.events import BetweenSteps
from tui_trainer.training import clock as module
from tui_trainer.training.clock import BetweenStepsTimer


class Journal:
    def __init__(self):
        self.events = []

    def append(self, *events):
        self.events += events


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


def test_each_second_between_steps_is_counted_once(clock):
    journal = Journal()
    between = BetweenStepsTimer(journal)
    between.step_begins(1)
    clock[0] += 1
    between.step_ended()
    with between.writing():
        clock[0] += 0.5
    with between.emptying_the_cache():
        clock[0] += 0.25
    clock[0] += 1.5
    between.count(1)  # an evaluation of one second; half a second is left
    between.step_begins(2)
    between.step_ended()
    between.write(2)
    (event,) = journal.events
    assert isinstance(event, BetweenSteps) and (event.step, event.steps) == (2, 2)
    assert (event.journal_seconds, event.empty_cache_seconds, event.other_seconds) == (0.5, 0.25, 0.5)


def test_a_pause_is_not_counted_and_nothing_is_written_without_a_step(clock):
    journal = Journal()
    between = BetweenStepsTimer(journal)
    between.write(0)
    between.step_begins(1)
    between.step_ended()
    between.forget()
    clock[0] += 600
    between.step_begins(2)
    (event,) = journal.events
    assert (event.step, event.steps, event.other_seconds) == (1, 1, 0.0)


def test_short_steps_write_one_event_in_a_few_seconds(clock):
    journal = Journal()
    between = BetweenStepsTimer(journal)
    for step in range(1, 1_001):
        between.step_begins(step)
        clock[0] += 0.01
        between.step_ended()
    assert 2 <= len(journal.events) <= 3
