"""Planned and peak memory of whole runs on a CPU.

    python -m tests.benchmarks.recipes_memory [--set KEY=VALUE]... [NAME...]

NAMEs are recipes; without any, all that need no download, and `paragraphs`: the Llama of `scratch-llama` on the
paragraphs of Python's language reference, which are of varied lengths. Each runs in a process of its own with an empty
state folder, so that no measured peak corrects its plan. --set: a setting of all of them, as `training.max_steps=40`
where a whole run takes too long (char-lm takes hours on a CPU, and is left out unless it is named).

The peak is what the process adds to what it has with its libraries, up to its end: evaluations, text samples,
checkpoints and the final model are part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from subprocess import run

from tui_trainer.cli import main as tui_trainer
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.events import LibrariesLoaded
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import read_all
from tui_trainer.units import MIB

PARAGRAPHS = "paragraphs"
TOO_LONG = ("char-lm",)
TOLERANCE = 0.10


class RunDidNotEndError(Exception):
    """A recipe failed, with the end of what it printed."""


def names_of_all() -> list[str]:
    """Recipes that make their model and their data here, and take minutes."""
    values = {name: profile.values for name, profile in all_profiles("recipes").items() if name not in TOO_LONG}
    makes_model = [n for n, v in values.items() if v.get("model.init") == "scratch" or v.get("task.type") == "char_lm"]
    return [name for name in makes_model if values[name].get("data.path", "").startswith("sample:")] + [PARAGRAPHS]


def write_paragraphs(path: Path) -> None:
    """One row a paragraph."""
    texts = (" ".join(paragraph.split()) for topic in topics.values() for paragraph in topic.split("\n\n"))
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in dict.fromkeys(texts) if len(text) > 20))


def planned_and_peak_bytes(name: str, settings: list[str], place: Path) -> tuple[int, int]:
    """Bytes that one whole run of a recipe was planned with, and that it took."""
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
    before = next(event for event in read_all(folder.journal) if isinstance(event, LibrariesLoaded))
    assert before.resident_bytes is not None, "a run on a CPU"
    peak = int(child.stdout.splitlines()[-1]) - before.resident_bytes
    return read_plan_file(folder.plan.read_bytes(), finished=True).memory_bytes.value, peak


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
    options.add_argument("names", nargs="*")
    chosen = options.parse_args()
    names = chosen.names or names_of_all()
    print(f"{'MiB':24}| planned    peak   error")
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            try:
                planned, peak = planned_and_peak_bytes(name, chosen.set, Path(place))
            except RunDidNotEndError as error:
                failed += 1
                print(error, flush=True)
                continue
        difference = planned / peak - 1
        failed += abs(difference) > TOLERANCE
        print(f"{name:24}| {planned / MIB:7.0f} {peak / MIB:7.0f} {difference:+7.1%}", flush=True)
    sys.exit(f"{failed} of {len(names)} are not within {TOLERANCE:.0%}" if failed else 0)


if __name__ == "__main__":
    main()
