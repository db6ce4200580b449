"""Which process the others wait for, from what each has spent in communication."""

from __future__ import annotations

import pytest

from tui_trainer.runs import events as e
from tui_trainer.runs.state import fold, slowest_rank


def state(*times, step_seconds=0.1):
    events = [e.RunStarted(name="run", task="char_lm", device="cpu", pid=1, total_steps=100)]
    events += [
        e.StepDone(
            step=n, epoch=0.1, loss_sum=4.0, tokens=2, samples=1, lr=0.1, grad_norm=1.0, step_seconds=step_seconds,
            data_seconds=0.0, forward_seconds=0.0, backward_seconds=0.0, optimizer_seconds=0.0, tokens_per_second=1.0,
            samples_per_second=1.0, peak_memory_bytes=1,
        )
        for n in range(1, 11)
    ]  # fmt: skip
    return fold([*events, *(e.RanksTimed(step=10, communication_seconds=list(one)) for one in times)])


def test_the_one_that_waits_least_is_the_slowest():
    found = slowest_rank(state([0.018, 0.019, 0.0181, 0.006]))
    assert found.rank == 3
    # The median of the others waits 12.1 ms longer for what it takes.
    assert found.lag_seconds == pytest.approx(0.0121)
    assert found.words == "slowest: rank 3, +14 % (12 ms a step), communication 6 %"


def test_it_is_a_mean_of_what_was_told_last_by_as_many_processes():
    found = slowest_rank(state([0.5, 0.0, 0.5], [0.02, 0.04], [0.04, 0.02], [0.01, 0.03]))
    assert (found.rank, found.lag_seconds) == (0, pytest.approx(0.02 / 3))


def test_one_process_and_a_run_that_has_told_nothing_have_none():
    assert slowest_rank(state()) is None
    assert slowest_rank(state([0.1])) is None


def test_a_start_begins_with_nothing_known():
    told = state([0.01, 0.03])
    told.apply(e.RunStarted(name="run", task="char_lm", device="cpu", pid=1, total_steps=100, resumed_from_step=5))
    assert not told.rank_times
