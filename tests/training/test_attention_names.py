"""`model.attn_implementation` with a name that only transformers knows: tried on the model, or sdpa with a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import EvalDone, RunProblem

pytestmark = pytest.mark.full
KEY = "model.attn_implementation"


def settings(folder: Path, attention: str) -> tuple[str, ...]:
    data = Path("texts.jsonl")
    data.write_text("".join(json.dumps({"text": f"the {n} of many words here"}) + "\n" for n in range(24)))
    named = {
        "model.model_name_or_path": folder, KEY: attention, "data.path": data, "data.max_length": 32,
        "training.max_steps": 2, "training.effective_batch_size": 4, "checkpoint.save_steps": 0,
        "logging.sample_steps": 0, "output.name": attention.replace("/", "-"),
    }  # fmt: skip
    return tuple(f"{key}={value}" for key, value in named.items())


def trained(folder: Path, attention: str) -> tuple[float, list[RunProblem]]:
    """Return the held-out loss of a run and its problems with attention."""
    opened = open_new(load_config(Request(assignments=settings(folder, attention))))
    assert execute_run(opened).exit_code == 0
    events = list(read_all(opened.folder.journal))
    [*_, last] = [event.loss for event in events if isinstance(event, EvalDone)]
    return last, [event for event in events if isinstance(event, RunProblem) and event.kind == "attention changed"]


@pytest.fixture
def folder(tmp_path):
    return save_tiny_model(tmp_path / "model", "llama")


def test_a_name_that_transformers_cannot_load_is_replaced_by_sdpa_with_a_warning(folder):
    loss, [problem] = trained(folder, "kernels-community/flash-attn2")
    assert problem.message.startswith("kernels-community/flash-attn2 is not used: ")
    assert problem.hint.startswith("sdpa is used instead")
    assert (loss, []) == trained(folder, "sdpa")


@pytest.mark.parametrize(("name", "scale", "is_used"), [("owner/same", 1.0, True), ("owner/other", 1.5, False)])
def test_a_kernel_with_other_results_is_not_used(name, scale, is_used, folder, monkeypatch):
    def attend(module, query, key, value, attention_mask, **more):
        output, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return output * scale, weights

    calls = []
    monkeypatch.setattr(
        "transformers.modeling_utils.PreTrainedModel._check_and_adjust_attn_implementation",
        lambda self, name, **more: calls.append(name) or name,
    )
    monkeypatch.setitem(AttentionInterface._global_mapping, name, attend)
    _, problems = trained(folder, name)
    assert name in calls
    assert [problem.message for problem in problems] == [] if is_used else "differ by" in problems[0].message


def test_the_plan_reports_an_unknown_kernel(folder, capsys):
    arguments = [word for one in settings(folder, "flash_attention_4") for word in ("--set", one)]
    assert main(["plan", *arguments]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("attention ")]
    assert line.split(maxsplit=1)[1] == (
        "flash_attention_4 = model.attn_implementation requests it; the plan assumes as much memory as for sdpa"
    )


def test_a_misspelt_name_is_refused_with_the_choices():
    with pytest.raises(ConfigError) as caught:
        load_config(Request(assignments=(f"{KEY}=spda",)))
    [problem] = caught.value.problems
    assert 'such as "kernels-community/flash-attn2", or "auto", or "sdpa"' in problem.message
