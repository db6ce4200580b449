"""Kill a short run of each task's offline recipe with SIGKILL, resume it, compare the end to the bit.

    python tests/faults/kill_recipes.py

One process loads the libraries and forks a child for each run. A child runs the real command line, `--no-ui` and
`resume`; the kill comes right after an optimizer step, before anything of it is written. Compared are the final
weights, the optimizer state and the exported model.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.kill_sweep import in_child, kill_at_step, resume

RECIPES = (
    "quickstart", "chat-scratch", "docstring-topics", "python-entities", "signature-summaries", "python-questions",
)  # fmt: skip
STEPS, SAVE_STEPS, KILLED_AFTER = 9, 3, 5
SETTINGS = {
    "training.max_steps": STEPS,
    "evaluation.eval_steps": 4,
    "evaluation.max_eval_rows": 16,
    "evaluation.generate_rows": 2,
    "checkpoint.save_steps": SAVE_STEPS,
    "logging.sample_steps": 0,
}


def train(home: Path, recipe: str, name: str, before: Callable[[], None] = lambda: None) -> int:
    from tui_trainer.cli import main

    before()
    settings = {**SETTINGS, "output.runs_dir": home, "output.name": name}
    return main(["--no-ui", "--profile", recipe, *(f"--set={key}={value}" for key, value in settings.items())])


def hashes(run: Path) -> dict[str, str]:
    """Of every file with tensors that the end of a run left."""
    files = [*(run / "checkpoints" / f"step-{STEPS}").glob("*.safetensors"), *(run / "model").glob("*.safetensors")]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def compare(home: Path, recipe: str) -> str:
    """Why the killed and resumed run is not the uninterrupted one; empty when it is."""
    whole, killed = f"{recipe}-whole", f"{recipe}-killed"
    if code := in_child(lambda: train(home, recipe, whole)):
        return f"the uninterrupted run ended with {code}"
    code = in_child(lambda: train(home, recipe, killed, lambda: kill_at_step(KILLED_AFTER)))
    if code != -signal.SIGKILL:
        return f"the run ended with {code} instead of being killed"
    saved = [int(path.name.removeprefix("step-")) for path in (home / killed / "checkpoints").glob("step-*")]
    if not saved or max(saved) >= KILLED_AFTER:
        return f"the kill did not come between two checkpoints: {saved}"
    if code := in_child(lambda: resume(home, killed)):
        return f"the resume ended with {code}"
    wanted, found = hashes(home / whole), hashes(home / killed)
    if len(wanted) < 3:
        return f"only {', '.join(wanted)} was left to compare"
    different = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
    return f"{', '.join(different)} differ" if different else ""


def main() -> int:
    import peft  # noqa: F401  # what every child needs is loaded once
    import transformers  # noqa: F401

    import tui_trainer.training.run  # noqa: F401

    different = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUI_TRAINER_HOME"] = str(Path(folder) / "state")
        for recipe in RECIPES:
            why = compare(Path(folder), recipe)
            different += bool(why)
            print(f"{recipe:20} {why or 'equal to the bit after SIGKILL and resume'}", flush=True)
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
