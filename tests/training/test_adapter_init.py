"""Runs whose adapters are initialised from the weights: begun, stopped, resumed, merged, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.training.finished_runs import STILL, assert_resumes_to_the_bit, loss_of, weights_in
from tui_trainer.errors import EXIT_STOPPED, ConfigError
from tui_trainer.exporting.trained_model import TrainedModel, finish_of
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.planning.memory.parts import initial_adapter_bytes
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs import controls
from tui_trainer.runs.events import Progress, RunProblem
from tui_trainer.training import session
from tui_trainer.tuning.adapter_init import InitialAdapters
from tui_trainer.units import format_seconds

INIT = "tuning.init_lora_weights"


@pytest.fixture
def settings(tmp_path):
    """`settings(init, changes)`: settings of a short run on one tiny Llama."""

    def make(init, changes=None):
        folder = tmp_path / "llama"
        model = folder if folder.exists() else save_tiny_model(folder, "llama")
        return {
            "model.init": "pretrained", "model.model_name_or_path": model, "tuning.method": "lora", "tuning.r": 4,
            "profile": "finetune", INIT: init, **(changes or {}),
        }  # fmt: skip

    return make


@pytest.mark.parametrize("init", ["pissa", pytest.param("olora", marks=pytest.mark.full)])
def test_a_run_begins_with_the_loss_of_the_model_and_reports_the_decomposition(init, settings, tiny_run, monkeypatch):
    monkeypatch.setattr(session, "_PROGRESS_SECONDS", 0)
    usual, _ = tiny_run("usual", settings("default", STILL))
    run, outcome = tiny_run("still", settings(init, STILL))
    assert outcome.exit_code == 0 and loss_of(run) == pytest.approx(loss_of(usual), abs=1e-5)
    events = read_all(run.journal)
    messages = [one.message for one in events if isinstance(one, RunProblem) and one.kind == "weights decomposed"]
    assert len(messages) == 1 and messages[0].startswith(f"{init} decomposed 14 matrices in ")
    shown = [one for one in events if isinstance(one, Progress) and one.what == f"decomposing weights for {init}"]
    assert shown and shown[0].total == 14
    words = f"initialised by {init} and saved as LoRA of rank 8 for the original weights"
    assert words in (run.model / "README.md").read_text() and words in run.report.read_text()


@pytest.mark.full
def test_a_stopped_run_is_resumed_to_the_bit_without_a_second_decomposition(settings, tiny_run, monkeypatch):
    changes = settings("pissa_niter_2", {"tuning.lora_dropout": 0.1, "model.init": "pretrained"})
    decompose, calls = InitialAdapters.decompose, []
    monkeypatch.setattr(InitialAdapters, "decompose", lambda *given: calls.append(1) or decompose(*given))
    assert_resumes_to_the_bit(tiny_run, changes)
    assert len(calls) == 2, "one for each run, none when it is resumed"


@pytest.mark.full
def test_a_stop_during_the_decomposition_restarts_the_run(settings, tiny_run):
    whole, _ = tiny_run("whole", settings("pissa"))
    decompose, folders, done = InitialAdapters.decompose, [], []

    def asked_to_stop(initial_adapters, init, goes_on):
        controls.request(folders[0].control, "stop")
        done.append(decompose(initial_adapters, init, goes_on))
        return done[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InitialAdapters, "decompose", asked_to_stop)
        part, outcome = tiny_run("part", settings("pissa"), before=lambda run: folders.append(run.folder))
    assert done == [False] and outcome.exit_code == EXIT_STOPPED and not list(part.checkpoints.iterdir())
    assert execute_run(reopen_run(part)).exit_code == 0
    assert all(torch.equal(tensor, weights_in(part)[name]) for name, tensor in weights_in(whole).items())


@pytest.mark.full
def test_the_final_model_has_the_weights_of_the_best_evaluation(settings, tiny_run):
    """No later evaluation is better by the threshold, so the first one is the best."""
    changes = {"evaluation.eval_steps": 1, "evaluation.early_stopping_patience": 2}
    changes |= {"evaluation.early_stopping_threshold": 50}
    run, _ = tiny_run("spoilt", settings("pissa", changes))
    finished = finish_of(run)
    assert finished.model_step < finished.step
    saved = load_file(run.checkpoints / f"step-{finished.model_step}" / "adapter_model.safetensors")
    final = load_file(run.model / "adapter_model.safetensors")
    assert final.keys() == saved.keys() and all(torch.equal(final[name], saved[name]) for name in final)


@pytest.mark.full
def test_it_is_merged_and_continued_as_plain_lora_of_twice_the_rank(settings, tiny_run, tiny_config):
    first, _ = tiny_run("first", settings("pissa"))
    trained = TrainedModel.of(first)
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        apart, merged = (trained.load(dtype="float32", merge=merge)(input_ids=ids).logits for merge in (False, True))
    torch.testing.assert_close(apart, merged, atol=1e-4, rtol=1e-4)
    plan = read_plan_file(first.plan.read_bytes())
    on_disk = (first.model / "adapter_model.safetensors").stat().st_size
    assert on_disk == pytest.approx(8 * plan.trained_parameters.value, abs=4096)
    assert initial_adapter_bytes(plan.training_setup) == 4 * plan.trained_parameters.value
    loaded = tiny_config("next", {"model.model_name_or_path": "first", "profile": "finetune"})
    tuning = loaded.config.tuning
    assert (tuning.r, tuning.lora_alpha, tuning.init_lora_weights) == (8, 64.0, "default")
    still, _ = tiny_run("still", {"model.model_name_or_path": "first", "profile": "finetune", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
    merge = {"model.model_name_or_path": "first", "profile": "finetune", "tuning.continue_adapter": "merge", **STILL}
    whole, _ = tiny_run("whole", merge)
    assert loss_of(whole) == pytest.approx(loss_of(first), abs=1e-5)
    with pytest.raises(ConfigError, match="is pissa, but the adapter to continue has default"):
        open_new(tiny_config("anew", {"model.model_name_or_path": "first", "profile": "finetune", INIT: "pissa"}))


REFUSED = [
    ("pissa", {"tuning.method": "full"}, "is pissa, but tuning.method = full has no adapter"),
    ("gaussian", {"tuning.method": "full"}, "is gaussian, but tuning.method = full has no adapter"),
    ("olora", {"tuning.method": "qlora"}, "is olora, but 4-bit weights cannot be decomposed"),
    ("pissa", {"tuning.use_dora": "true"}, "is pissa, but pissa changes the weights whose norms DoRA learns"),
    ("pissa", {"tuning.r": 64}, "is 64, but pissa allows at most 16 for the narrowest matrix"),
    ("eva", {}, "eva"),
    ("pissa_niter_", {}, "pissa_niter_"),
    ("pissa", {"distributed.processes": 2, "distributed.strategy": "fsdp"},
     "sharding has not been tested with adapters that are initialised from the weights"),
    ("olora", {"model.provider": "unsloth"}, 'is "olora", which is not supported with model.provider = unsloth'),
]  # fmt: skip


def test_conflicting_settings_are_refused(settings, tiny_config, subtests):
    for init, changes, words in REFUSED:
        with subtests.test(f"{init} {changes}"):
            with pytest.raises(ConfigError) as refused:
                open_new(tiny_config("refused", settings(init, changes)))
            assert words in str(refused.value) and INIT in str(refused.value)


def test_the_plan_counts_the_decomposition(settings, tiny_config):
    usual, pissa, fast, olora = (
        estimated_plan(tiny_config("planned", settings(init, {"training.weight_decay": 0})))
        for init in ("default", "pissa", "pissa_niter_16", "olora")
    )
    [line] = [line for line in plan_lines(pissa) if line.startswith("trainable ")]
    assert "initialised by an SVD of each of 14 matrices before the first step" in line
    assert "saved with rank 8" in line
    assert "a fast SVD" in fast.trained_parameters.reason and "a QR" in olora.trained_parameters.reason
    assert "begin" not in usual.trained_parameters.reason
    extra = 4 * pissa.trained_parameters.value
    assert pissa.checkpoint_bytes.value - usual.checkpoint_bytes.value == extra
    assert pissa.final_model_bytes - usual.final_model_bytes == extra
    parts = {part.name: part.bytes for part in pissa.memory_parts}
    assert parts["first adapters"] == extra and "decomposition" in parts
    # The time before the first step is a part of the whole.
    assert usual.beginning_seconds is None
    evaluations = usual.duration_seconds.value - usual.total_steps.value * usual.step_seconds.value
    for plan in (pissa, fast, olora):
        seconds = plan.beginning_seconds.value
        assert f"{format_seconds(seconds)} for a" in plan.duration_seconds.reason
        assert "of each of 14 matrices before the first step, at about" in plan.duration_seconds.reason
        steps = plan.total_steps.value * plan.step_seconds.value
        assert plan.duration_seconds.value == pytest.approx(steps + evaluations + seconds, rel=0.02)


def test_the_learning_rate_of_pissa_is_that_of_pretrained_weights(settings, tiny_config):
    auto = {"training.learning_rate": "auto"}
    rates = {
        init: estimated_plan(tiny_config("planned", settings(init, auto))).learning_rate
        for init in ("default", "pissa", "olora")
    }
    # The rates 1e-3 and 3e-4 are for four times as many rows; a fourth of the rows halves them.
    assert (rates["default"].value, rates["pissa"].value, rates["olora"].value) == (5e-4, 1.5e-4, 5e-4)
    assert "adapters initialised from the principal components of the weights" in rates["pissa"].reason


@pytest.mark.full
def test_a_classifier_keeps_its_head_beside_such_an_adapter(tmp_path, tiny_run):
    rows = "".join(
        json.dumps({"text": f"a {word} and {n} more", "label": word}) + "\n"
        for n, word in enumerate(["cat", "dog", "owl"] * 16)
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    changes = {
        "model.init": "pretrained", "model.model_name_or_path": save_tiny_model(tmp_path / "bert", "bert"),
        "tuning.method": "lora", "tuning.r": 4, "profile": "finetune", "data.path": tmp_path / "rows.jsonl",
        "task.type": "sequence_classification", "data.max_length": 32, INIT: "pissa",
    }  # fmt: skip
    first, outcome = tiny_run("first", changes)
    assert outcome.exit_code == 0
    del changes[INIT]
    still, _ = tiny_run("still", {**changes, "tuning.r": 8, "model.model_name_or_path": "first", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
