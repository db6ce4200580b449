"""The real program with the real torchrun: it ends well, leaves nobody behind, and hears Ctrl+C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import ClassVar

import psutil
import pytest

from tui_trainer.launching import torchrun, torchrun_agent
from tui_trainer.launching.torchrun_agent import main as agent
from tui_trainer.runs.events import StepDone
from tui_trainer.runs.journal import read_all

pytestmark = [pytest.mark.e2e]
SETTINGS = {
    "distributed.processes": 2,
    "data.max_length": 32,
    "model.scratch.hidden_size": 16,
    "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2,
    "training.effective_batch_size": 8,
    "checkpoint.save_steps": 5,
    "evaluation.eval_steps": 0,
    "evaluation.max_eval_rows": 8,
    "logging.sample_steps": 0,
}


# How long programs may take on a machine whose cores others use as well.
PATIENCE_SECONDS = 400.0


@pytest.fixture(autouse=True)
def nobody_stays_behind():
    """A test that fails leaves a run of 100,000 steps."""
    yield
    while Training.started:
        process = Training.started.pop()
        if process.poll() is None:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        process.wait()
        process.stdout.close()


class Training:
    """`tui-trainer --no-ui` in a process of its own."""

    started: ClassVar[list[subprocess.Popen]] = []

    def __init__(self, tmp_path, steps, name="group", changes=None):
        self.folder = tmp_path / "runs" / name
        settings = (
            SETTINGS
            | (changes or {})
            | {
                "training.max_steps": steps,
                "output.runs_dir": tmp_path / "runs",
                "output.name": name,
            }
        )
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "tui_trainer", "--no-ui", "--profile", "quickstart", *pairs]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(self.process)

    def steps(self):
        return [event.step for event in read_all(self.folder / "journal.jsonl") if isinstance(event, StepDone)]

    def wait_for_step(self, step):
        until = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and max(self.steps(), default=0) < step:
            assert time.monotonic() < until, f"step {step} did not come"
            time.sleep(0.05)
        assert self.process.poll() is None, self.process.stdout.read()

    def children(self):
        """(torchrun, the processes of the group)."""
        words = {}
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a zombie as well
                words[one] = one.cmdline()
        ranks = [one for one, line in words.items() if "tui_trainer.launching.rank_process" in line and "-u" in line]
        [started] = [one for one, line in words.items() if "tui_trainer.launching.torchrun_agent" in line]
        return started, ranks

    def end(self):
        output, _ = self.process.communicate(timeout=PATIENCE_SECONDS / 4)
        return self.process.returncode, output


def all_gone(processes):
    gone, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS / 4)
    return not alive and len(gone) == len(processes)


def test_nobody_is_waited_for_longer_than_ten_seconds():
    assert torchrun.AGENT_SECONDS + torchrun.LEAVE_SECONDS + torchrun.KILLED_SECONDS <= 10
    # torchrun kills those that do not leave before it is killed itself, and leaves them behind.
    assert torchrun_agent.SHUTDOWN_SECONDS < torchrun.AGENT_SECONDS


def test_whoever_is_killed_nobody_stays_behind(tmp_path):
    """It begins anew by itself after the newest checkpoint, until the program itself is killed."""
    training = Training(tmp_path, 100_000)
    step = 8
    for victim in ("agent", "process", "program"):
        training.wait_for_step(step)
        started, ranks = training.children()
        assert len(ranks) == 2
        {"program": training.process, "agent": started, "process": ranks[1]}[victim].kill()
        assert all_gone([started, *ranks]), victim
        step = max(training.steps()) + 5
    code, output = training.end()
    assert code == -signal.SIGKILL and output.count("all processes begin anew after step") == 2, output


def test_a_signal_to_all_processes_saves_first(tmp_path):
    """As when the machine shuts down, or a job is cancelled."""
    training = Training(tmp_path, 100_000, changes={"checkpoint.save_steps": 100_000})
    training.wait_for_step(3)
    started, ranks = training.children()
    for process in (*ranks, started, training.process):
        process.send_signal(signal.SIGTERM)
    code, output = training.end()
    assert code == 3 and "resume" in output, output
    assert all_gone([started, *ranks])
    assert (training.folder / "checkpoints" / f"step-{max(training.steps())}").is_dir()


def test_a_loader_worker_is_ended_by_its_process():
    """Whose own SIGTERM waits for a thread that a fork does not have."""
    lines = (
        "import os, signal, time",
        "from tui_trainer.launching.torchrun_agent import end_by_parent_only",
        "end_by_parent_only()",
        "worker = os.fork() or time.sleep(60)",
        "os.kill(worker, signal.SIGTERM)",
        "print(os.WTERMSIG(os.waitpid(worker, 0)[1]))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=50)
    assert done.stdout == f"{int(signal.SIGTERM)}\n", done.stderr


def test_ctrl_c_saves_once_and_ends_all(tmp_path):
    training = Training(tmp_path, 100_000)
    training.wait_for_step(3)
    started, ranks = training.children()
    training.process.send_signal(signal.SIGINT)
    code, output = training.end()
    assert code == 3 and "resume" in output, output
    assert all_gone([started, *ranks])
    newest = max(int(path.name.removeprefix("step-")) for path in (training.folder / "checkpoints").iterdir())
    assert newest == max(training.steps())


def test_the_agent_names_the_process_that_was_killed(tmp_path, capfd):
    """Not the ones that fail because they wait for it, nor those that it ends itself."""
    (tmp_path / "dying.py").write_text(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    assert agent(["--standalone", "--nproc-per-node=3", str(tmp_path / "dying.py")]) == 1
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == {"rank": 1, "exit_code": -signal.SIGKILL}
    assert os.environ.get("RANK") is None


class TwoNodes(Training):
    """A run of two nodes of one process on this machine, and `tui-trainer join` beside it."""

    def __init__(self, tmp_path, steps):
        several = {"distributed.nodes": 2, "distributed.processes": 1, "distributed.rendezvous": "127.0.0.1"}
        super().__init__(tmp_path, steps, "nodes", several)
        while not (self.folder / "config.toml").exists():
            assert self.process.poll() is None
            time.sleep(0.05)
        command = [sys.executable, "-m", "tui_trainer", "join", str(self.folder), "--node-rank", "1"]
        self.other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(self.other)

    def end_of_other(self):
        """Its exit code."""
        self.other.communicate(timeout=PATIENCE_SECONDS / 4)
        return self.other.returncode

    def processes(self):
        """Of each node: (torchrun, its process)."""
        here = self.process
        first = self.children()
        self.process = self.other
        second, self.process = self.children(), here
        return (first[0], *first[1]), (second[0], *second[1])


def test_two_nodes_end_as_one_with_two_processes(tmp_path):
    alone, nodes = Training(tmp_path, 40), TwoNodes(tmp_path, 40)
    code, output = alone.end()
    assert code == 0, output
    assert "torchrun --standalone --nproc-per-node=2 -m tui_trainer.launching.rank_process" in output
    assert " x 2 processes), " in output
    code, output = nodes.end()
    assert code == 0, output
    assert "--node-rank 1" in output and nodes.end_of_other() == 0
    assert sorted(alone.steps()) == list(range(1, 41)) and (alone.folder / "logs" / "rank-1.jsonl").exists()
    losses = [
        {event.step: event.loss_sum for event in read_all(one.folder / "journal.jsonl") if isinstance(event, StepDone)}
        for one in (alone, nodes)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 40


def test_the_kill_of_one_agent_ends_the_processes_of_both_nodes(tmp_path):
    training = TwoNodes(tmp_path, 100_000)
    step = 8
    for node in (0, 1):
        training.wait_for_step(step)
        groups = training.processes()
        assert [len(group) for group in groups] == [2, 2]
        groups[node][0].kill()
        assert all_gone([*groups[0], *groups[1]])
        step = max(training.steps()) + 5
    training.wait_for_step(step)
    groups = training.processes()
    # Of either node: the run is asked.
    training.other.send_signal(signal.SIGINT)
    code, output = training.end()
    assert code == 3 and training.end_of_other() == 3, output
    assert "torchrun has ended (SIGKILL)" in output and "torchrun has ended on node 1 (SIGKILL)" in output
    assert all_gone([*groups[0], *groups[1]])


def test_a_run_whose_first_program_is_killed_leaves_nobody_behind(tmp_path):
    training = TwoNodes(tmp_path, 100_000)
    training.wait_for_step(3)
    groups = training.processes()
    training.process.kill()
    assert all_gone([*groups[0], *groups[1]])
    assert training.end_of_other() == 1 and training.end()[0] == -signal.SIGKILL
