"""Compare planned with peak memory, and planned with taken time, of whole runs on a CPU.

    python -m tests.benchmarks.recipes_memory [--set KEY=VALUE]... [--runs N] [NAME...]

NAMEs are recipes; without any, all that need no download, and `paragraphs`: the Llama of `scratch-llama` on the
paragraphs of Python's language reference, which are of varied lengths. Each runs N times in processes of its own. The
first has an empty state folder, so that nothing measured corrects its plan; the plan of the others is corrected. --set:
a setting of all of them, as `training.max_steps=40` where a whole run takes too long. char-lm and scratch-llama take
hours on a CPU, and run only if they are named.

The peak is what the process adds to what it has with its libraries, up to its end: evaluations, text samples,
checkpoints and the final model are part of it. The time is that of steps and evaluations, which a plan counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from subprocess import run

from tests.runs.journals import read_all
from tui_trainer.cli import main as tui_trainer
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.events import EvalDone, LibrariesLoaded, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.units import MIB

PARAGRAPHS = "paragraphs"
TOO_LONG = ("char-lm", "scratch-llama")
TOLERANCE = 0.10


class RunDidNotEndError(Exception):
    """A recipe failed, with the end of what it printed."""


def names_of_all() -> list[str]:
    """Recipes that make their model and their data here, and take minutes."""
    values = {name: profile.values for name, profile in all_profiles("recipes").items() if name not in TOO_LONG}
    own = [name for name, value in values.items() if value["data"].get("path", "").startswith("sample:")]
    return [*own, PARAGRAPHS]


def write_paragraphs(path: Path) -> None:
    """One row a paragraph."""
    texts = (" ".join(paragraph.split()) for topic in topics.values() for paragraph in topic.split("\n\n"))
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in dict.fromkeys(texts) if len(text) > 20))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run was planned with, and what it took."""

    planned_bytes: int
    peak_bytes: int
    planned_seconds: float
    seconds: float

    @property
    def memory_error(self) -> float:
        return self.planned_bytes / self.peak_bytes - 1

    @property
    def row(self) -> str:
        memory = f"{self.planned_bytes / MIB:7.0f} {self.peak_bytes / MIB:7.0f} {self.memory_error:+7.1%}"
        return f"{memory} | {self.planned_seconds:7.1f} {self.seconds:7.1f} {self.seconds / self.planned_seconds:7.2f}"


def measured(name: str, settings: list[str], place: Path) -> Measured:
    """Train a recipe once, with the state folder that lies in `place`."""
    words = ["--set", f"output.runs_dir={place}", "--set", "output.name=run"]
    words += [word for setting in settings for word in ("--set", setting)]
    if name == PARAGRAPHS:
        write_paragraphs(place / "paragraphs.jsonl")
        words += ["--profile", "scratch-llama", "--data", str(place / "paragraphs.jsonl")]
    else:
        words += ["--profile", name]
    variables = {**os.environ, "TUI_TRAINER_HOME": str(place / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.benchmarks.recipes_memory", "--child", *words]
    child = run(command, env=variables, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RunDidNotEndError(f"{name}: exit code {child.returncode}\n{child.stdout[-2000:]}{child.stderr[-2000:]}")
    folder = RunFolder(place / "run")
    events = list(read_all(folder.journal))
    before = next(event for event in events if isinstance(event, LibrariesLoaded))
    assert before.resident_bytes is not None, "a run on a CPU"
    plan = read_plan_file(folder.plan.read_bytes(), finished=True)
    steps = sum(event.step_seconds for event in events if isinstance(event, StepDone))
    shutil.rmtree(place / "run")
    return Measured(
        planned_bytes=plan.memory_bytes.value,
        peak_bytes=int(child.stdout.splitlines()[-1]) - before.resident_bytes,
        planned_seconds=plan.duration_seconds.value or math.nan,
        seconds=steps + sum(event.seconds for event in events if isinstance(event, EvalDone)),
    )


def train_and_print_peak(words: list[str]) -> None:
    """The last line is the peak of this process, which begins anew when its libraries are loaded."""
    code = tui_trainer(["train", "--no-ui", *words])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    sys.exit(code)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        train_and_print_peak(sys.argv[2:])
    options = argparse.ArgumentParser()
    options.add_argument("--set", action="append", default=[])
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("names", nargs="*")
    chosen = options.parse_args()
    names = chosen.names or names_of_all()
    print(f"{'':24}| MiB: planned, peak, error | seconds: planned, taken, ratio")
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            for number in range(1, chosen.runs + 1):
                try:
                    found = measured(name, chosen.set, Path(place))
                except RunDidNotEndError as error:
                    failed += 1
                    print(error, flush=True)
                    break
                failed += abs(found.memory_error) > TOLERANCE
                print(f"{f'{name}, run {number}':24}| {found.row}", flush=True)
    sys.exit(f"{failed} of {len(names) * chosen.runs} are not within {TOLERANCE:.0%} in memory" if failed else 0)


if __name__ == "__main__":
    main()
