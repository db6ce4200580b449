"""A process of a group that dies, runs out of memory or fails otherwise: all end, and the run goes on where it can."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from subprocess import PIPE, Popen
from threading import Thread
from time import sleep

import pytest

from tests.distributed.outcomes import DIES, at_step, events, losses, same
from tests.runs.journals import read_all
from tui_trainer.errors import ConfigError
from tui_trainer.launching import torchrun
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.events import (
    CheckpointSaved,
    ControlApplied,
    EvalDone,
    GaugesRead,
    LibrariesLoaded,
    RunProblem,
    RunStarted,
)
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.overview import overview
from tui_trainer.runs.state import apply_events

TWO = {"distributed.processes": 2, "training.max_steps": 12, "checkpoint.save_steps": 4}
NO_MEMORY = "raise session.GroupOutOfMemory('out of memory in process 1 at step 6 (planted)')"


def ask(*actions):
    def before(run):
        for action in actions:
            controls.request(run.folder.control, action)

    return before


def test_a_killed_process_is_reported_and_the_run_goes_on_to_the_bit(killed_run):
    """All processes answer requests at one step, which changes no loss; the next group does not answer them again."""
    asked = ["save", "pause", "resume", "evaluate"]
    folder = killed_run(TWO, 0, before=ask(*asked))
    answers = events(folder, ControlApplied)
    assert [event.action for event in answers] == asked and len({event.step for event in answers}) == 1
    assert [event.scheduled for event in events(folder, EvalDone)].count(False) == 1
    [problem] = events(folder, RunProblem)
    assert (problem.kind, problem.step) == ("process ended", 4)
    assert "process 0 ended (SIGKILL)" in problem.message and "rank-0.txt" in problem.message
    assert [event.resumed_from_step for event in events(folder, RunStarted)] == [None, 4]
    assert apply_events(read_all(folder.journal)).status == "finished"


@pytest.mark.full
def test_a_process_that_dies_in_each_start_ends_the_run(tiny_run, forked_ranks):
    forked_ranks.prelude = lambda group, number: at_step(6, DIES) if number else ""
    folder, outcome = tiny_run("killed", TWO)
    # One that saved step 4, and those that came no further.
    assert outcome.exit_code == 1 and len(forked_ranks.started) == 4
    assert "process 1 ended (SIGKILL)" in outcome.failure
    assert (folder.checkpoints / "step-4").is_dir() and not folder.model.exists()


@pytest.mark.e2e
def test_passes_are_halved_as_often_as_there_are_rows(tiny_run, forked_ranks):
    forked_ranks.prelude = lambda group, number: at_step(2, NO_MEMORY) if group < 3 and number else ""
    folder, outcome = tiny_run("short", TWO | {"training.effective_batch_size": 16})
    assert outcome.exit_code == 0, outcome.failure
    assert [problem.rows for problem in events(folder, RunProblem)] == [4, 2, 1]


NO_MEMORY_TO_EVALUATE = """
import torch
from tui_trainer.training import session
def observe(*given):
    raise torch.OutOfMemoryError("planted")
