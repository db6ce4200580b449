"""Every way of training on a simulated card: two steps, an evaluation and checkpoints through a run's own doors.

Where the host may wait for the card is listed here, line by line; wherever else it does, the test names the place.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from tests.combinations import each_pair_once
from tests.simulated_card.cases import TASKS, open_run
from tests.simulated_card.kernels import VARLEN, VARLEN_BACKWARD
from tests.simulated_card.machine import simulated_card
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.prepare import read_plan
from tui_trainer.optimizers import OPTIMIZERS
from tui_trainer.runs.events import CheckpointSaved, EvalDone, RunProblem, StepDone
from tui_trainer.runs.journal import read_all
from tui_trainer.training import varlen

METHODS = ("full", "lora", "qlora")
PRECISIONS = ("bf16", "fp16", "fp32")
LAYOUTS = ("by lengths", "by mask", "padded")
SWITCHES = {
    "one pass": {"training.per_device_train_batch_size": 4},
    "accumulation": {"training.per_device_train_batch_size": 2},
    "checkpointing": {"training.gradient_checkpointing": "true"},
    "chunked loss": {"training.loss_chunk_tokens": 8},
}
PACKED_TASKS, CHUNKED_TASKS = ("causal_lm", "chat"), ("causal_lm", "chat", "char_lm", "seq2seq")
# The problems that are none here: parts of a model that are new, which a classifier's head is.
EXPECTED_PROBLEMS = {"new weights"}

# Phase and function: how often the host waits there. Everything else may not wait.
ONCE_A_STEP = {("update", "training/optimizer.py _step"): "optimizers without a fused kernel ask whether to step"}
ONCE_A_GROUP = {("log", "training/recorder.py flush"): "losses and gradient norms of the steps that wait, in one copy"}
ONCE_AN_EVALUATION = {
    ("evaluation", "training/evaluate.py evaluate"): "the sum of the loss",
    ("evaluation", "tasks/sequence_classification.py scores"): "labels and predictions of all rows",
}
OTHERWISE = {
    ("update", "training/optimizer.py _step"): "bitsandbytes waits after each parameter",
    ("evaluation", "tasks/token_classification.py scores"): "labels, predictions and rows of each batch, at the end",
    ("evaluation", "models/writing.py answered"): "transformers asks after each token whether all answers have ended",
    ("checkpoint", "training/checkpoint.py <dictcomp>"): "each tensor on its way into a file",
    ("checkpoint", "training/precision.py tensors"): "the loss scale",
}


def is_possible(task: str, method: str, precision: str, layout: str, switch: str, optim: str) -> bool:
    if task == "char_lm" and method != "full":
        return False  # nothing pretrained: no weight can be frozen
    if layout != "padded" and task not in PACKED_TASKS:
        return False  # each row is read alone
    if layout == "by lengths" and precision == "fp32":
        return False  # the kernel takes 16 bits: by mask
    return switch != "chunked loss" or task in CHUNKED_TASKS  # a classifier has no vocabulary


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def run_on_card(tmp_path, models, no_dry_run):
    """`run_on_card(task, settings, layout)`: carries a run out; (the card, the run's folder)."""

    def run(task, settings, layout="by lengths"):
        # As before torch 2.10, or on a card before Ampere.
        kernel = patch.object(varlen, "find_kernel", lambda: None) if layout == "by mask" else nullcontext()
        with kernel, simulated_card() as card:
            opened = open_run(tmp_path, models, task, settings)
            outcome = carry_out(opened)
            assert outcome.exit_code == 0, (outcome, log_of(opened.folder))
        return card, opened.folder

    return run


def log_of(folder) -> str:
    path = folder.logs / "error.txt"
    return path.read_text()[-3000:] if path.exists() else ""


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def settings_of(method, precision, layout, switch, optim):
    named = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}[precision]
    return {
        "tuning.method": method, "training.mixed_precision": named, "training.optim": optim, **SWITCHES[switch],
        "data.packing": "auto" if layout == "padded" else "true",
    } | ({"data.packing": "false"} if layout == "padded" else {})  # fmt: skip


@pytest.mark.parametrize(
    ("task", "method", "precision", "layout", "switch", "optim"),
    each_pair_once(TASKS, METHODS, PRECISIONS, LAYOUTS, SWITCHES, OPTIMIZERS, is_possible=is_possible),
)
def test_two_steps_an_evaluation_and_checkpoints(task, method, precision, layout, switch, optim, run_on_card):
    settings = settings_of(method, precision, layout, switch, optim)
    if task not in PACKED_TASKS:
        del settings["data.packing"]
    card, folder = run_on_card(task, settings, layout)
    plan = read_plan(folder)
    assert (plan.device, plan.precision.value) == ("cuda", precision)
    assert plan.packing.value == (layout != "padded")
    assert bool(card.computed.get(VARLEN_BACKWARD)) == (layout == "by lengths") == bool(card.computed.get(VARLEN))
    assert [problem for problem in of_kind(folder, RunProblem) if problem.kind not in EXPECTED_PROBLEMS] == []
    steps, evaluations = of_kind(folder, StepDone), of_kind(folder, EvalDone)
    assert [step.step for step in steps] == [1, 2] and len(evaluations) == 1
    assert all(step.grad_norm > 0 and step.peak_memory_bytes > 0 for step in steps)
    check_waits(card, plan, steps)
    check_checkpoint(folder, plan, method, precision)
    gc.collect()
    assert card.allocated_bytes == 0, "a run that is over leaves the card empty"


def check_waits(card, plan, steps) -> None:
    times = Counter((wait.phase, wait.function) for wait in card.waits)
    assert [wait for wait in card.waits + card.pageable_copies if wait.phase == "micro-batches"] == []
    known = ONCE_A_STEP | ONCE_A_GROUP | ONCE_AN_EVALUATION | OTHERWISE
    begun = [wait for wait in card.waits if wait.phase not in ("start", "final model")]
    assert [wait for wait in begun if (wait.phase, wait.function) not in known] == []
    spec = OPTIMIZERS[plan.config.training.optim]
    asked = [wait for wait in card.waits if wait.phase == "update" and wait.what != "synchronize"]
    assert len(asked) == (0 if spec.skips_on_device else len(steps))
    assert spec.needs_bitsandbytes == any(wait.phase == "update" and wait.what == "synchronize" for wait in card.waits)
    # The first step of a start is written at once, so that a person sees it.
    assert sum(times[place] for place in ONCE_A_GROUP) == 2
    assert times["evaluation", "training/evaluate.py evaluate"] == 1


def check_checkpoint(folder, plan, method, precision) -> None:
    last = of_kind(folder, CheckpointSaved)[-1]
    files = {path.name: load_file(path) for path in (folder.root / last.path).glob("*.safetensors")}
    weights = files["model.safetensors" if method == "full" else "adapter_model.safetensors"]
    state = files["optimizer.safetensors"]
    if method != "full":
        assert all("lora_" in name or "classifier" in name or "pooler" in name for name in weights)
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in (*weights.values(), *state.values()) if tensor.is_floating_point())
    keys = {name.rpartition(".")[2] for name in state}
    spec = OPTIMIZERS[plan.config.training.optim]
    assert keys <= spec.state_keys and keys >= spec.needed_keys
    random = files["rng_state.safetensors"]
    assert random.keys() == {"cpu", "cuda"} | ({"loss_scale", "loss_scale_steps"} if precision == "fp16" else set())
