"""How often layers are compiled again: in steps, in evaluations of other sizes, and for texts that grow by tokens.

The front end of torch's compiler decides this, and is the real one here. Its graphs are carried out without compiling.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from tests.compilations import counted_compilations
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.journal import read_all
from tui_trainer.training import evaluate as sample

pytestmark = pytest.mark.full
LAYERS, STEPS = 3, 8


@pytest.fixture
def compilations(tmp_path):
    """`compilations(settings)`: graphs that each part of a run made, in the order of its calls."""
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(90)))
    model = save_tiny_model(tmp_path / "model", "llama", num_hidden_layers=LAYERS)

    def run(settings):
        whole = {
            "data.max_length": 64, "data.eval_fraction": 0.2, "training.effective_batch_size": 4,
            "training.per_device_train_batch_size": 2, "training.max_steps": STEPS, "training.torch_compile": "true",
            "evaluation.eval_steps": 2, "evaluation.max_eval_rows": 7, "logging.sample_steps": 2,
            "checkpoint.save_steps": 0, "output.runs_dir": tmp_path / "runs", **settings,
        }  # fmt: skip
        shortcuts = {"data.path": str(documents), "model.model_name_or_path": str(model)}
        assignments = tuple(f"{key}={value}" for key, value in whole.items())
        opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
        with counted_compilations(carried_out=False) as found:
            outcome = carry_out(opened)
        assert outcome.exit_code == 0, outcome
        told = {event.kind: event.message for event in read_all(opened.folder.journal) if isinstance(event, RunProblem)}
        assert "not compiled" not in told, told
        assert "compiled" in told
        return found

    return run


# The first number of rows, and then any; in evaluations apart, as they keep nothing for a backward pass.
MOST_AT_FIRST = 2


@pytest.mark.versions
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("packing", "method"), [("true", "full"), ("false", "lora")])
def test_nothing_is_compiled_again_after_the_first_step_and_evaluation(packing, method, compilations):
    found = compilations({"tuning.method": method, "data.packing": packing})
    assert 0 < found["__init__"][0] <= MOST_AT_FIRST
    assert found["take_step"] == [0] * STEPS
    first, *later = found["evaluate"]
    assert first <= MOST_AT_FIRST and later == [0] * (STEPS // 2 - 1)
    # With a cache each layer would be compiled by itself, and anew for a text of another length.
    assert found["sample"] == [0] * (STEPS // 2)


@pytest.mark.filterwarnings("ignore")
def test_texts_written_with_compiled_layers_would_be_counted(compilations, monkeypatch):
    monkeypatch.setattr(sample, "uncompiled", lambda model: nullcontext())
    found = compilations({"tuning.method": "full"})
    assert found["sample"][0] >= LAYERS
