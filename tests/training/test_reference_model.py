"""The reference of preferences: the model before training whatever is trained, or another model, loaded and freed."""

from __future__ import annotations

import gc
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.losses.test_preference import log_probabilities
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import ANIMALS, stopping_after, write_rows
from tests.training.finished_runs import assert_resumes_to_the_bit, of_kind
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import EXIT_DONE, ConfigError
from tui_trainer.exporting.measured import prepared_data
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import EvalDone, StepDone
from tui_trainer.training.session import Session

pytestmark = pytest.mark.full
STEPS = 10
EXPERTS = {"tuning.target_modules": "q_proj", "tuning.target_parameters": '"experts.gate_up_proj, experts.down_proj"'}
LORA = {"tuning.method": "lora", "tuning.r": 4}
REFERENCE = "task.reference"


@pytest.fixture
def open_pairs(tmp_path):
    """`open_pairs(name, model, changes)`: a run of ten steps on pairs of uneven lengths."""
    rows = []
    for n in range(30):
        one, other = ANIMALS[n % 4], ANIMALS[(n + 1 + n % 2) % 4]
        answers = {"chosen": f"{one} {'runs ' * (n % 5)}home", "rejected": f"{other} {'sleeps ' * (n % 3)}late"}
        rows.append({"prompt": f"The {one} number {n}", **answers})
    path = write_rows(tmp_path / "pairs.jsonl", rows)

    def make(name, model, changes):
        settings = {
            "task.type": "preference", "task.chat_template": "chatml", "model.model_name_or_path": model,
            "tuning.method": "full", "training.max_steps": STEPS, "training.effective_batch_size": 8,
            "training.learning_rate": 0.01, "data.eval_fraction": 0.25, "evaluation.eval_steps": STEPS,
            "evaluation.generate_rows": 0, "checkpoint.save_steps": 0, "logging.sample_steps": 0,
            "output.runs_dir": tmp_path / "runs", "output.name": name, **changes,
        }  # fmt: skip
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        return open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(path)})))

    return make


@pytest.fixture
def train(open_pairs):
    def run(name, model, changes=None):
        opened = open_pairs(name, model, changes or {})
        outcome = execute_run(opened)
        assert outcome.exit_code == EXIT_DONE, outcome
        return opened.folder

    return run


@pytest.fixture
def llama(tmp_path):
    return save_tiny_model(tmp_path / "llama", "llama")


@pytest.fixture
def other(tmp_path):
    """The same tokenizer, with other weights."""
    folder = save_tiny_model(tmp_path / "other", "llama")
    tensors = load_file(folder / "model.safetensors")
    changed = {name: tensor * (0.8 if tensor.ndim > 1 else 1) for name, tensor in tensors.items()}
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
    return folder


def train_rows(run):
    return Rows(prepared_data(TrainedModel.of(run)).train_path)


def reference_values(run):
    """Return the log-probabilities that the run computed before its first step, [rows, 2]."""
    folder = prepared_data(TrainedModel.of(run)).folder
    values = [np.load(path) for path in folder.glob("values-*/0000.npy")]
    return next(found for found in values if len(found) == len(train_rows(run)))


def log_probabilities_of(model, run):
    """Return the log-probabilities of a model of transformers, each document alone, [rows, 2]."""
    rows = train_rows(run)
    with torch.no_grad():
        sums = [log_probabilities(model.eval(), rows.example(index))[0] for index in range(len(rows))]
    return torch.tensor(sums).numpy()


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {}), ("llama", LORA), ("qwen3_moe", LORA | EXPERTS)],
    ids=["full", "lora", "experts"],
)
def test_the_reference_is_the_model_before_training(train, tmp_path, family, changes):
    base = save_tiny_model(tmp_path / "base", family)
    run = train("story", base, changes)
    steps = of_kind(run, StepDone)
    assert len(steps) == STEPS and steps[0].loss == pytest.approx(math.log(2), abs=1e-6)
    values = reference_values(run)
    assert values == pytest.approx(log_probabilities_of(AutoModelForCausalLM.from_pretrained(base), run), abs=1e-3)
    trained = log_probabilities_of(TrainedModel.of(run).load(dtype="float32", merge=True), run)
    moved = abs(trained - values).max(axis=1)
    assert moved.min() > 0.01, "the training has moved every pair"
    assert steps[-1].loss < steps[0].loss


