"""Two nodes on one machine learn what one does with as many processes; one that is missing or dies is told."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep

import pytest

from tests.distributed.outcomes import DIES, STOPS, at_step, events, same
from tui_trainer.cli import main
from tui_trainer.errors import ConfigError, InputError, RunError
from tui_trainer.launching import torchrun as rendezvous
from tui_trainer.launching.fitted_presets import with_nodes_of_step
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.launching.torchrun import join
from tui_trainer.runs import controls
from tui_trainer.runs.events import ControlApplied, PlanMade, RunProblem

NODES = {
    "distributed.nodes": 2,
    "distributed.rendezvous": "127.0.0.1",
    "training.max_steps": 12,
    "checkpoint.save_steps": 4,
}
ONE = {"distributed.processes": 2, "training.max_steps": 12, "checkpoint.save_steps": 4}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rendezvous, "POLL_SECONDS", 0.05)


@pytest.fixture
def on_two_nodes(tiny_config):
    """Both in this process: `(folder, outcome of the first node, exit code of the other)`."""

    def carry(name, changes=NODES, *, stop=False):
        """`stop`: the other node is told to, and can write no file."""
        run = open_new(tiny_config(name, changes))
        told = Event()
        if stop:
            told.set()
        with ThreadPoolExecutor(1) as other:
            joined = other.submit(join, run.folder, 1, lambda *_: None, told)
            outcome = execute_run(run)
            return run.folder, outcome, joined.result(120)

    return carry


@pytest.mark.full
def test_two_nodes_learn_what_one_does_also_when_a_process_of_the_other_is_killed(
    reference_group, on_two_nodes, forked_ranks
):
    alone = reference_group(ONE)
    folder, outcome, code = on_two_nodes("nodes")
    assert (outcome.exit_code, code) == (0, 0), (outcome, *(path.read_text() for path in folder.logs.glob("*.txt")))
    assert same(folder, alone)
    assert (folder.logs / "rank-1.jsonl").exists() and not (folder.logs / "rank-0.jsonl").exists()
    [made] = events(folder, PlanMade)
    assert made.processes == 2
    assert made.command == f"1 process here; on node 1, run `tui-trainer join {folder.root} --node-rank 1`"

    kills = [at_step(6, DIES)]
    forked_ranks.prelude = lambda group, rank: kills.pop() if rank == 1 and kills else ""
    folder, outcome, code = on_two_nodes("killed")
    assert (outcome.exit_code, code) == (0, 0), (outcome, *(path.read_text() for path in folder.logs.glob("*.txt")))
    [problem] = events(folder, RunProblem)
    assert "process 1 ended (SIGKILL)" in problem.message and problem.step == 4
    assert same(folder, alone)


@pytest.mark.full
def test_a_stop_of_the_other_node_needs_no_file(on_two_nodes, forked_ranks):
    folder, outcome, code = on_two_nodes("stopped", NODES | {"training.max_steps": 100_000}, stop=True)
    assert (outcome.exit_code, code) == (3, 3), outcome
    [applied] = events(folder, ControlApplied)
    assert applied.action == "stop"


@pytest.mark.full
def test_a_node_that_does_not_come_ends_the_run_with_its_number(tiny_config, forked_ranks, monkeypatch):
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.2)
    run = open_new(tiny_config("alone", NODES))
    outcome = execute_run(run)
    assert outcome.exit_code == 1 and forked_ranks.started == []
    assert "node 1 of 2 (counted from 0) did not join within" in outcome.failure
    assert f"tui-trainer join {run.folder.root} --node-rank 1" in outcome.failure


@pytest.mark.full
def test_a_run_that_waits_for_a_node_can_be_stopped(tiny_config, forked_ranks):
    run = open_new(tiny_config("alone", NODES))
    with ThreadPoolExecutor(1) as other:
        done = other.submit(execute_run, run)
        while not rendezvous.Assignment.path(run.folder).exists() and not done.done():
            sleep(0.01)
        controls.request(run.folder.control, "stop")
        assert done.result(120).exit_code == 3


@pytest.mark.full
def test_a_node_ends_where_the_first_one_does_not_begin(tiny_config, monkeypatch):
    run = open_new(tiny_config("none", NODES))
    run.lock.release()
    # What an earlier start has left is nobody's.
    rendezvous.Assignment(checkpoint=None, last_earlier_id=0, baselines=None, attempt="a", starter="b").write(
        run.folder
    )
    monkeypatch.setattr(rendezvous, "WAIT_SECONDS", 0.2)
    with pytest.raises(RunError, match="the first node has not started the run: node 1 has waited for"):
        join(run.folder, 1, lambda *_: None, Event())


@pytest.mark.full
def test_a_node_that_cannot_take_part_ends_the_run_with_its_reason(tiny_config, forked_ranks):
    run = open_new(tiny_config("third", NODES))
    with ThreadPoolExecutor(2) as pool:
        carried, joined = pool.submit(execute_run, run), pool.submit(join, run.folder, 2, lambda *_: None, Event())
        with pytest.raises(InputError, match="node 2: nodes are counted from 0, and this run has 2 nodes"):
            joined.result(120)
        told = {"attempt": rendezvous.Assignment.read(run.folder).attempt, "problem": "no data here"}
        rendezvous.report_node(run.folder, 1, **told)
        outcome = carried.result(120)
    assert outcome.exit_code == 1 and "cannot join: no data here" in outcome.failure


@pytest.mark.full
def test_a_port_in_use_is_refused(tiny_config, forked_ranks):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = execute_run(open_new(tiny_config("taken", NODES | {"distributed.rendezvous": f":{port}"})))
    assert outcome.exit_code == 2
    [problem] = outcome.problems
    assert f"port {port} of this node cannot be used: Address already in use" in str(problem)


def test_an_address_that_is_none_is_refused(tiny_config, subtests):
    for address in ("a b", "host:0", "host:70000", "host:port", "a:1:2"):
        with subtests.test(address), pytest.raises(ConfigError, match=r"distributed\.rendezvous"):
            tiny_config("bad", {"distributed.rendezvous": address})


def test_more_nodes_than_rows_are_refused(tiny_config):
    with pytest.raises(ConfigError, match=r"is 5, which makes 5 processes, but a step has 4 rows"):
        estimated_plan(tiny_config("many", {"distributed.nodes": 5}))


def test_the_plan_counts_all_processes_and_shares_a_machine_among_its_own(tiny_config, capsys):
    one, two = (estimated_plan(tiny_config("a", {"distributed.nodes": nodes})) for nodes in (1, 2))
    assert (two.processes.value, two.nodes, two.processes_per_node) == (2, 2, 1)
    assert two.threads.value == one.threads.value
    assert two.processes.reason.startswith("2 nodes (from --set) with 1 process")
    assert two.gradient_accumulation_steps.value * two.per_device_train_batch_size.value * 2 >= 4


@pytest.mark.full
def test_a_run_of_two_nodes_goes_on_on_one(on_two_nodes, forked_ranks):
    forked_ranks.prelude = lambda group, rank: STOPS if group < 2 else ""
    folder, outcome, code = on_two_nodes("stopped")
    assert (outcome.exit_code, code) == (3, 3)
    again = reopen_run(folder, nodes=1, processes=2)
    assert again.plan.nodes == 1 and again.plan.processes.value == 2 and "1 node instead of 2" in again.moved_words
    assert execute_run(again).exit_code == 0


def test_a_step_of_slurm_says_how_many_nodes_there_are(tiny_config, monkeypatch):
    loaded = tiny_config("a")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert with_nodes_of_step(loaded) is loaded
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "3")
    found = with_nodes_of_step(loaded)
    assert found.config.distributed.nodes == 3 and "this Slurm step has 3 nodes" in found.notes[-1]
    with pytest.raises(ConfigError, match="is 2, but this Slurm step has 3 nodes"):
        tiny_config("b", {"distributed.nodes": 2})
    monkeypatch.setenv("SLURM_LOCALID", "1")
    with pytest.raises(InputError, match="several tasks on this node"):
        tiny_config("c")


def test_joining_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["join", str(tmp_path), "--node-rank", "1"]) == 2
    told = capsys.readouterr().err
    assert f"not the folder of a run: {tmp_path}; " in told
