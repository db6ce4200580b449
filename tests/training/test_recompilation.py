"""How often layers are compiled again: in steps, in evaluations of other sizes, and for texts that grow by tokens.

The front end of torch's compiler decides this, and is the real one here. Its graphs are carried out without compiling.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.compilations import counted_compilations
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tests.trained_runs import write_rows
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import RunProblem
from tui_trainer.training import compiled, components

pytestmark = pytest.mark.full
LAYERS, STEPS = 3, 8


@pytest.fixture
def compilations(tmp_path):
    """`compilations(settings)`: graphs that each part of a run made, in the order of its calls."""
    documents = write_rows(tmp_path / "documents.jsonl", [{"text": text} for text in texts(90)])
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
            outcome = execute_run(opened)
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


@pytest.mark.e2e
def test_a_run_that_could_not_be_compiled_is_not_padded_to_full_width(tmp_path, monkeypatch):
    seen, limit = [], torch._dynamo.config.recompile_limit

    def fail(found, tell):
        seen.append(found)
        return compile_layers(found, tell)

    compile_layers = compiled.compile_layers
    monkeypatch.setattr(compiled, "_try_one_pass", lambda *_: 1 / 0)
    monkeypatch.setattr(components, "compile_layers", fail)
    documents = write_rows(tmp_path / "documents.jsonl", [{"text": text} for text in texts(60)])
    settings = {"data.max_length": 64, "training.effective_batch_size": 4, "training.max_steps": 2,
                "tuning.method": "full", "output.runs_dir": tmp_path / "runs",
                "training.torch_compile": "true", "data.packing": "false"}  # fmt: skip
    shortcuts = {"data.path": str(documents), "model.model_name_or_path": str(save_tiny_model(tmp_path / "m", "llama"))}
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
    outcome = execute_run(opened)
    assert outcome.exit_code == 0, outcome
    problems = [event.kind for event in read_all(opened.folder.journal) if isinstance(event, RunProblem)]
    assert problems == ["not compiled"]
    assert seen[0].batches.layout.fixed_width == seen[0].eval_layout.fixed_width == 0
    widths = {batch.inputs["input_ids"].shape[1] for step in (1, 2) for batch in seen[0].batches.micro_batches_of(step)}
    assert max(widths) < 64
    assert torch._dynamo.config.recompile_limit == limit, "the compiler's settings are put back"


def test_cuda_graphs_are_for_steps_of_one_pass():
    rows = [(1, False, 1, "reduce-overhead"), (2, False, 1, None), (1, True, 1, None), (1, False, 2, None)]
    for passes, packed, processes, expected in rows:
        plan = SimpleNamespace(
            config=SimpleNamespace(training=SimpleNamespace(torch_compile_mode="reduce-overhead")),
            packing=SimpleNamespace(value=packed),
            gradient_accumulation_steps=SimpleNamespace(value=passes),
            processes=SimpleNamespace(value=processes),
        )
        notices = []
        assert compiled._mode(plan, lambda *what, notices=notices: notices.append(what)) == expected
        assert bool(notices) == (expected is None)


def test_cuda_graphs_are_left_when_a_step_is_split_during_a_run(monkeypatch):
    """When memory runs out, layers that were compiled for one pass a step are compiled again."""
    model = torch.nn.Module()
    model._no_split_modules = ["Linear"]
    model.compiled, model.plain = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model.compiled.compile(mode="reduce-overhead")
    modes, told = [], []
    monkeypatch.setattr(torch.nn.Linear, "compile", lambda self, mode: modes.append((self is model.compiled, mode)))
    compiled.without_cuda_graphs(model, lambda *what: told.append(what[0]))
    assert (modes, told) == ([(True, None)], ["another compile mode"])
