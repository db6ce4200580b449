"""Tokenizers with several chat templates, which transformers saves in a folder of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import stopping_after
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_DONE, EXIT_STOPPED
from tui_trainer.exporting.generate import Writer
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.chat_rendering import template_text
from tui_trainer.models.facts import find_model
from tui_trainer.models.files.fingerprint import fingerprint
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.events import RunProblem
from tui_trainer.training.checkpoint_folder import steps_saved
from tui_trainer.training.session import Session

TEMPLATES = {"default": template_text("chatml"), "tool_use": template_text("chatml") + "{# tools #}", "rag": "{{ 1 }}"}
pytestmark = pytest.mark.full

SETTINGS = {
    "task.type": "chat", "data.max_length": 64, "data.eval_fraction": 0.2, "training.effective_batch_size": 4,
    "training.max_steps": 4, "evaluation.eval_steps": 0, "checkpoint.save_steps": 2, "logging.sample_steps": 0,
    "output.name": "run",
}  # fmt: skip


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """A tiny Llama with three chat templates, as Command-R and Hermes have them."""
    folder = save_tiny_model(tmp_path_factory.mktemp("several") / "llama", "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATES
    tokenizer.save_pretrained(folder)
    assert (folder / "additional_chat_templates" / "tool_use.jinja").is_file()
    return folder


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_resumed_run_saves_all_templates(several, tmp_path, monkeypatch, method):
    rows = [
        {"messages": [{"role": "user", "content": f"Number {n}?"}, {"role": "assistant", "content": "Sheep."}]}
        for n in range(30)
    ]
    data = tmp_path / "conversations.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {**SETTINGS, "data.path": data, "model.model_name_or_path": several, "tuning.method": method,
                "output.runs_dir": tmp_path / "runs"}  # fmt: skip
    monkeypatch.setattr(Session, "take_step", stopping_after(2))
    run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    outcome = execute_run(run)
    assert outcome.exit_code == EXIT_STOPPED, outcome
    assert steps_saved(run.folder.checkpoints) == [2]
    outcome = execute_run(reopen_run(run.folder))
    assert outcome.exit_code == EXIT_DONE, outcome
    assert not [event for event in read_all(run.folder.journal) if isinstance(event, RunProblem)]
    for place in (run.folder.model, run.folder.checkpoints / "step-4"):
        assert AutoTokenizer.from_pretrained(place).chat_template == TEMPLATES
    assert not [path for path in run.folder.root.rglob("*") if path.stat().st_mode & 0o077]
    if method == "full":
        written = Writer(run.folder).answer("Number 3?", Sampling(max_new_tokens=2, temperature=0, seed=1))
        assert isinstance(written, str)


def test_a_changed_template_for_tools_changes_the_keys_of_tokenizer_and_model(several, tmp_path):
    """Conversations with tools are rendered with it, so data that was prepared with the old one is not used."""
    changed = Path(shutil.copytree(several, tmp_path / "changed"))
    (changed / "additional_chat_templates" / "tool_use.jinja").write_text("{{ 2 }}")
    one, other = find_model(str(several)), find_model(str(changed))
    assert one.tokenizer_key != other.tokenizer_key
    assert fingerprint(one, with_weights=True) != fingerprint(other, with_weights=True)
