"""What `python -m tests.gpu.day --dry` cannot show: calls that are cut short, settings only for a card, the report."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks import estimates, memory_grid_cases
from tests.gpu import day, report
from tests.gpu.experiments import EXPERIMENTS
from tests.gpu.results import FILE, append, read
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config


def test_a_call_goes_on_behind_a_torn_line_and_tries_last_what_failed(tmp_path):
    path = tmp_path / FILE
    names = [name for name, one in EXPERIMENTS.items() if one.call == 1]
    for name, state in zip(names, ("done", "failed", "started", "timeout"), strict=False):
        append(path, {"name": name, "state": state})
    path.write_bytes(path.read_bytes() + b'{"name": "torn')
    append(path, {"call": "1", "machine": {"dry": False, "card": {"name": "NVIDIA H200"}}})
    assert day.waiting(read(path), 1) == [*names[4:], names[2], names[1], names[3]]
    assert all(words in report.report(read(path)) for words in (f"- {names[1]}: failed", "NVIDIA H200"))
    report.written((day.ROOT / "tui_trainer/guides/gpu.md").read_text(encoding="utf-8"), "table")


def test_an_experiment_uses_settings_and_configurations_that_exist():
    for name, one in EXPERIMENTS.items():
        pairs = tuple(f"{key.replace('__', '.')}={value}" for key, value in one.settings.items())
        load_config(Request(assignments=pairs, profile="finetune"), gpu="none")
        kind, _, case = name.partition(": ")
        if cases := {"memory": memory_grid_cases.CASES, "time": estimates.CASES}.get(kind):
            assert sum(case in configuration.name for configuration in cases) == 1, name


# Starts a process in a session of its own; neither ends by SIGTERM. The name of a folder has their numbers.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
os.mkdir(f"PLACE/{os.getpid()}-{child}") if child else os.setsid()
time.sleep(600)
"""


def test_an_experiment_that_is_stopped_ends_with_all_that_it_started(tmp_path):
    options = f"--results {tmp_path / FILE} --work {tmp_path}/work --limit 600 --parent {os.getpid()} --".split()
    program = [sys.executable, "-c", STUBBORN.replace("PLACE", str(tmp_path))]
    keeper = subprocess.Popen([sys.executable, "-m", "tests.gpu.keeper", "x", *options, *program], cwd=day.ROOT)
    while not (started := list(tmp_path.glob("*-*"))) and keeper.poll() is None:
        time.sleep(0.02)
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait() == 0 and read(tmp_path / FILE).experiments["x"].state == "interrupted"
    assert not any(Path("/proc", number).exists() for number in started[0].name.split("-"))
