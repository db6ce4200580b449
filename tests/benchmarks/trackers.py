"""Seconds of a step with all four trackers and without, in runs that take turns, and whether their losses are equal.

    uv run --with tensorboard --with wandb --with mlflow --with trackio python -m tests.benchmarks.trackers

There is no network for them: wandb writes for later, and mlflow is sent to an address where nobody answers, so that it
fails at every call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.runs.journals import read_all
from tui_trainer.runs.events import StepDone

TRACKERS = ["tensorboard", "wandb", "mlflow", "trackio"]


def steps_of(place: Path, name: str, trackers: list[str], steps: int) -> tuple[list[float], list[float]]:
    """(seconds, losses) of the steps of one run."""
    settings = {
        "training.max_steps": steps, "logging.report_to": json.dumps(trackers), "output.runs_dir": place / "runs",
        "output.name": name, "logging.sample_steps": 0,
    }  # fmt: skip
    pairs = (part for key, value in settings.items() for part in ("--set", f"{key}={value}"))
    command = [sys.executable, "-m", "tui_trainer", "--no-ui", "--profile", "quickstart", *pairs]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found = [event for event in read_all(place / "runs" / name / "journal.jsonl") if isinstance(event, StepDone)]
    return [event.step_seconds for event in found], [event.loss_sum for event in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["TUI_TRAINER_HOME"] = str(place / "home")
        for turn in range(chosen.rounds):
            for name, trackers in (("without", []), ("with", TRACKERS)):
                times, found = steps_of(place, f"{name}-{turn}", trackers, chosen.steps)
                seconds[name].append(median(times))
                losses.append(found)
                print(f"{name:<8} {1e3 * seconds[name][-1]:.2f} ms a step", flush=True)
    ratios = sorted(after / before for before, after in zip(seconds["without"], seconds["with"], strict=True))
    print(f"with / without: median {median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}; ", end="")
    print("losses equal" if all(one == losses[0] for one in losses) else "LOSSES DIFFER")


if __name__ == "__main__":
    main()
