"""What single checks say of machines and settings that the sweep does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tui_trainer.advice.checklist import all_checks, run_checks
from tui_trainer.advice.context import Context, EarlierRun
from tui_trainer.advice.contract import Verdict
from tui_trainer.advice.fixes import patched
from tui_trainer.advice.gather import gather, measured_in, newest_measured
from tui_trainer.advice.rules.evaluation_and_saving import evaluation_seconds
from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.hardware.diagnosis import diagnose
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.unsloth import IN_THE_MODEL, NOT_IN_THE_MODEL
from tui_trainer.planning.measured_steps import StepKey, keep_calibration
from tui_trainer.planning.records import device_key
from tui_trainer.runs.events import (
    CheckpointSaved,
    EvalDone,
    GaugesRead,
    GpuReading,
    RunProblem,
    StepDone,
    TextSampled,
)
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE
from tui_trainer.units import GIB

MACHINE = Hardware(
    cpu_name="Test CPU",
    usable_cores=4,
    memory_bytes=16 * GIB,
    memory_available_bytes=8 * GIB,
    platform="Linux",
    python_version="3.11",
)
CARD = Gpu(index=0, name="H200", memory_bytes=141 * GIB, utilisation_share=0.25)


def context(loaded: LoadedConfig | None = None, hardware: Hardware = MACHINE, **facts) -> Context:
    return replace(gather(loaded or load_config(Request()), hardware=hardware), **{"environment": {}} | facts)


def look(name: str, seen: Context) -> Verdict:
    return next(check for check in all_checks() if check.name == name).before(seen)


def on(name: str, **facts) -> Verdict:
    return look(name, context(hardware=replace(MACHINE, **facts)))


def test_a_used_card_passes():
    seen = context(hardware=replace(MACHINE, gpus=(CARD, replace(CARD, index=1))))
    verdict = look("device", seen)
    assert seen.planned.device == "cuda" and verdict.status == "pass"
    assert verdict.evidence == "trains on GPU 0: H200, 141.0 GiB; a run uses one card, 1 more here"


TORCH = {"torch": "2.9.0", "pip": "26.0"}


def card(*capability: int) -> Gpu:
    return replace(CARD, capability=capability or None)


@pytest.mark.parametrize(
    ("served", "built", "gpu", "libraries", "status", "words"),
    [
        ((12, 4), (13, 2), card(9, 0), TORCH, "warn", "cu126"),
        ((13, 0), None, card(9, 0), TORCH, "warn", "cu130"),
        ((11, 8), (12, 6), card(9, 0), TORCH, "warn", "newer NVIDIA driver"),
        ((13, 2), (12, 6), card(10, 0), TORCH, "warn", "need CUDA 12.8"),
        ((12, 8), None, card(10, 0), TORCH, "warn", "cu128"),
        ((13, 2), (13, 0), card(7, 0), TORCH, "warn", "cu126"),
        ((13, 2), (12, 6), card(3, 7), TORCH, "warn", "too old"),
        ((12, 4), (13, 2), card(9, 0), {"torch": "2.9.0", "pip": None}, "warn", "uv pip install"),
        ((13, 2), None, card(9, 0), {"torch": None, "pip": "26.0"}, "warn", "torch is not installed"),
        ((13, 0), (13, 2), card(9, 0), TORCH, "pass", "within one major version"),
        ((13, 2), (12, 6), card(7, 0), TORCH, "pass", "12.6"),
        ((13, 2), (12, 6), card(), TORCH, "pass", "12.6"),
        (None, (13, 0), card(9, 0), TORCH, "n/a", "does not say"),
        ((13, 2), (12, 6), None, TORCH, "n/a", "no GPU"),
        ((13, 2), (12, 6), replace(card(9, 0), visible=False), TORCH, "n/a", "no GPU"),
    ],
)
def test_torch_is_judged_as_the_hardware_screen_judges_it(served, built, gpu, libraries, status, words):
    facts = {"driver": Driver(version="1", cuda=served), "torch_cuda": built, "libraries": libraries}
    facts["gpus"] = (gpu,) if gpu else ()
    verdict = on("libraries", **facts)
    assert verdict.status == status
    assert words in verdict.evidence + verdict.advice
    assert not libraries["torch"] or "2.9.0" in verdict.evidence
    problems = [problem for problem in diagnose(replace(MACHINE, **facts)).problems if "CUDA_VIS" not in problem.remedy]
    told = [(problem.sentence, problem.remedy) for problem in problems if problem.severity == "bad"]
    assert (verdict.status == "warn") == bool(told)
    for sentence, remedy in told:
        assert sentence in verdict.evidence and remedy in verdict.advice and verdict.advice


def test_variables_that_do_no_harm_pass():
    for environment in ({}, {"OMP_NUM_THREADS": "3"}, {"OMP_WAIT_POLICY": "passive"}, {"OMP_NUM_THREADS": "x"}):
        assert look("cpu_threads", context(environment=environment)).status == "pass", environment


def test_the_cache_passes_when_it_is_there_and_fails_where_it_cannot_be_made():
    seen = context()
    assert look("data_cache", seen).status == "pass" and "the first start prepares" in look("data_cache", seen).evidence
    closed = replace(seen.cache, writable=False)
    assert look("data_cache", replace(seen, cache=closed)).status == "fail"
    assert look("data_cache", replace(seen, cache=replace(seen.cache, free_bytes=1000))).status == "fail"
    rows = seen.planned.train_rows.model_copy(update={"exact": True})
    there = replace(seen, plan=seen.planned.model_copy(update={"train_rows": rows}))
    assert "prepared already" in look("data_cache", replace(there, cache=closed)).evidence


def test_prepared_data_is_found(tiny_run, tiny_config):
    """Before and after a real run of the same config."""
    assert "the first start prepares" in look("data_cache", context(tiny_config("one"))).evidence
    tiny_run("one", {"training.max_steps": 30})
    after = gather(tiny_config("two"))
    assert "prepared already" in look("data_cache", after).evidence
    assert after.earlier is not None and after.earlier.name == "one" and after.earlier.steps == 30
    assert 0 < after.earlier.data_share < 1 and after.earlier.save_bytes_per_second


def step(number: int) -> StepDone:
    return StepDone(
        step=number, epoch=0.1, loss_sum=1.0, tokens=1, samples=1, lr=0.1, grad_norm=1.0, step_seconds=0.5,
        data_seconds=0.05, forward_seconds=0.2, backward_seconds=0.2, optimizer_seconds=0.05, tokens_per_second=2.0,
        samples_per_second=2.0, peak_memory_bytes=1,
    )  # fmt: skip


def test_an_earlier_run_tells_shares_and_rates():
    saved = CheckpointSaved(step=5, path="p", bytes=100, seconds=0.5, reason="scheduled")
    sampled = TextSampled(step=5, prompt="a", text="b", seconds=0.3)
    found = measured_in("r", [*map(step, range(20)), saved, sampled])
    assert found is not None and found.data_share == pytest.approx(0.1)
    assert (found.save_bytes_per_second, found.sample_seconds, found.steps) == (200.0, 0.3, 20)
    assert found.step_seconds == step(1).step_seconds and found.busy_share is None
    on_cores, on_card = GaugesRead(step=9, process_cpu_share=0.4), GpuReading(index=0, utilization_share=0.7)
    too_early = GaugesRead(step=1, process_cpu_share=0.9)
    assert measured_in("r", [*map(step, range(20)), too_early, on_cores]).busy_share == 0.4
    assert measured_in("r", [*map(step, range(20)), replace(on_cores, gpus=[on_card])]).busy_share == 0.7
    assert measured_in("r", [step(number) for number in range(19)]) is None


def test_what_a_run_measured_counts_only_for_its_task_model_and_device(tiny_run, tiny_config, tmp_path):
    """A text took 446 ms in a run of another task, and 4 ms here: the checklist promised a run 4.33 times as fast."""
    plan = estimated_plan(tiny_config("two"))
    assert newest_measured(plan) is None
    folder, _ = tiny_run("one", {"training.max_steps": 30, "logging.sample_steps": 10, "checkpoint.save_steps": 10})
    found = newest_measured(plan)
    assert found is not None and found.name == "one"
    assert None not in (found.sample_seconds, found.data_share, found.evaluation_share, found.save_bytes_per_second)

    key = StepKey.read(plan.shape_key)
    others = {
        "task": {"shape_key": str(replace(key, model=key.model.replace(plan.config.task.type, "seq2seq")))},
        "library": {"shape_key": str(replace(key, model=f"{key.model}.1"))},
        "an older key": {"shape_key": "llama-32-2-4-2-64-384-4of8x64-fp32"},
        "processor": {"device_name": "another processor"},
        "threads": {"threads": plan.threads.model_copy(update={"value": 99})},
    }
    assert [name for name, change in others.items() if newest_measured(plan.model_copy(update=change))] == []

    setup = newest_measured(plan.model_copy(update={"shape_key": str(replace(key, setup="lora16"))}))
    assert setup == replace(found, data_share=None, evaluation_share=None, busy_share=None, step_seconds=None)
    elsewhere = with_changes(plan.config, {"output.runs_dir": str(tmp_path / "elsewhere")})
    assert newest_measured(plan.model_copy(update={"config": elsewhere})) == replace(found, save_bytes_per_second=None)
    rows = plan.model_copy(update={"shape_key": str(replace(key, cut="1of1x1"))})
    assert newest_measured(rows) == replace(found, step_seconds=None)
    probed = "attention by lengths is not used because torch: gradients differ"
    with JournalWriter(folder.journal) as journal:
        journal.append(RunProblem(step=0, kind="attention changed", message=probed, hint=""))
    assert newest_measured(plan) == replace(found, attention=probed)
    with JournalWriter(folder.journal) as journal:
        journal.append(RunProblem(step=0, kind=NOT_IN_THE_MODEL, message="0 of 90", hint=""))
    assert newest_measured(plan) == replace(found, attention=probed, unsloth="0 of 90")
    with JournalWriter(folder.journal) as journal:
        journal.append(RunProblem(step=0, kind=IN_THE_MODEL, message="30 of 90", hint=""))
    assert newest_measured(plan) == replace(found, attention=probed, unsloth="30 of 90", has_unsloth=True)
    setup = newest_measured(plan.model_copy(update={"shape_key": str(replace(key, setup="lora16"))}))
    assert setup is not None and not setup.attention and not setup.unsloth


def test_what_the_probe_of_an_earlier_run_found_stands_beside_the_planned_attention():
    earlier = EarlierRun(name="r", steps=50, attention="attention by lengths is not used because torch: it leaks")
    assert f"run r: {earlier.attention}" in look("attention", context(earlier=earlier)).details
    assert "run r" not in str(look("attention", context(earlier=replace(earlier, attention=""))))


def test_what_an_earlier_run_measured_replaces_what_was_assumed():
    assumed = look("cadence", context(earlier=None))
    earlier = EarlierRun(name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, sample_seconds=None)
    measured = look("cadence", context(earlier=earlier))
    assert any("not measured here yet" in detail for detail in assumed.details if detail.startswith("checkpoints"))
    assert any("measured in run r" in detail for detail in measured.details if detail.startswith("checkpoints"))
    assert measured.status == "warn" and measured.fix and "checkpoint.save_steps" in measured.fix


def test_an_evaluation_of_as_many_rows_as_a_step_takes_a_third_of_its_time(sheep):
    """A step of a small file has no more rows than the file, whatever the effective batch is."""
    settings = (f"data.path={sheep}", "data.max_length=16", "training.effective_batch_size=512")
    seen = context(load_config(Request(assignments=settings)))
    rows = seen.planned.train_rows.value
    assert 0 < rows < seen.planned.effective_batch_size.value
    assert evaluation_seconds(seen, rows) == pytest.approx(seen.step_seconds * EVALUATION_SHARE)


@pytest.mark.parametrize(("save_steps", "steps"), [("1", 2), ("1", 9), ("0.02", 100), ("0.5", 5), ("5", 5)])
def test_no_fix_turns_saving_off(save_steps, steps):
    """A short run with a large model: each checkpoint takes longer than all steps together."""
    slow = EarlierRun(name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, sample_seconds=None)
    saving = (f"checkpoint.save_steps={save_steps}", f"training.max_steps={steps}")
    loaded = load_config(Request(assignments=(*saving, "evaluation.eval_steps=0", "logging.sample_steps=0")))
    before = context(loaded, earlier=slow)
    verdict = look("cadence", before)
    saves = [step for step in range(1, steps) if step % before.planned.save_every_steps.value == 0]
    if len(saves) <= 1:
        assert verdict.status == "pass" and (not saves or "worth its time" in verdict.evidence)
        return
    assert verdict.status == "warn" and verdict.fix and set(verdict.fix) == {"checkpoint.save_steps"}
    mended = context(patched(loaded, verdict.fix), earlier=slow)
    assert 0 < mended.planned.save_every_steps.value < steps
    assert look("cadence", mended).status == "pass"


def test_early_stopping_keeps_its_evaluations_when_they_cost_too_much():
    settings = ("evaluation.eval_steps=40", "evaluation.early_stopping_patience=8")
    fix = look("cadence", context(load_config(Request(assignments=settings)))).fix
    assert fix and "evaluation.max_eval_rows" in fix and "evaluation.eval_steps" not in fix


@pytest.mark.dry_run
def test_dropout_is_weighed_in_bytes():
    verdict = look("attention", context(load_config(Request(profile="char-lm"))))
    assert verdict.status == "warn" and verdict.evidence.count("iB") == 2


def test_fused_is_what_the_optimizer_is():
    import torch

    from tui_trainer.methods.optimizers import OPTIMIZERS

    training, weight = load_config(Request()).config.training, torch.nn.Parameter(torch.ones(2))
    built = OPTIMIZERS[training.optim].build([{"params": [weight]}], 0.1, training)
    assert look("optimizer", context()).evidence.startswith("fused AdamW on") and built.defaults["fused"]
    for name in ("adamw_torch", "adafactor", "sgd"):
        loaded = load_config(Request(assignments=(f"training.optim={name}",)))
        assert ("fused AdamW" in look("optimizer", context(loaded)).evidence) is False


def test_a_learning_rate_is_judged_by_the_range_of_its_optimizer():
    def judged(optim, rate):
        settings = (f"training.optim={optim}", f"training.learning_rate={rate}", "tuning.method=full")
        return look("learning_rate", context(load_config(Request(profile="finetune", assignments=settings))))

    for optim, few, fit, many in (("adamw_torch_fused", 1e-7, 5e-5, 0.05), ("adafactor", 1e-7, 5e-5, 0.05),
                                  ("sgd", 2e-5, 0.05, 3.0)):  # fmt: skip
        assert [judged(optim, rate).status for rate in (few, fit, many)] == ["warn", "pass", "warn"], optim
        assert judged(optim, few).fix == judged(optim, many).fix == {"training.learning_rate": "auto"}
        assert judged(optim, "auto").status == "pass"


def test_your_own_learning_rate_is_not_scaled():
    settings = ("training.effective_batch_size=256", "training.learning_rate=0.002")
    assert look("lr_scaling", context(load_config(Request(assignments=settings)))).status == "pass"
    fix = look("lr_scaling", context(load_config(Request(assignments=settings[:1])))).fix
    assert fix == {"training.learning_rate": 0.01}
    fix = look("lr_scaling", context(load_config(Request(assignments=("training.effective_batch_size=64",))))).fix
    assert fix == {"training.learning_rate": 0.006}


def test_a_batch_that_was_measured_to_be_faster_is_proposed_with_its_learning_rate(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    loaded = load_config(Request(assignments=("training.num_train_epochs=20",)))
    plan = context(loaded).planned
    device, key = device_key(plan.cpu_name, plan.threads.value, ""), StepKey.read(plan.shape_key)
    rows = plan.effective_batch_size.value
    assert key is not None and look("batch_size", context(loaded)).status == "pass"

    def measured(times: int, rows_per_second: float) -> None:
        cut = key.cut.replace(f"{rows}x", f"{times * rows}x")
        seconds = times * rows / rows_per_second
        keep_calibration(device, replace(key, cut=cut), step_seconds=seconds, flops=times * plan.step_flops)

    measured(1, 100.0)
    measured(2, 104.0)
    assert look("batch_size", context(loaded)).status == "pass"
    measured(4, 130.0)
    measured(8, 131.0)
    found = look("batch_size", context(loaded))
    assert found.fix == {"training.effective_batch_size": 4 * rows, "training.learning_rate": 0.006}
    assert "1.30 times" in found.evidence and "0.003 -> 0.006" in found.advice
    # No more rows than leave enough steps.
    few = load_config(Request(assignments=("training.num_train_epochs=0.5",)))
    assert look("batch_size", context(few)).status == "pass"


def test_a_config_without_a_recipe_stays_without_one_when_it_is_patched(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('[data]\npath = "sample:python-reference"\n[training]\nlearning_rate = 0.004\n')
    loaded = load_config(Request(config_file=path))
    changed = patched(loaded, {"training.weight_decay": 0.01, "output.name": 'a "quoted" name'})
    assert changed.recipe is None and changed.config.training.learning_rate == 0.004
    assert changed.config.training.weight_decay == 0.01 and changed.config.output.name == 'a "quoted" name'
    assert look("lr_scaling", context(changed)).status == "n/a"


def evaluated(seconds: float, tokens: int) -> EvalDone:
    return EvalDone(step=5, loss_sum=1.0, tokens=tokens, loss=1.0, seconds=seconds, scheduled=True, best=False)


def test_the_gain_of_fewer_interruptions_is_reckoned_from_what_they_took():
    found = measured_in("r", [*map(step, range(20)), evaluated(2.0, 4)])
    assert found is not None and found.evaluation_share == pytest.approx(1.0)
    assert measured_in("r", [*map(step, range(20))]).evaluation_share is None
    loaded = load_config(Request(assignments=("checkpoint.save_steps=1", "training.max_steps=40")))
    measured = EarlierRun(name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, evaluation_share=0.4,
                          sample_seconds=0.2)  # fmt: skip
    (finding,) = [one for one in run_checks(context(loaded, earlier=measured)) if one.name == "cadence"]
    assert finding.verdict.reckoned_gain > 1.05 and "from what run r took" in finding.gain_words
    assert finding.gain_words.startswith(f"{finding.verdict.reckoned_gain:.2f} times as fast")
    (guessed,) = [one for one in run_checks(context(loaded, earlier=None)) if one.name == "cadence"]
    if guessed.fix:
        assert "from estimates" in guessed.gain_words
