"""The pad token is trained where documents contain it, and saved configs keep their pad_token_id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.tiny_models import save_tiny_model
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_DONE
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run

pytestmark = pytest.mark.full

EOS = 2
EMBEDDING = "model.embed_tokens.weight"
SETTINGS = {
    "data.max_length": 64, "data.eval_fraction": 0, "training.effective_batch_size": 4, "training.max_steps": 2,
    "training.learning_rate": 0.01, "training.weight_decay": 0, "evaluation.eval_steps": 0,
    "logging.sample_steps": 0, "output.name": "run",
}  # fmt: skip
# Each turn ends with the end token, so the second question follows one.
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


def model_folder(place: Path, family: str = "llama", **changes) -> Path:
    """Save a model whose tokenizer has no pad token. `changes` are written into config.json directly, because
    transformers does not save every number that it reads."""
    folder = save_tiny_model(place, family, pad_token_id=None, tie_word_embeddings=False)
    (folder / "config.json").write_text(json.dumps(config_of(folder) | changes))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    return folder


def run(tmp_path: Path, model: Path, rows: list[dict], **changes):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {**SETTINGS, "data.path": data, "model.model_name_or_path": model, "output.runs_dir": tmp_path / "runs",
                **changes}  # fmt: skip
    opened = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    outcome = execute_run(opened)
    assert outcome.exit_code == EXIT_DONE, outcome
    return opened.folder


def conversations() -> list[dict]:
    turns = [("user", "Who?"), ("assistant", "The sheep."), ("user", "Sure?"), ("assistant", "Yes.")]
    return [{"messages": [{"role": role, "content": f"{text} {n}"} for role, text in turns]} for n in range(12)]


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("published", [None, EOS], ids=["no pad token", "the end token, as published"])
def test_the_end_token_is_trained_and_the_config_is_kept(tmp_path, published):
    model = model_folder(tmp_path / "model", pad_token_id=published)
    folder = run(tmp_path, model, conversations(), **{"task.type": "chat", "tuning.method": "full"})
    before, after = (load_file(place / "model.safetensors")[EMBEDDING][EOS] for place in (model, folder.model))
    assert not torch.equal(before, after)
    for place in (folder.model, folder.checkpoints / "step-2"):
        assert config_of(place).get("pad_token_id") == published


def test_an_embedding_beside_an_adapter_trains_the_end_token(tmp_path):
    model = model_folder(tmp_path / "model", pad_token_id=EOS)
    changes = {"task.type": "chat", "tuning.method": "lora", "tuning.modules_to_save": "embed_tokens"}
    folder = run(tmp_path, model, conversations(), **changes)
    saved = load_file(folder.model / "adapter_model.safetensors")
    [name] = [name for name in saved if "embed_tokens" in name]
    assert not torch.equal(saved[name][EOS], load_file(model / "model.safetensors")[EMBEDDING][EOS])


@pytest.mark.versions
@pytest.mark.parametrize(("family", "published"), [("llama", None), ("gpt2", None), ("llama", -1)])
def test_a_classifying_decoder_gets_a_pad_token_that_is_still_trained(tmp_path, family, published, monkeypatch):
    """It looks for the last token before the padding, and without a pad_token_id takes one row at a time. Early Llamas
    name a token that does not exist."""
    from tui_trainer.training.components import Components

    seen, init = [], Components.__init__

    def look(self, *arguments):
        init(self, *arguments)
        seen.append((self.model.get_input_embeddings().padding_idx, self.model.config.pad_token_id))

    monkeypatch.setattr(Components, "__init__", look)
    model = model_folder(tmp_path / "model", family, pad_token_id=published)
    rows = [{"text": f"number {n} " * (1 + n % 3), "label": "odd" if n % 2 else "even"} for n in range(16)]
    folder = run(tmp_path, model, rows, **{"task.type": "sequence_classification", "tuning.method": "full"})
    assert seen == [(None, EOS)]
    assert config_of(folder.model)["pad_token_id"] == EOS
