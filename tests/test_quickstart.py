"""The first thing that a new user does, as a process of its own and without a network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A third of the recipe's steps: enough to beat the bigram model, and the test stays within a minute or two.
STEPS = 170


def without_network() -> list[str]:
    """The words that cut the network off for a command, where this machine allows it."""
    unshare = shutil.which("unshare")
    allowed = unshare and subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode == 0
    return [unshare, "-rn"] if unshare and allowed else []


@pytest.mark.e2e
def test_the_quickstart_learns_more_than_a_bigram_model_without_a_network(private_home: Path, tmp_path: Path):
    command = [sys.executable, "-m", "tui_trainer", "--no-ui", "--json", "--set", f"training.max_steps={STEPS}"]
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [*without_network(), *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "RunStarted"
    assert kinds.count("StepDone") == STEPS
    finished, baselines = events[-1], next(event for event in events if event["event"] == "BaselinesMeasured")
    assert finished["event"] == "RunFinished"
    assert finished["eval_loss"] < baselines["losses"]["counting 1 back"]
    (model,) = (tmp_path / "runs").glob("quickstart-*/model/model.safetensors")

    tried = subprocess.run(
        [*without_network(), sys.executable, "-m", "tui_trainer", "generate", "last", "The ", "--max-new-tokens", "40"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.startswith("The ")
    assert len(tried.stdout) > 30
    assert model.stat().st_size > 1_000_000
