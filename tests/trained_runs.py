"""Tiny finished runs of every task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import OpenRun, load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.folder import RunFolder
from tui_trainer.training.session import Session

ANIMALS = ("sheep", "hen", "cow", "horse")
SETTINGS = {
    "model.init": "scratch", "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2, "model.scratch.vocab_size": 300, "data.max_length": 48,
    "data.eval_fraction": 0.25, "training.effective_batch_size": 8, "training.learning_rate": 0.02,
    "training.max_steps": 30, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0, "logging.sample_steps": 0,
}  # fmt: skip


def words(n: int) -> list[str]:
    return ["The", ANIMALS[n % 4], *["runs"] * (n % 7), "home", f"{n}"]


def training_row(task: str, n: int) -> dict[str, Any]:
    text, animal = " ".join(words(n)), ANIMALS[n % 4]
    match task:
        case "sequence_classification":
            return {"text": text, "label": animal}
        case "token_classification":
            return {"tokens": words(n), "ner_tags": ["O", f"B-{animal.upper()}", *["O"] * (len(words(n)) - 2)]}
        case "seq2seq":
            return {"input": text, "output": animal}
        case "chat":
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": animal}]
            return {"messages": turns}
        case "reward":
            rejected = f"{ANIMALS[(n + 1 + n % 2) % 4]} {'sleeps ' * (n % 3)}"
            return {"prompt": text, "chosen": animal, "rejected": rejected, "margin": n % 3}
    return {"text": text}


def asked_row(task: str, n: int) -> dict[str, Any]:
    """Return a row to predict: without labels and outputs, and with an id."""
    row = training_row(task, n)
    left = {name: value for name, value in row.items() if name not in ("label", "ner_tags", "output")}
    return {"id": n, **left}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def begin(place: Path, task: str, changes: Mapping[str, Any] | None = None) -> OpenRun:
    """Open a run named after its task, on 60 rows."""
    data = write_rows(place / f"{task}.jsonl", [training_row(task, n) for n in range(60)])
    settings = {
        **SETTINGS,
        "task.type": task,
        "output.runs_dir": place / "runs",
        "output.name": task,
        **(changes or {}),
    }
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    return open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(data)})))


def train(place: Path, task: str, changes: Mapping[str, Any] | None = None) -> RunFolder:
    """Train a run named after its task, and return its folder."""
    run = begin(place, task, changes)
    assert execute_run(run).exit_code == 0
    return run.folder


def stopping_after(last: int) -> Callable[[Session, int], None]:
    """Return a replacement of `Session.take_step` that asks the run to stop after a step, as another process would."""
    take = Session.take_step

    def take_and_ask(self: Session, step: int) -> None:
        take(self, step)
        if step == last:
            controls.request(self.job.folder.control, "stop")

    return take_and_ask
