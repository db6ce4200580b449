"""Killed at any change on the disk, or in any step, the processes begin anew and end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tui_trainer.runs.events import EvalDone, RunProblem, StepDone
from tui_trainer.runs.journal import read_all

SETTINGS = {
    "distributed.processes": 2,
    "training.max_steps": 12,
    "training.effective_batch_size": 6,
    "training.per_device_train_batch_size": 1,
    "model.scratch.attention_dropout": 0.2,
    "evaluation.eval_steps": 2,
    "checkpoint.save_steps": 3,
    "checkpoint.save_total_limit": 1,
}
FAULTS = Path(__file__).parent.parent / "faults"
AT_CHANGE = f"""
import sys
sys.path.insert(0, {str(FAULTS)!r})
import kill_sweep
watch = kill_sweep.Watch({{number}})
kill_sweep.watch_rust_writers(watch)
sys.addaudithook(watch)
"""
IN_STEP = """
import os, signal
from tui_trainer.training import {module}
whole = {module}.{name}
count = 0
def killing(*args, **more):
    global count
    count += 1
    if count == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*args, **more)
{module}.{name} = killing
"""
# Calls that come once or more in a step, an evaluation and a save: (module, function, calls in a run).
CALLS = (("session", "take_step", 12), ("optimizer", "_clip", 12), ("checkpoints", "random_tensors", 4))


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def same(mine, theirs):
    one, two = (load_file(folder.model / "model.safetensors") for folder in (mine, theirs))
    losses = [{event.step: event.loss_sum for event in of_kind(folder, StepDone)} for folder in (mine, theirs)]
    held_out = [{event.step: event.loss for event in of_kind(folder, EvalDone)} for folder in (mine, theirs)]
    return (
        losses[0] == losses[1]
        and held_out[0] == held_out[1]
        and all(tensor.equal(two[name]) for name, tensor in one.items())
    )


@pytest.fixture
def sweep(tiny_run, forked_ranks):
    """Killed once for each of `preludes`, which say where; how many of them met it."""

    def run(preludes):
        whole, _ = tiny_run("whole", SETTINGS)
        assert len(of_kind(whole, StepDone)) == 12
        met = 0
        for number, (rank, prelude) in enumerate(preludes):
            groups = len(forked_ranks.started)
            forked_ranks.prelude = lambda group, its: prelude if (group, its) == (groups, rank) else ""  # noqa: B023
            folder, outcome = tiny_run(f"killed-{number}", SETTINGS)
            assert outcome.exit_code == 0, (rank, prelude, outcome)
            assert same(folder, whole), (rank, prelude)
            problems = [problem.kind for problem in of_kind(folder, RunProblem)]
            assert problems.count("process ended") == len(forked_ranks.started) - groups - 1
            met += "process ended" in problems
        return met

    return run


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.slow if first % 18 else pytest.mark.e2e) for first in range(0, 45, 9)],
)
def test_the_first_process_killed_at_changes_on_the_disk(sweep, first):
    assert sweep([(0, AT_CHANGE.format(number=number)) for number in (first, first + 5)]) == 2


@pytest.mark.parametrize(("module", "name", "calls"), CALLS)
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.e2e)])
def test_either_process_killed_in_a_step_or_a_save(sweep, module, name, calls, rank):
    numbers = (1, calls // 2, calls)
    preludes = [(rank, IN_STEP.format(module=module, name=name, number=number)) for number in numbers]
    assert sweep(preludes) >= 2
