"""Tiny runs of every task, on rows of a few words and models of a few thousand weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import OpenRun, load_config, open_new

Row = dict[str, Any]
ANIMALS = ("sheep", "goat", "cow", "horse", "hen")


@dataclass(frozen=True)
class TaskCase:
    """A task on a family of models; empty: from scratch."""

    family: str
    row: Callable[[int, str], Row]
    settings: dict[str, Any] = field(default_factory=dict)


def _conversation(n: int, text: str) -> Row:
    turns = ("user", text.split(",")[0]), ("assistant", ANIMALS[n % 5])
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def _tagged(n: int, text: str) -> Row:
    words = text.split()
    return {"tokens": words, "ner_tags": ["B-A" if word[0].isdigit() else "O" for word in words]}


TASKS = {
    "causal_lm": TaskCase("llama", lambda n, text: {"text": text}),
    "chat": TaskCase("qwen2", _conversation, {"task.chat_template": "chatml"}),
    "preference": TaskCase(
        "qwen2", lambda n, text: {"prompt": text, "chosen": "yes it is" + " so" * (n % 3), "rejected": f"no {n}"},
        {"task.chat_template": "chatml"},
    ),
    "reward": TaskCase(
        "qwen2",
        lambda n, text: {"prompt": text, "chosen": "yes it is" + " so" * (n % 3), "rejected": f"no {n}", "margin": n},
        {"task.chat_template": "chatml"},
    ),
    "kto": TaskCase(
        "qwen2", lambda n, text: {"prompt": text, "completion": "yes it is" + " so" * (n % 3), "label": n % 2 == 0},
        {"task.chat_template": "chatml"},
    ),
    "char_lm": TaskCase(
        "",
        lambda n, text: {"text": text},
        {f"model.scratch.{key}": value for key, value in (
            ("hidden_size", 16), ("num_hidden_layers", 1), ("num_attention_heads", 2),
        )},
    ),
    "seq2seq": TaskCase(
        "bart",
        lambda n, text: {"input": text, "output": f"the {ANIMALS[n % 5]}"},
        {"task.max_target_length": 12, "evaluation.generate_rows": 1},
    ),
    "sequence_classification": TaskCase(
        "bert", lambda n, text: {"text": text, "label": ANIMALS[n % 3]}, {"task.class_weights": "balanced"}
    ),
    "question_answering": TaskCase(
        "bert", lambda n, text: {"question": f"who {n}?", "context": text, "answers": text.split()[n % 2]}
    ),
    "token_classification": TaskCase("bert", _tagged),
}  # fmt: skip
SETTINGS = {
    "model.kernels": "none",
    "data.max_length": 64,
    "data.eval_fraction": 0.2,
    "training.effective_batch_size": 4,
    "training.learning_rate": 0.001,
    "training.lr_scheduler_type": "constant",
    "training.max_steps": 2,
    "evaluation.eval_steps": 0,
    "evaluation.max_eval_rows": 4,
    "checkpoint.save_steps": 1,
    "logging.sample_steps": 0,
    "logging.logging_steps": 2,
    "dataloader.num_workers": 1,
}

# With a random state to restore.
DROPOUT = {
    "data.packing": "false",
    "tuning.lora_dropout": 0.3,
    "checkpoint.save_total_limit": 2,
}


def open_run(folder: Path, models: Path, task: str, settings: dict[str, Any], name: str = "run") -> OpenRun:
    """A run on the machine that this process believes in, ready to be carried out."""
    case = TASKS[task]
    data = folder / f"{task}.{'txt' if task == 'char_lm' else 'jsonl'}"
    if not data.exists():
        rows = [case.row(n, text) for n, text in enumerate(texts(20))]
        lines = [row["text"] for row in rows] if task == "char_lm" else [json.dumps(row) for row in rows]
        data.write_text("".join(f"{line}\n" for line in lines))
    whole = {**SETTINGS, "task.type": task, "data.path": data, "output.runs_dir": folder / "runs", "output.name": name}
    if case.family:
        model = models / case.family
        if not model.exists():
            save_tiny_model(model, case.family)
        whole["model.model_name_or_path"] = model
    whole |= {**case.settings, **settings}
    return open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in whole.items()))))


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def saved_tensors(folder, step):
    """Return the tensors of a checkpoint by file and name."""
    return {
        (path.name, name): tensor
        for path in sorted((folder.checkpoints / f"step-{step}").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def differing(one, other) -> list[tuple[str, str]]:
    """Return the names of the tensors that are not the same to the bit."""
    assert one.keys() == other.keys()
    return [key for key, tensor in one.items() if not tensor.equal(other[key])]
