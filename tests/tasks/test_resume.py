"""A run of every task that is resumed from a checkpoint ends with the bytes of a run that was never stopped.

How a run survives SIGKILL is tested in `tests/test_causal_lm.py` and `tests/faults`. Tasks differ in data, loss
and model.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.combinations import first_by_default
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import EvalDone, RunStarted, StepDone

SETTINGS = {
    "model.init": "scratch",
    "model.scratch.hidden_size": 16,
    "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2,
    "model.scratch.vocab_size": 300,
    # A resumed run has to continue its random numbers.
    "model.scratch.attention_dropout": 0.2,
    "data.max_length": 24,
    "data.eval_fraction": 0.2,
    "training.effective_batch_size": 4,
    "training.learning_rate": 0.01,
    "training.max_steps": 8,
    "evaluation.eval_steps": 4,
    "evaluation.generate_rows": 2,
    "checkpoint.save_steps": 4,
    "logging.sample_steps": 3,
}


@dataclass(frozen=True)
class Case:
    """A task on a few rows."""

    task: str
    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    """Family of the model that the run starts from; empty: random weights."""


CASES = [
    Case(
        "chat",
        [
            {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n % 5}!"}]}
            for n in range(40)
        ],
        {"data.packing": "true"},
    ),
    Case(
        "seq2seq",
        [{"input": f"{n} and {n % 5}", "output": f"makes {n + n % 5}"} for n in range(40)],
        {"task.max_target_length": 12, "training.label_smoothing_factor": 0.1},
    ),
    Case(
        "sequence_classification",
        [{"text": f"{n} and {n % 5} of them", "label": ["few", "some", "many"][n % 3]} for n in range(40)],
        {"task.class_weights": "balanced", "training.label_smoothing_factor": 0.1, "tuning.method": "full"},
    ),
    Case(
        "question_answering",
        [
            {"question": f"{n}?", "context": f"hens {n} and {n + 1} and cows {n}", "answers": [f"cows {n}"][: n % 4]}
            for n in range(40)
        ],
        {"evaluation.metric_for_best_model": "f1", "task.doc_stride": 4},
    ),
    Case(
        "token_classification",
        [
            {"tokens": [f"{n}", "in", f"{n % 7}", f"{n % 3}"], "ner_tags": ["B-A", "O", "B-B", ["I-B", "O"][n % 2]]}
            for n in range(40)
        ],
        {
            "training.label_smoothing_factor": 0.1,
            "evaluation.metric_for_best_model": "f1",
            "task.class_weights": "balanced",
        },
    ),
    Case(
        "reward",
        [
            {"prompt": f"{n}?", "chosen": f"{n % 5}" * (1 + n % 2), "rejected": f"no {n}", "margin": n % 3}
            for n in range(40)
        ],
        {
            "task.chat_template": "chatml", "tuning.method": "lora", "tuning.lora_dropout": 0.2, "data.max_length": 96,
            "evaluation.metric_for_best_model": "accuracy",
        },
        family="llama",
    ),
    Case(
        "preference",
        [{"prompt": f"{n}?", "chosen": f"{n % 5}!", "rejected": f"{n % 5} or {n}"} for n in range(40)],
        {"data.packing": "true", "data.max_length": 40, "task.sft_weight": 0.5},
    ),
    Case(
        "kto",
        [{"prompt": f"{n}?", "completion": f"{n % 5}!", "label": n % 2 == 0} for n in range(40)],
        {"data.packing": "true", "data.max_length": 40},
    ),
]  # fmt: skip


def hashes(folder: Path) -> dict[str, str]:
    weights = sorted(folder.glob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in weights}


@pytest.mark.parametrize("case", first_by_default(CASES), ids=lambda case: case.task)
def test_a_resumed_run_ends_with_the_same_bytes(case, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    settings = {**SETTINGS, "task.type": case.task, "data.path": data, "output.runs_dir": tmp_path / "runs"}
    settings |= {"output.name": "run", **case.settings}
    if case.family:
        model_folder = save_tiny_model(tmp_path / case.family, case.family)
        settings |= {"model.init": "pretrained", "model.model_name_or_path": model_folder}
    run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    assert execute_run(run).exit_code == 0
    model, last = run.folder.model, run.folder.checkpoints / "step-8"
    wanted, checkpoint = hashes(model), hashes(last)
    assert wanted and checkpoint
    first_half = read_all(run.folder.journal)
    for folder in (model, last):
        shutil.rmtree(folder)
    assert execute_run(reopen_run(run.folder)).exit_code == 0
    assert hashes(model) == wanted
    assert hashes(last) == checkpoint
    again = list(read_all(run.folder.journal))[len(list(first_half)) :]
    assert [event.resumed_from_step for event in again if isinstance(event, RunStarted)] == [4]
    assert [event.step for event in again if isinstance(event, StepDone)] == [5, 6, 7, 8]
    before, after = (
        [(event.loss, event.scores) for event in part if isinstance(event, EvalDone) and event.step == 8]
        for part in (first_half, again)
    )
    assert before == after and len(after) == 1
