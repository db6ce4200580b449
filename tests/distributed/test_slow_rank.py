"""A process that is slower than the others is named by what the others wait for it."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.distributed.outcomes import events, losses
from tui_trainer.runs.events import RanksTimed, StepDone
from tui_trainer.runs.journal import read_all
from tui_trainer.runs.state import fold, slowest_rank

# In every forward pass, which is no waiting for others.
ASLEEP_SECONDS = 0.05
SLOW = f"""
import time
from tui_trainer.losses import next_token
loss = next_token.NextTokenLoss.__call__
def slow(self, batch):
    time.sleep({ASLEEP_SECONDS})
    return loss(self, batch)
next_token.NextTokenLoss.__call__ = slow
"""
OFTEN = "from tui_trainer.training import clock as between; between._PERIOD_SECONDS = 0.5\n"
SETTINGS = {
    "training.max_steps": 30,
    "training.effective_batch_size": 6,
    "evaluation.eval_steps": 0,
    "logging.sample_steps": 0,
    "logging.logging_steps": 3,
}


@pytest.mark.parametrize(("strategy", "slow"), [("ddp", 1), pytest.param("fsdp", 0, marks=pytest.mark.e2e)])
def test_the_slow_process_is_named_with_its_lag(reference_group, tiny_run, forked_ranks, strategy, slow):
    """What they tell each other changes no loss."""
    changes = SETTINGS | {"distributed.processes": 2, "distributed.strategy": strategy}
    whole = reference_group(changes)
    forked_ranks.prelude = lambda group, rank: OFTEN + (SLOW if rank == slow else "")
    folder, outcome = tiny_run("slow", changes)
    assert outcome.exit_code == 0 and losses(folder) == losses(whole)
    told = events(folder, RanksTimed)
    assert told and all(len(event.communication_seconds) == 2 for event in told)
    found = slowest_rank(fold(read_all(folder.journal)))
    assert found.rank == slow
    # As long as it slept in a step, of which it has the larger part in others' waiting.
    assert ASLEEP_SECONDS / 2 < found.lag_seconds < mean(step.step_seconds for step in events(folder, StepDone)[3:])
    print(found.words)
