"""The process that the others wait for is named in the journal."""

from __future__ import annotations

import pytest

from tests.distributed.outcomes import TWO, events
from tests.runs.journals import read_all
from tui_trainer.runs.events import RanksTimed
from tui_trainer.runs.state import apply_events, slowest_rank

pytestmark = pytest.mark.full
# A clock that goes on by so many seconds each time that it is read: no test depends on how long something takes.
CLOCK = """
from itertools import count
from tui_trainer.training import clock
reads = count()
clock._PERIOD_SECONDS = 0
clock.perf_counter = lambda: {seconds} * next(reads)
"""


@pytest.mark.parametrize(("strategy", "slow"), [("ddp", 1), pytest.param("fsdp", 0, marks=pytest.mark.e2e)])
def test_the_slow_process_is_named_with_its_lag(tiny_run, forked_ranks, strategy, slow):
    """The slow process waits a quarter of the time that the other one waits for it."""
    forked_ranks.prelude = lambda group, rank: CLOCK.format(seconds=0.125 if rank == slow else 0.5)
    folder, outcome = tiny_run("slow", TWO | {"distributed.strategy": strategy})
    assert outcome.exit_code == 0
    timed = events(folder, RanksTimed)
    assert timed and all(len(event.communication_seconds) == 2 for event in timed)
    found = slowest_rank(apply_events(read_all(folder.journal)))
    assert found.rank == slow and found.communication_seconds > 0
    assert found.lag_seconds == pytest.approx(3 * found.communication_seconds)
