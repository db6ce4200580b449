"""Install the runs of an earlier version (`tests/fixtures/old_runs`) in a folder, and resume them.

Their files hold PLACE instead of paths. `tests/fixtures/make_old_runs.py` made them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

FIXTURE = Path(__file__).with_name("fixtures") / "old_runs"
RESUMED = FIXTURE / "resumed.json"
PLACE = b"@PLACE@"
TEXTS = {".json", ".jsonl", ".toml", ".md", ".jinja"}
STOPPED = ("full", "lora")


@dataclass(frozen=True, slots=True)
class Curve:
    """Training and held-out losses in nats per token and scores of a run, by step."""

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: dict[int, float] = field(default_factory=dict)
    scores: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Path) -> Curve:
        """Read a journal without the program. Steps after the one that a run was resumed from are dropped."""
        found = cls()
        for event in events(run):
            step = event["step"]
            if event["event"] == "RunStarted" and event.get("resumed_from_step") is not None:
                found = found.until(event["resumed_from_step"])
            elif event["event"] == "StepDone":
                found.losses[step] = event["loss_sum"] / event["tokens"]
            elif event["event"] == "EvalDone":
                found.evaluations[step], found.scores[step] = event["loss"], event["scores"]
        return found

    def until(self, last: int) -> Curve:
        return Curve(*({step: one for step, one in part.items() if step <= last} for part in self.parts))

    @property
    def parts(self) -> tuple[dict[int, Any], ...]:
        return self.losses, self.evaluations, self.scores

    def to_json(self) -> dict[str, Any]:
        return {"losses": self.losses, "evaluations": self.evaluations, "scores": self.scores}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Curve:
        return cls(
            *({int(step): one for step, one in found[name].items()} for name in ("losses", "evaluations", "scores"))
        )


def events(run: Path) -> Iterator[dict[str, Any]]:
    for line in (run / "journal.jsonl").read_text().splitlines():
        if line:
            yield json.loads(line)


def install(place: Path, fixture: Path = FIXTURE) -> Path:
    """Copy the fixture to `place` as the program would have left it there, and return the folder of its runs.

    The home of the program is then `place/home`.
    """
    shutil.copytree(fixture, place, dirs_exist_ok=True)
    _replace(place, PLACE, str(place).encode())
    for run in (place / "runs").iterdir():
        for folder in ("logs", "checkpoints"):  # git keeps no empty folder
            (run / folder).mkdir(exist_ok=True)
    return place / "runs"


def lift(place: Path) -> None:
    """Turn a folder that programs ran in into a fixture."""
    _replace(place, str(place).encode(), PLACE)


def _replace(place: Path, old: bytes, new: bytes) -> None:
    for path in place.rglob("*"):
        if path.suffix in TEXTS and path.is_file() and old in (content := path.read_bytes()):
            path.write_bytes(content.replace(old, new))
    for manifest in place.glob("runs/*/checkpoints/*/manifest.json"):
        found = json.loads(manifest.read_bytes())
        for name in found["files"]:
            content = (manifest.parent / name).read_bytes()
            found["files"][name] = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128(content).hexdigest()}
        manifest.write_text(json.dumps(found, indent=1))


def program(checkout: Path, place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the program of a checkout with its own environment in `place`, on one thread."""
    python = checkout / ".venv" / "bin" / "python"
    environment = {
        **os.environ,
        "TUI_TRAINER_HOME": str(place / "home"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "COLUMNS": "120",
    }
    command = [str(python), "-P", "-m", "tui_trainer", *arguments]
    return subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL)


def resume(checkout: Path, place: Path, name: str) -> Curve:
    """Resume an installed run to its end by the program of a checkout."""
    run = place / "runs" / name
    code = program(checkout, place, "resume", str(run), "--no-ui").wait(1500)
    assert code == 0, f"{name} ended with code {code} in {checkout}"
    return Curve.of(run)
