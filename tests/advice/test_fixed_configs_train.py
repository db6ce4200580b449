"""`check --fix` on the settings that the guides begin with, before their tips: the config that it writes trains."""

from __future__ import annotations

import json
import math

import pytest

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.advice.checklist import run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import StepDone

pytestmark = pytest.mark.full

NARROW = {"model.scratch.hidden_size": 32, "model.scratch.num_hidden_layers": 1, "model.scratch.num_attention_heads": 2}

# The baselines in the tables of the guides, each with the settings that its text says were changed afterwards.
BEFORE = {
    "A: GPT-2, four rows at a time, no accumulation, one epoch's cache thrown away": (
        "causal_lm", "gpt2",
        {"training.effective_batch_size": 4, "training.num_train_epochs": 3.0, "training.learning_rate": 5e-5,
         "training.max_grad_norm": 0.0, "training.weight_decay": 0.0, "training.warmup_steps": 0.0,
         "dataloader.num_workers": 0, "training.mixed_precision": "no"},
    ),
    "B and C: one row at a time, a rank of 64, rows of 2048 tokens, evaluated, saved and the cache emptied often": (
        "causal_lm", "llama",
        {"tuning.method": "lora", "tuning.r": 64, "training.effective_batch_size": 4,
         "training.per_device_train_batch_size": 1, "data.max_length": 2048, "data.packing": False,
         "training.gradient_checkpointing": False, "evaluation.eval_steps": 5, "checkpoint.save_steps": 50,
         "logging.logging_steps": 2, "checkpoint.save_total_limit": 2, "training.empty_cache_steps": 1,
         "training.num_train_epochs": 3.0},
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


def test_a_config_that_a_guide_begins_with_trains_after_its_fixes(tmp_path, monkeypatch, capsys, subtests):
    for name, (task, family, settings) in BEFORE.items():
        folder = tmp_path / name[0]
        folder.mkdir()
        monkeypatch.chdir(folder)
        with subtests.test(name):
            rows = [{"text": text, "label": ("odd", "even")[n % 2]} for n, text in enumerate(texts(100))]
            data = folder / "rows.jsonl"
            if task != "sequence_classification":
                rows = [{"text": row["text"]} for row in rows]
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            base = {"task.type": task, "output.runs_dir": str(folder / "runs"), "data.path": str(data)}
            if family:
                longer = {"max_position_embeddings": 2048} if family == "llama" else {}
                base["model.model_name_or_path"] = str(save_tiny_model(folder / family, family, **longer))
            else:
                base["model.init"] = "scratch"
            before, fixed = folder / "before.toml", folder / "fixed.toml"
            before.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (base | settings).items()))
            main(["check", str(before), "--fix", str(fixed)])
            assert "set    " in capsys.readouterr().out, "the guide begins with something to mend"
            again = run_checks(gather(load_config(Request(config_file=fixed))))
            assert [(one.name, one.verdict.evidence) for one in again if one.status in ("fail", "error")] == []
            assert [finding.name for finding in again if finding.fix] == []
            steps = ("training.max_steps=2", "logging.sample_steps=0", "evaluation.max_eval_rows=4", "output.name=run")
            run = open_new(load_config(Request(config_file=fixed, assignments=steps)))
            assert execute_run(run).exit_code == 0
            losses = [event.loss for event in read_all(run.folder.journal) if isinstance(event, StepDone)]
            assert len(losses) == 2 and all(map(math.isfinite, losses))
