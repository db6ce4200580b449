"""Killed at any change on the disk, or in any step, the processes begin anew and end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.forked_ranks import AGENT_KILLED
from tests.distributed.outcomes import events, same
from tui_trainer.runs.events import EvalDone, RunProblem, StepDone

SETTINGS = {
    "distributed.processes": 2,
    "distributed.strategy": "fsdp",
    "training.max_steps": 12,
    "training.effective_batch_size": 6,
    "training.per_device_train_batch_size": 1,
    "model.scratch.attention_dropout": 0.2,
    "evaluation.eval_steps": 2,
    "checkpoint.save_steps": 3,
    "checkpoint.save_total_limit": 1,
}
FAULTS = Path(__file__).parent.parent / "faults"
STRIKES = f"""
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(FAULTS)!r})
import kill_sweep
from kill_sweep import kill_self
root = Path(sys.argv[1])
def kill_group():
    pids = [json.loads(path.read_bytes())["pid"] for path in root.glob("logs/rank-?.json")]
    assert len(pids) == 2
    for pid in sorted(pids, key=os.getpid().__eq__):
        os.kill(pid, signal.SIGKILL)
def kill_agent():
    (root / "{AGENT_KILLED}").touch()
"""
# Of every process: all write weights, few as they are.
ALL_WRITE = """
from tui_trainer.training import checkpoint as checkpoint_tensors
checkpoint_tensors.LEAST_BYTES = 0
"""
AT_CHANGE = """
watch = kill_sweep.Watch({number}, {strike})
kill_sweep.watch_rust_writers(watch)
sys.addaudithook(watch)
"""
IN_STEP = """
from tui_trainer.training import {module}
whole = {module}.{name}
count = 0
def striking(*args, **more):
    global count
    count += 1
    if count == {number}:
        {strike}()
    return whole(*args, **more)
{module}.{name} = striking
"""
# Calls that come once in a step or in a save: (module, function, in which calls of a run).
CALLS = (
    ("components", "take_step", (1, 9, 12)),
    ("optimizer", "_clip", (2, 6, 10)),
    ("checkpoint", "_save_weights", (1, 2, 4)),
    ("checkpoints", "random_tensors", (2, 3)),
)
# Of a run: all that its first two saves write. The fourth is at the last step.
CHANGES, CHANGES_AT_A_TIME = 50, 5
ALL = [range(first, first + CHANGES_AT_A_TIME) for first in range(0, CHANGES, CHANGES_AT_A_TIME)]
# A file of weights, one of the optimizer's counters and one of its parts, each beside and renamed, in two saves.
CHANGES_OF_ANOTHER = 12


def held_out(folder):
    return {event.step: event.loss for event in events(folder, EvalDone)}


@pytest.fixture
def sweep(reference_group, tiny_run, forked_ranks):
    """A run struck once for each of `preludes`, which say where; the exit codes of the processes that ended."""

    def run(preludes):
        whole = reference_group(SETTINGS)
        assert len(events(whole, StepDone)) == 12
        for number, (rank, prelude) in enumerate(preludes):
            groups = len(forked_ranks.started)

            def of_process(group, its, struck=(groups, rank), prelude=prelude):
                return ALL_WRITE + (STRIKES + prelude if (group, its) == struck else "")

            forked_ranks.prelude = of_process
            folder, outcome = tiny_run(f"killed-{number}", SETTINGS)
            assert outcome.exit_code == 0, (rank, prelude, outcome)
            assert same(folder, whole) and held_out(folder) == held_out(whole), (rank, prelude)
            problems = [problem.kind for problem in events(folder, RunProblem)]
            assert problems.count("process ended") == len(forked_ranks.started) - groups - 1
        return forked_ranks.ends

    return run


def at_change(number, strike="kill_self"):
    return AT_CHANGE.format(number=number, strike=strike)


@pytest.mark.e2e
def test_processes_killed_in_a_step_or_a_save_begin_anew_and_end_with_the_same_bits(sweep):
    """Some of the places of the slow tests below, minutes together."""
    in_step = IN_STEP.format(module="components", name="take_step", number=9, strike="kill_self")
    places = [(0, at_change(4)), (0, at_change(34)), (1, at_change(8)), (1, in_step), (0, at_change(24, "kill_group"))]
    ends = sweep(places)
    assert [codes[rank] for codes, (rank, _) in zip(ends, places, strict=True)] == [-9] * len(places)
    assert ends[-1] == [-9, -9]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", ALL, ids=str)
def test_the_first_process_killed_at_each_change_on_the_disk(sweep, numbers):
    ends = sweep([(0, at_change(number)) for number in numbers])
    assert [codes[0] for codes in ends] == [-9] * len(numbers)


@pytest.mark.slow
def test_another_process_killed_at_each_change_of_its_own_on_the_disk(sweep):
    ends = sweep([(1, at_change(number)) for number in range(CHANGES_OF_ANOTHER)])
    assert [codes[1] for codes in ends] == [-9] * CHANGES_OF_ANOTHER


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
def test_another_process_killed_in_a_step_or_a_save(sweep, call):
    module, name, numbers = call
    places = [IN_STEP.format(module=module, name=name, number=number, strike="kill_self") for number in numbers]
    ends = sweep([(1, place) for place in places])
    assert [codes[1] for codes in ends] == [-9] * len(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("strike", ["kill_agent", "kill_group"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
def test_all_of_them_killed_and_torchrun_killed(sweep, call, strike):
    """Without torchrun the processes leave by themselves, before the next ones begin."""
    module, name, numbers = call
    places = [IN_STEP.format(module=module, name=name, number=number, strike=strike) for number in numbers]
    ends = sweep([(0, place) for place in places])
    assert ends == [[-9, -9] if strike == "kill_group" else [1, 1]] * len(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("strike", ["kill_agent", "kill_group"])
def test_all_of_them_killed_and_torchrun_killed_at_changes_on_the_disk(sweep, strike):
    numbers = range(3, CHANGES, 7)
    ends = sweep([(0, at_change(number, strike)) for number in numbers])
    assert len(ends) == len(numbers)
