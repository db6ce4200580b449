"""Causal language models from a folder: families, random weights, switches and the compiler."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.combinations import in_the_sweep
from tests.runs.journals import read_all
from tests.tiny_models import VOCABULARY, save_tiny_model, texts
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models import modules as logits
from tui_trainer.runs.events import EvalDone, RunProblem, StepDone

pytestmark = pytest.mark.full

SETTINGS = {
    "data.max_length": 64,
    "data.eval_fraction": 0.2,
    "training.effective_batch_size": 8,
    "training.learning_rate": 0.01,
    "training.lr_scheduler_type": "constant",
    "training.max_steps": 12,
    "evaluation.eval_steps": 0.5,
    "checkpoint.save_steps": 4,
    "logging.sample_steps": 0,
    "logging.logging_steps": 4,
}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Return `tiny_folder(family)`: the folder of a tiny model, made once."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            save_tiny_model(root / family, family)
        return root / family

    return folder


@pytest.fixture
def documents(tmp_path) -> Path:
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"id": n, "content": text}) + "\n" for n, text in enumerate(texts(120))))
    return path


@pytest.fixture
def tune(tmp_path, tiny_folder, documents):
    """Return `tune(family, method, changes)`, which trains and returns the run folder and the outcome."""

    def run(family: str, method: str = "full", changes: dict | None = None):
        settings = {**SETTINGS, "tuning.method": method, "output.runs_dir": tmp_path / "runs", **(changes or {})}
        settings = {"output.name": f"{family}-{method}", **settings}
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        shortcuts = {"data.path": str(documents), "model.model_name_or_path": str(tiny_folder(family))}
        opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
        return opened.folder, execute_run(opened)

    return run


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


def continue_a_prompt(model, folder) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("12 plus 3 is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        written = model.eval().generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    return tokenizer.decode(written[0], skip_special_tokens=True)


@pytest.mark.parametrize(("family", "method"), [("gpt2", "lora"), ("gemma", "full")])
def test_family_learns_and_its_result_loads_with_transformers_and_peft(family, method, tune, tiny_folder):
    folder, outcome = tune(family, method)
    assert outcome.exit_code == 0, outcome
    steps, evaluations = of_kind(folder, StepDone), of_kind(folder, EvalDone)
    assert steps[-1].loss < 0.8 * steps[0].loss
    assert evaluations[-1].loss < steps[0].loss
    assert not of_kind(folder, RunProblem)
    if method == "full":
        model = AutoModelForCausalLM.from_pretrained(folder.model)
    else:
        assert {path.name for path in folder.model.iterdir()} >= {"adapter_model.safetensors", "adapter_config.json"}
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_folder(family)), folder.model)
    assert continue_a_prompt(model, folder.model).startswith("12 plus 3 is")
    plan = read_plan(folder)
    trained = sum(p.numel() for name, p in model.named_parameters() if method == "full" or "lora_" in name)
    assert plan.trained_parameters.value == trained
    assert plan.packing.value


def test_random_weights_in_the_shape_of_a_model_get_a_new_tokenizer(tune, tiny_folder):
    changes = {"model.init": "scratch", "model.scratch.vocab_size": 300, "data.max_length": 48}
    folder, outcome = tune("qwen2", changes=changes)
    assert outcome.exit_code == 0, outcome
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    assert model.config.model_type == "qwen2"
    assert model.config.vocab_size == len(tokenizer) <= 300 < VOCABULARY
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("12 plus 3")["input_ids"], skip_special_tokens=True) == "12 plus 3"
    steps = of_kind(folder, StepDone)
    assert steps[-1].loss < 0.9 * steps[0].loss


@pytest.fixture
def losses(tune):
    """Return `losses(method, changes)`, which trains and returns the losses in nats per token and the run folder."""

    def run(method: str, changes: dict):
        folder, outcome = tune("llama", method, {"training.max_steps": 6, **changes})
        assert outcome.exit_code == 0, outcome
        return [step.loss for step in of_kind(folder, StepDone)], folder

    return run


@pytest.fixture(scope="module")
def plain_losses() -> dict[str, list[float]]:
    """The losses by method without a switch, which are the same for each test."""
    return {}


@pytest.mark.parametrize(
    ("method", "switch", "tolerance"),
    [
        ("lora", {"training.gradient_checkpointing": "true"}, 0.0),
        ("full", {"dataloader.num_workers": 2, "dataloader.prefetch_factor": 3}, 0.0),
        ("full", {"training.loss_chunk_tokens": 16}, 1e-5),
        ("full", {"training.per_device_train_batch_size": 1}, 1e-5),
        in_the_sweep("lora", {"model.dtype": "bfloat16", "training.mixed_precision": "bf16"}, 0.03),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_switch_for_time_or_memory_does_not_change_the_losses(
    method, switch, tolerance, losses, plain_losses, bf16_on_the_cpu
):
    if method not in plain_losses:
        plain_losses[method], _ = losses(method, {"output.name": "plain"})
    plain = plain_losses[method]
    found, _ = losses(method, {"output.name": "switched", **switch})
    assert found == pytest.approx(plain, rel=tolerance, abs=0.0)
    assert found[-1] < found[0]


def test_model_with_capped_logits_learns_the_same_in_chunks_unless_its_cap_is_unknown(tune, monkeypatch):
    settings = {"training.max_steps": 4, "checkpoint.save_steps": 0}
    chunks = settings | {"training.loss_chunk_tokens": 16}
    runs = [tune("gemma2", changes=settings | {"output.name": "plain"})]
    runs.append(tune("gemma2", changes=chunks | {"output.name": "chunks"}))
    # As a model of a later transformers would be.
    monkeypatch.delitem(logits._RULES, "gemma2")
    runs.append(tune("gemma2", changes=chunks | {"output.name": "unknown"}))
    assert [outcome.exit_code for _, outcome in runs] == [0, 0, 0]
    plain, chunked, unknown = ([step.loss for step in of_kind(folder, StepDone)] for folder, _ in runs)
    assert chunked == pytest.approx(plain, rel=1e-5)
    assert unknown == plain
    problems = [[problem.kind for problem in of_kind(folder, RunProblem)] for folder, _ in runs]
    assert problems == [[], [], ["loss cannot be computed in chunks"]]


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.filterwarnings("default")  # the compiler warns about itself
def test_compiled_layers_learn_the_same_and_the_compile_time_is_reported(losses):
    plain, _ = losses("full", {"output.name": "plain"})
    found, folder = losses("full", {"output.name": "compiled", "training.torch_compile": "true"})
    assert found == pytest.approx(plain, rel=1e-3)
    problems = of_kind(folder, RunProblem)
    assert [problem.kind for problem in problems] == ["compiled"], problems
    assert "2 layers were compiled in" in problems[0].message


def no_compiler():
    return patch("tui_trainer.training.compiled._try_one_pass", side_effect=RuntimeError("no compiler here"))


def compiler_that_does_nothing():
    """As with TORCH_COMPILE_DISABLE=1."""
    return torch._dynamo.config.patch(disable=True)


@contextmanager
def compiler_that_swallows_its_errors():
    """As with TORCHDYNAMO_SUPPRESS_ERRORS=1."""
    with (
        torch._dynamo.config.patch(suppress_errors=True),
        patch("torch._dynamo.output_graph.OutputGraph.call_user_compiler", side_effect=RuntimeError("no compiler")),
    ):
        yield


@pytest.mark.versions
@pytest.mark.filterwarnings("default")  # the compiler warns about itself
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (no_compiler, "no compiler here"),
        (compiler_that_does_nothing, "TORCH_COMPILE_DISABLE"),
        (compiler_that_swallows_its_errors, "TORCHDYNAMO_SUPPRESS_ERRORS"),
    ],
)
def test_failing_compiler_is_reported_and_the_run_continues(fault, reason, losses):
    short = {"training.max_steps": 3, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0}
    with fault():
        found, folder = losses("full", {**short, "output.name": "compiled", "training.torch_compile": "true"})
    assert len(found) == 3 and found[-1] < found[0]
    problems = of_kind(folder, RunProblem)
    assert [problem.kind for problem in problems] == ["not compiled"]
    assert reason in problems[0].message
