"""The real program with the real torchrun: it ends well, leaves nobody behind, and hears Ctrl+C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

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


class Training:
    """`tui-trainer --no-ui` in a process of its own."""

    def __init__(self, tmp_path, steps):
        self.folder = tmp_path / "runs" / "group"
        settings = SETTINGS | {
            "training.max_steps": steps,
            "output.runs_dir": tmp_path / "runs",
            "output.name": "group",
        }
        pairs = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "tui_trainer", "--no-ui", "--profile", "quickstart", *pairs]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def steps(self):
        return [event.step for event in read_all(self.folder / "journal.jsonl") if isinstance(event, StepDone)]

    def wait_for_step(self, step):
        for _ in range(2400):
            if self.process.poll() is not None or max(self.steps(), default=0) >= step:
                break
            time.sleep(0.05)
        assert self.process.poll() is None, self.process.stdout.read()

    def children(self):
        """(torchrun, the processes of the group)."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        by_name = {name: [one for one in found if name in one.cmdline()] for name in
                   ("tui_trainer.launching.torchrun_agent", "tui_trainer.launching.rank_process")}  # fmt: skip
        ranks = [one for one in by_name["tui_trainer.launching.rank_process"] if "-u" in one.cmdline()]
        [started] = [one for one in by_name["tui_trainer.launching.torchrun_agent"]]
        return started, ranks

    def end(self):
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


def all_gone(processes, seconds=10):
    gone, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive and len(gone) == len(processes)


def test_it_trains_to_the_end_and_says_how_it_was_started(tmp_path):
    training = Training(tmp_path, 10)
    code, output = training.end()
    assert code == 0, output
    assert "torchrun --standalone --nproc-per-node=2 -m tui_trainer.launching.rank_process" in output
    assert "in each of 2 processes" in output
    assert sorted(training.steps()) == list(range(1, 11))
    assert (training.folder / "logs" / "rank-1.jsonl").exists()


@pytest.mark.parametrize("victim", ["program", "agent", "process"])
def test_whoever_is_killed_nobody_stays_behind(tmp_path, victim):
    training = Training(tmp_path, 100_000)
    training.wait_for_step(8)
    started, ranks = training.children()
    assert len(ranks) == 2
    if victim == "program":
        training.process.kill()
        assert all_gone([started, *ranks])
        assert training.end()[0] == -signal.SIGKILL
        return
    (started if victim == "agent" else ranks[1]).kill()
    assert all_gone([started, *ranks])
    # It begins anew by itself, after the newest checkpoint.
    before = max(training.steps())
    training.wait_for_step(before + 5)
    started, ranks = training.children()
    training.process.send_signal(signal.SIGINT)
    code, output = training.end()
    assert code == 3, output
    assert "all processes begin anew after step" in output
    assert all_gone([started, *ranks])


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
