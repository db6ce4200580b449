"""The real program with the real torchrun: it ends well, leaves nobody behind, and hears Ctrl+C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from tests.programs import start_program
from tests.runs.journals import read_all
from tui_trainer.launching.torchrun_agent import main as agent
from tui_trainer.runs.events import CheckpointSaved, StepDone

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
PATIENCE_SECONDS = 1500.0


@pytest.fixture(autouse=True)
def nobody_stays_behind():
    """A test that fails leaves a run of 100,000 steps."""
    yield
    while Started.all:
        process = Started.all.pop().process
        if process.poll() is None:
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    one.kill()


class Started:
    """A program, and what it prints."""

    all: ClassVar[list[Started]] = []

    def __init__(self, arguments, output):
        self.output = output
        with output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            self.process = start_program(arguments, files=[nothing.fileno(), file.fileno(), file.fileno()])
        self.all.append(self)

    def end(self):
        return self.process.wait(PATIENCE_SECONDS), self.output.read_text()

    def group(self):
        """(torchrun, its processes)."""
        words = {}
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a zombie as well
                words[one] = one.cmdline()
        ranks = [one for one, line in words.items() if "tui_trainer.launching.rank_process" in line and "-u" in line]
        [started] = [one for one, line in words.items() if "tui_trainer.launching.torchrun_agent" in line]
        return started, *ranks


class Training(Started):
    """`tui-trainer --no-ui`; the processes are torchrun's own."""

    def __init__(self, tmp_path, steps, name="group", changes=None):
        self.folder = tmp_path / "runs" / name
        own = {"training.max_steps": steps, "output.runs_dir": tmp_path / "runs", "output.name": name}
        settings = SETTINGS | (changes or {}) | own
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        super().__init__(["--no-ui", "--profile", "quickstart", *pairs], tmp_path / f"{name}.txt")

    def losses(self):
        found = read_all(self.folder / "journal.jsonl")
        return {event.step: event.loss_sum for event in found if isinstance(event, StepDone)}

    def wait_for_step(self, step):
        until = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and max(self.losses(), default=0) < step:
            assert time.monotonic() < until, f"step {step} did not come"
            time.sleep(0.05)
        assert self.process.poll() is None, self.output.read_text()

    def is_saved_once(self):
        """At its last step. It may have been stopped right after a save that was due, and saves nothing again then."""
        saves = [event.step for event in read_all(self.folder / "journal.jsonl") if isinstance(event, CheckpointSaved)]
        last = max(self.losses())
        return saves.count(last) == 1 and (self.folder / f"checkpoints/step-{last}").is_dir()


def all_gone(processes):
    gone, alive = psutil.wait_procs(processes, timeout=PATIENCE_SECONDS)
    return not alive and len(gone) == len(processes)


def test_a_killed_agent_leaves_nobody_behind_and_a_signal_to_all_processes_saves_first(tmp_path):
    """It begins anew by itself after the newest checkpoint. The signal is that of a shutdown, or of a cancelled job."""
    training = Training(tmp_path, 100_000)
    training.wait_for_step(8)
    group = training.group()
    assert len(group) == 3
    group[0].kill()
    assert all_gone(group)
    training.wait_for_step(max(training.losses()) + 5)
    group = training.group()
    for process in (*group[1:], group[0], training.process):
        process.send_signal(signal.SIGTERM)
    code, output = training.end()
    assert code == 3 and "resume" in output and output.count("all processes restart after step") == 1, output
    assert all_gone(group) and training.is_saved_once()


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
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=1500)
    assert done.stdout == f"{int(signal.SIGTERM)}\n", done.stderr


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

    def __init__(self, tmp_path, steps, changes=None):
        several = {"distributed.nodes": 2, "distributed.processes": 1, "distributed.rendezvous": "127.0.0.1"}
        super().__init__(tmp_path, steps, "nodes", (changes or {}) | several)
        while not (self.folder / "config.toml").exists():
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)
        self.other = Started(["join", str(self.folder), "--node-rank", "1"], tmp_path / "other.txt")

    def groups(self):
        return self.group(), self.other.group()


def test_two_nodes_learn_what_two_processes_do_and_end_where_the_first_program_is_killed(tmp_path):
    constant = {"training.lr_scheduler_type": "constant", "training.warmup_steps": 0}
    alone, nodes = Training(tmp_path, 20, changes=constant), TwoNodes(tmp_path, 100_000, changes=constant)
    code, output = alone.end()
    assert code == 0, output
    assert "torchrun --standalone --nproc-per-node=2 -m tui_trainer.launching.rank_process" in output
    assert " x 2 processes), " in output
    assert (alone.folder / "logs" / "rank-1.jsonl").exists()
    nodes.wait_for_step(20)
    groups = nodes.groups()
    nodes.process.kill()
    assert all_gone([*groups[0], *groups[1]])
    assert nodes.other.end()[0] == 1 and nodes.end()[0] == -signal.SIGKILL
    assert "--node-rank 1" in nodes.output.read_text()
    found = {step: loss for step, loss in nodes.losses().items() if step <= 20}
    assert alone.losses() == found and list(found) == list(range(1, 21))


def test_the_kill_of_one_agent_ends_the_processes_of_both_nodes_and_ctrl_c_of_either_saves(tmp_path):
    training = TwoNodes(tmp_path, 100_000)
    training.wait_for_step(8)
    groups = training.groups()
    assert [len(group) for group in groups] == [2, 2]
    groups[1][0].kill()
    assert all_gone([*groups[0], *groups[1]])
    training.wait_for_step(max(training.losses()) + 5)
    groups = training.groups()
    training.other.process.send_signal(signal.SIGINT)
    code, output = training.end()
    assert code == 3 and training.other.end()[0] == 3, output
    assert "torchrun ended on node 1 (SIGKILL)" in output and "resume" in output
    assert all_gone([*groups[0], *groups[1]]) and training.is_saved_once()