session.observe = observe
"""


@pytest.mark.e2e
def test_out_of_memory_in_the_evaluation_of_one_part_of_a_model_ends_all_and_goes_on_with_less(tiny_run, forked_ranks):
    forked_ranks.prelude = lambda group, number: NO_MEMORY_TO_EVALUATE if (group, number) == (0, 1) else ""
    changes = {"distributed.strategy": "fsdp", "evaluation.eval_steps": 4, "training.effective_batch_size": 8}
    folder, outcome = tiny_run("short", TWO | changes)
    assert outcome.exit_code == 0, outcome.failure
    [problem] = events(folder, RunProblem)
    assert problem.kind == "out of memory" and "process 1 in the evaluation" in problem.message
    assert len(events(folder, EvalDone)) == 3


@pytest.mark.full
def test_out_of_memory_in_one_process_halves_the_passes_of_all(tiny_run, forked_ranks, monkeypatch):
    timed = []
    monkeypatch.setattr("tui_trainer.launching.run_lifecycle.keep_step_seconds", lambda plan, *_: timed.append(plan))
    changes = TWO | {"training.effective_batch_size": 8}
    smaller, _ = tiny_run("smaller", changes | {"training.per_device_train_batch_size": 2})
    forked_ranks.prelude = lambda group, number: at_step(2, NO_MEMORY) if (group, number) == (1, 1) else ""
    folder, outcome = tiny_run("short", changes)
    assert outcome.exit_code == 0
    [problem] = events(folder, RunProblem)
    assert problem.kind == "out of memory" and "with 2 rows per pass" in problem.hint
    assert (problem.rows_before, problem.rows, problem.passes) == (4, 2, 2)
    plan = json.loads(folder.plan.read_bytes())
    # What the screens show, and what no later plan goes by.
    assert overview(folder).out_of_memory_events == plan["out_of_memory_events"] == 1
    shown = apply_events(read_all(folder.journal)).plan
    assert (shown.per_device_train_batch_size, shown.gradient_accumulation_steps) == (2, 2)
    assert plan["shape_key"] == "" and len(timed) == 1 and timed[0].per_device_train_batch_size.value == 2
    assert plan["per_device_train_batch_size"]["value"] == plan["gradient_accumulation_steps"]["value"] == 2
    assert same(folder, smaller)


@pytest.mark.full
def test_a_process_with_other_versions_is_refused(tiny_run, forked_ranks):
    other = "from tui_trainer.launching import prepare; prepare.versions = lambda: {'torch': '1.0'}"
    forked_ranks.prelude = lambda group, number: other if number else ""
    folder, outcome = tiny_run("odd", TWO)
    assert outcome.exit_code == 1 and len(forked_ranks.started) == 1
    assert "process 1 has the versions" in outcome.failure and "'1.0'" in outcome.failure
    assert losses(folder) == {}


@pytest.mark.full
def test_a_run_that_diverges_says_so_as_one_process_does(tiny_run, forked_ranks):
    changes = {"training.learning_rate": 10, "training.max_grad_norm": 0, "training.optim": "sgd"}
    poison = at_step(3, "self.components.optimizer.trained_parameters[0].data.fill_(float('nan'))")
    forked_ranks.prelude = lambda group, number: poison
    _, outcome = tiny_run("diverges", TWO | changes)
    assert outcome.exit_code == 1 and "was not finite at step 3" in outcome.failure


@pytest.mark.full
def test_a_stopped_run_goes_on_in_as_many_processes_to_the_bit_and_in_another_number(
    reference_group, stopped_run, forked_ranks
):
    whole = reference_group(TWO)
    folder = stopped_run("stopped", TWO)
    saved = events(folder, CheckpointSaved)[-1]
    assert saved.reason == "stopped" and saved.step in (5, 6)
    other = RunFolder(shutil.copytree(folder.root, folder.root.with_name("other")))
    run = reopen_run(folder)
    assert run.plan.processes.value == 2 and not run.moved_words
    assert execute_run(run).exit_code == 0
    assert same(folder, whole)
    run = reopen_run(other, processes=1)
    assert "resuming with 1 process instead of 2" in run.moved_words
    assert execute_run(run).exit_code == 0 and len(forked_ranks.started) == 2
    assert losses(other) == pytest.approx(losses(whole), rel=1e-4)


def test_more_processes_than_rows_are_refused(tiny_config):
    with pytest.raises(ConfigError, match=r"is 5, but a step has 4 rows, and each process needs at least one"):
        estimated_plan(tiny_config("many", {"distributed.processes": 5}))


@pytest.mark.full
def test_the_readings_of_a_run_are_of_all_its_processes(tiny_run, forked_ranks):
    """The second process is no load of other programs."""
    often = "from tui_trainer.launching import gauge_writer as gauges; gauges.PERIOD_SECONDS = 0.05\n"
    often += "gauges.GaugeWriter.__init__.__kwdefaults__['period_seconds'] = 0.05\n"
    forked_ranks.prelude = lambda group, number: often
    folder, outcome = tiny_run("read", TWO | {"training.max_steps": 60})
    assert outcome.exit_code == 0
    readings = [event for event in events(folder, GaugesRead) if event.process_cpu_share is not None]
    # Both have loaded torch.
    used = max(reading.process_memory_bytes for reading in readings)
    assert used > 1.5 * min(event.resident_bytes for event in events(folder, LibrariesLoaded))


HOLDS = """
import os, sys
from pathlib import Path
from tui_trainer.launching.torchrun import hold_log
from tui_trainer.runs.folder import RunFolder
hold_log(RunFolder(Path(sys.argv[1])), int(sys.argv[2]))
os.write(int(sys.argv[3]), b"held")
sys.stdin.read()
"""


@pytest.mark.full
def test_a_process_that_does_not_end_is_killed_but_no_other_process_with_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(torchrun, "LEAVE_SECONDS", 0.2)
    folder, (hears, says) = RunFolder(tmp_path), os.pipe()
    folder.logs.mkdir()
    commands = [[sys.executable, "-c", HOLDS, tmp_path, str(n), str(says)] for n in range(2)]
    with ExitStack() as stack:
        processes = []
        for command in ([*commands[0], torchrun.RANK], commands[1]):
            processes.append(stack.enter_context(Popen(command, stdin=PIPE, pass_fds=[says])))
            stack.callback(processes[-1].kill)
        assert [os.read(hears, 4), os.read(hears, 4)] == [b"held"] * 2
        torchrun._wait_for_ends(folder, range(2))
        assert processes[0].wait() == -signal.SIGKILL
        assert processes[1].poll() is None
    os.close(hears)
    os.close(says)


@pytest.mark.full
@pytest.mark.parametrize(("is_full", "code"), [(False, 3), (True, 1)])
def test_a_stop_of_the_program_reaches_all_processes_without_a_file(is_full, code, tiny_run, forked_ranks, tmp_path):
    # A folder, because a process that may write no bytes can still make one.
    ready = tmp_path / "ready"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); " if is_full else ""
    prelude = at_step(4, f"{limit}os.mkdir({str(ready)!r})")
    forked_ranks.prelude = lambda group, number: "" if number else prelude

    def stop_when_it_trains(run):
        def stop():
            while not ready.exists():
                sleep(0.05)
            run.controls.stop()

        Thread(target=stop, daemon=True).start()

    changes = TWO | {"training.max_steps": 100_000, "checkpoint.save_steps": 100_000, "logging.logging_steps": 1}
    folder, outcome = tiny_run("stopped", changes, before=stop_when_it_trains)
    assert outcome.exit_code == code, outcome
    assert len(forked_ranks.started) == 1
    assert not [path for path in folder.root.rglob("*") if path.stat().st_mode & 0o077]
    if is_full:
        assert "could not be saved: " in outcome.failure and "File too large" in outcome.failure
        assert "There is no earlier checkpoint" in outcome.failure
    else:
        assert [event.action for event in events(folder, ControlApplied)] == ["stop"]
        assert events(folder, CheckpointSaved)[-1].reason == "stopped"


FULL = """
import os
from types import SimpleNamespace
from tui_trainer.runs import journal
writes = 0
def write(fd, data):
    global writes
    writes += 1
    if 5 <= writes <= 8:
        raise OSError(28, "No space left on device")
    return os.write(fd, data)
journal.os = SimpleNamespace(**{**vars(os), "write": write})
"""


@pytest.mark.full
def test_the_program_reports_that_the_first_process_cannot_write_the_journal(tiny_run, forked_ranks, monkeypatch):
    reported, fails = [], JournalWriter.set_other_writer_error

    def failing(journal, reason):
        fails(journal, reason)
        reported.append(journal.failure_reason)

    monkeypatch.setattr(JournalWriter, "set_other_writer_error", failing)
    forked_ranks.prelude = lambda group, number: "" if number else FULL
    folder, outcome = tiny_run("full", TWO)
    assert outcome.exit_code == 0
    # And nothing is lost once there is room again.
    assert reported == ["the disk is full (No space left on device)", None]
    assert sorted(losses(folder)) == list(range(1, 13))
