"""`check --fix` on what the guides began with, before their tips: what it writes trains, and less is open."""

from __future__ import annotations

import importlib
import json
import math

import pytest

from tests.combinations import first_by_default
from tests.importing import test_trains as imported
from tests.importing.test_trains import data_of
from tui_trainer.advice.checklist import run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.hardware import probe as probing
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.runs.events import StepDone
from tui_trainer.runs.journal import read_all

stand_in, machine = imported.stand_in, imported.machine
NARROW = {"model.scratch.hidden_size": 32, "model.scratch.num_hidden_layers": 1, "model.scratch.num_attention_heads": 2}

# The baselines of the guides' tables, and what their texts say was changed: settings that they had before.
BEFORE = {
    "A: GPT-2, four rows at a time, no accumulation, one epoch's cache thrown away": (
        "causal_lm", "gpt2",
        {"training.effective_batch_size": 4, "training.num_train_epochs": 3.0, "training.learning_rate": 5e-5,
         "training.max_grad_norm": 0.0, "training.weight_decay": 0.0, "training.warmup_steps": 0.0,
         "dataloader.num_workers": 0, "training.mixed_precision": "no"},
    ),
    "B: two rows at a time, evaluated every 5 steps, saved every 50, the cache emptied at each": (
        "causal_lm", "llama",
        {"tuning.method": "lora", "tuning.r": 16, "training.effective_batch_size": 8,
         "training.per_device_train_batch_size": 2, "evaluation.eval_steps": 5, "checkpoint.save_steps": 50,
         "logging.logging_steps": 2, "checkpoint.save_total_limit": 2, "training.empty_cache_steps": 1,
         "training.num_train_epochs": 4.0},
    ),
    "C: one row at a time, a rank of 64, rows of 2048 tokens": (
        "causal_lm", "llama",
        {"tuning.method": "lora", "tuning.r": 64, "training.effective_batch_size": 4,
         "training.per_device_train_batch_size": 1, "data.max_length": 2048, "data.packing": False,
         "training.gradient_checkpointing": False, "training.num_train_epochs": 3.0},
    ),
    "D: tweets at a batch of 8 without loader threads": (
        "sequence_classification", "distilbert",
        {"training.effective_batch_size": 8, "dataloader.num_workers": 0, "data.max_length": 128,
         "training.num_train_epochs": 3.0},
    ),
    "E: 256 rows a step, saved and evaluated after the last epoch only": (
        "char_lm", "",
        {"training.effective_batch_size": 256, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0,
         "training.max_grad_norm": 0.0, "logging.logging_steps": 1, "training.torch_compile": False,
         "training.num_train_epochs": 2.0, "data.max_length": 64} | NARROW,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_machine(machine, monkeypatch):
    """The checks look at the machine that trains."""
    facts = importlib.import_module("tui_trainer.launching.open_run").probe()
    monkeypatch.setattr(importlib.import_module("tui_trainer.advice.gather"), "probe", lambda: facts)
    assert facts != probing.probe() or not facts.gpus


def literal(value):
    return json.dumps(value)


@pytest.mark.parametrize("name", first_by_default(BEFORE, 2), ids=[name[0] for name in BEFORE])
def test_a_configuration_of_before_trains_once_it_is_fixed(name, stand_in, tmp_path, capsys):
    task, family, settings = BEFORE[name]
    base = {"task.type": task, "output.runs_dir": str(tmp_path / "runs"), "data.path": str(data_of(task, tmp_path))}
    base |= {"model.model_name_or_path": str(stand_in(family))} if family else {"model.init": "scratch"}
    before = tmp_path / "before.toml"
    before.write_text("".join(f"{key} = {literal(value)}\n" for key, value in (base | settings).items()))
    found = run_checks(gather(load_config(Request(config_file=before))))
    fixed = tmp_path / "fixed.toml"
    main(["check", str(before), "--fix", str(fixed)])
    assert "wrote" in capsys.readouterr().out
    again = run_checks(gather(load_config(Request(config_file=fixed))))
    assert not [(f.name, f.verdict.evidence) for f in again if f.status in ("fail", "error")]
    fixable = [finding.name for finding in found if finding.fix]
    assert fixable, "what the guide began with has something to mend"
    assert not [finding.name for finding in again if finding.fix]
    steps = ("training.max_steps=2", "logging.sample_steps=0", "evaluation.max_eval_rows=4", "output.name=run")
    run = open_new(load_config(Request(config_file=fixed, assignments=steps)))
    assert carry_out(run).exit_code == 0
    losses = [event.loss for event in read_all(run.folder.journal) if isinstance(event, StepDone)]
    assert len(losses) == 2 and all(map(math.isfinite, losses))
