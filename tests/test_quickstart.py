"""The first commands of a new user: the quickstart recipe without arguments, and a text of its model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tui_trainer.cli import main

# A third of the recipe's steps and half of its layers: enough to beat the bigram model.
STEPS = 170
SHORT = [f"training.max_steps={STEPS}", "model.scratch.num_hidden_layers=2", "evaluation.eval_steps=0",
         "logging.sample_steps=0"]  # fmt: skip


def test_quickstart_trains_and_writes_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2")
    settings = ["training.max_steps=3", "evaluation.max_eval_rows=8", *(f"model.scratch.{size}" for size in sizes)]
    assert main(["--no-ui", "--json", *(word for setting in settings for word in ("--set", setting))]) == 0
    check_journal(capsys.readouterr().out, 3)
    assert len(list((tmp_path / "runs").glob("quickstart-*/model/model.safetensors"))) == 1
    assert main(["generate", "last", "The ", "--max-new-tokens", "40"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The ") and len(text) > len("The \n")


def check_journal(printed: str, steps: int) -> tuple[float, float]:
    """Check the printed events of a whole run, and return its held-out loss and that of the bigram model."""
    events = [json.loads(line) for line in printed.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "RunStarted" and kinds[-1] == "RunFinished" and kinds.count("StepDone") == steps
    return events[-1]["eval_loss"], events[kinds.index("BaselinesMeasured")]["losses"]["bigram baseline"]


def without_network() -> list[str]:
    """Return the words that cut off the network for a command, if this machine allows it."""
    unshare = shutil.which("unshare")
    allowed = unshare and subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode == 0
    return [unshare, "-rn"] if unshare and allowed else []


@pytest.mark.e2e
def test_quickstart_beats_a_bigram_model_without_a_network(tmp_path: Path):
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}

    def run(*words: str) -> str:
        command = [*without_network(), sys.executable, "-m", "tui_trainer", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    loss, bigram_loss = check_journal(
        run("--no-ui", "--json", *(part for one in SHORT for part in ("--set", one))), STEPS
    )
    assert loss < bigram_loss
    (model,) = (tmp_path / "runs").glob("quickstart-*/model/model.safetensors")
    assert model.stat().st_size > 1_000_000
    text = run("generate", "last", "The ", "--max-new-tokens", "40")
    assert text.startswith("The ") and len(text) > 30