def test_another_reference_is_loaded_for_its_pass_only(train, llama, other, monkeypatch, capsys):
    models, take_step = [], Session.take_step

    def counting(self, step):
        gc.collect()
        models.append(sum(isinstance(thing, PreTrainedModel) for thing in gc.get_objects()))
        take_step(self, step)

    monkeypatch.setattr(Session, "take_step", counting)
    own = train("own", llama)
    run = train("compared", llama, {REFERENCE: other})
    assert set(models) == {models[0]}, "no step has two models in memory"
    expected = log_probabilities_of(AutoModelForCausalLM.from_pretrained(other), run)
    # The blocks of both runs are in the folder of the same prepared data.
    folder = prepared_data(TrainedModel.of(run)).folder
    found = [np.load(path) for path in folder.glob("values-*/0000.npy")]
    assert sum(len(x) == len(expected) and np.allclose(x, expected, atol=1e-3) for x in found) == 1
    assert of_kind(own, StepDone)[0].loss == pytest.approx(math.log(2), abs=1e-6)
    assert of_kind(run, StepDone)[0].loss != pytest.approx(math.log(2), abs=1e-3)
    capsys.readouterr()
    assert main(["evaluate", str(run.root), "--against", "none", "--json"]) == EXIT_DONE
    [model] = json.loads(capsys.readouterr().out)["models"]
    assert model["loss"] == pytest.approx(of_kind(run, EvalDone)[-1].loss, rel=1e-4)


def test_a_run_whose_reference_has_changed_is_not_resumed(open_pairs, llama, other, monkeypatch):
    def tiny_run(name, changes):
        opened = open_pairs(name, llama, changes)
        return opened.folder, execute_run(opened)

    changes = {REFERENCE: other, **LORA}
    assert_resumes_to_the_bit(tiny_run, changes)
    monkeypatch.setattr(Session, "take_step", stopping_after(3))
    folder, _ = tiny_run("stopped", changes)
    tensors = load_file(other / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, other / "model.safetensors", {"format": "pt"})
    assert execute_run(reopen_run(folder)).exit_code != EXIT_DONE
    assert "the reference model has changed since this run started" in str(read_all(folder.journal)[-1])


def test_a_run_and_its_adapter_are_references(train, llama, monkeypatch):
    """The reference is the model with its adapter, as it is when the run starts from it."""
    first = train("first", llama, LORA)
    started = train("started", first.root, LORA)
    compared = train("compared", llama, LORA | {REFERENCE: "first"})
    assert reference_values(started) == pytest.approx(
        log_probabilities_of(TrainedModel.of(first).load(), first), abs=1e-3
    )
    losses = [of_kind(run, StepDone)[0].loss for run in (started, compared)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6) != losses[1]


def test_a_reference_that_cannot_be_compared_is_refused_before_the_start(open_pairs, llama, tmp_path, subtests):
    larger = save_tiny_model(tmp_path / "larger", "llama", num_hidden_layers=6)
    renamed = save_tiny_model(tmp_path / "renamed", "llama")
    tokenizer = json.loads((renamed / "tokenizer.json").read_text())
    first, second = list(tokenizer["model"]["vocab"])[-2:]
    tokenizer["model"]["vocab"] |= {
        first: tokenizer["model"]["vocab"][second],
        second: tokenizer["model"]["vocab"][first],
    }
    (renamed / "tokenizer.json").write_text(json.dumps(tokenizer))
    cases = {
        "other tokens": (
            {REFERENCE: renamed},
            "the tokenizer of the reference has other tokens than that of the model",
        ),
        "larger": ({REFERENCE: larger}, "for which the memory is planned"),
        "missing": ({REFERENCE: tmp_path / "nowhere"}, "task.reference: "),
        "no reference": ({REFERENCE: llama, "task.loss_type": "simpo"}, "SimPO compares the model with no reference"),
    }
    for name, (changes, message) in cases.items():
        with subtests.test(name), pytest.raises(ConfigError, match=message):
            open_pairs("refused", llama, changes)
