"""Single checks of settings, data and earlier runs that the table in `test_every_check.py` does not have."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.advice.machines import CPU, H100
from tests.advice.test_every_check import facts_of
from tui_trainer.advice.checklist import all_checks, run_checks
from tui_trainer.advice.context import Context, EarlierRun
from tui_trainer.advice.contract import Verdict
from tui_trainer.advice.fixes import load_patched
from tui_trainer.advice.gather import earlier_run_of, gather, newest_earlier_run
from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.data.batching.pack import PaddingShares
from tui_trainer.data.sources.splits import SplitUse
from tui_trainer.hardware.diagnosis import diagnose
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.unsloth import KERNELS_IN_MODEL, KERNELS_MISSING
from tui_trainer.planning.measured_steps import StepKey, keep_calibration
from tui_trainer.planning.records import device_key
from tui_trainer.planning.training_setup import MeasuredPeak
from tui_trainer.runs.events import CheckpointSaved, EvalDone, GaugesRead, GpuReading, RunProblem, StepDone, TextSampled
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.state import apply_events
from tui_trainer.tasks import find_task
from tui_trainer.ui.screens.checklist import finding_lines
from tui_trainer.ui.spans import UNICODE
from tui_trainer.units import GIB, format_bytes


def config(*assignments: str, profile: str = "") -> LoadedConfig:
    return load_config(Request(profile=profile, assignments=assignments))


def context_on(loaded: LoadedConfig | None = None, hardware: Hardware = CPU, **facts: object) -> Context:
    return replace(gather(loaded or config(), hardware=hardware), **{"environment": {}} | facts)


def verdict_of(name: str, context: Context) -> Verdict:
    return next(check for check in all_checks() if check.name == name).judge_config(context)


@pytest.fixture(scope="module")
def quickstart() -> Context:
    """What the checks look at for the quickstart. Tests replace parts of it."""
    return context_on()


TORCH = {"torch": "2.9.0", "pip": "26.0"}


def card(*capability: int) -> Gpu:
    return Gpu(index=0, name="H200", memory_bytes=141 * GIB, capability=capability or None)


# The CUDA of the driver, the CUDA of torch, the card, the libraries, and the status with a part of its words.
TORCH_BUILDS = [
    ((12, 4), (13, 2), card(9, 0), TORCH, "warn", "cu126"),
    ((13, 0), None, card(9, 0), TORCH, "warn", "cu130"),
    ((11, 8), (12, 6), card(9, 0), TORCH, "warn", "newer NVIDIA driver"),
    ((13, 2), (12, 6), card(10, 0), TORCH, "warn", "needs CUDA 12.8"),
    ((12, 8), None, card(10, 0), TORCH, "warn", "cu128"),
    ((13, 2), (13, 0), card(7, 0), TORCH, "warn", "cu126"),
    ((13, 2), (12, 6), card(3, 7), TORCH, "warn", "too old"),
    ((12, 4), (13, 2), card(9, 0), {"torch": "2.9.0", "pip": None}, "warn", "uv pip install"),
    ((13, 2), None, card(9, 0), {"torch": None, "pip": "26.0"}, "warn", "torch is not installed"),
    ((13, 0), (13, 2), card(9, 0), TORCH, "pass", "both have the same major version"),
    ((13, 2), (12, 6), card(7, 0), TORCH, "pass", "12.6"),
    ((13, 2), (12, 6), card(), TORCH, "pass", "12.6"),
    (None, (13, 0), card(9, 0), TORCH, "n/a", "does not report its CUDA version"),
    ((13, 0), None, card(9, 0), {}, "n/a", "the CUDA version of torch is unknown"),
    ((13, 2), (12, 6), None, TORCH, "n/a", "no GPU"),
    ((13, 2), (12, 6), replace(card(9, 0), visible=False), TORCH, "n/a", "no GPU"),
]


def test_the_build_of_torch_is_judged_as_the_hardware_screen_judges_it(quickstart, subtests):
    for served, built, gpu, libraries, status, words in TORCH_BUILDS:
        facts = {"driver": Driver(version="1", cuda=served), "torch_cuda": built, "libraries": libraries}
        hardware = replace(CPU, **facts, gpus=(gpu,) if gpu else ())
        with subtests.test(f"driver {served}, torch {built}, {words}"):
            verdict = verdict_of("libraries", replace(quickstart, hardware=hardware))
            assert verdict.status == status
            assert words in verdict.evidence + verdict.advice
            assert not libraries.get("torch") or "2.9.0" in verdict.evidence
            problems = [problem for problem in diagnose(hardware).problems if problem.severity == "bad"]
            problems = [problem for problem in problems if "CUDA_VIS" not in problem.remedy]
            assert (verdict.status == "warn") == bool(problems)
            for problem in problems:
                assert problem.sentence in verdict.evidence
                assert problem.remedy in verdict.advice and verdict.advice


def test_prepared_data_of_an_earlier_run_is_found(tiny_run, tiny_config):
    assert "the first start prepares" in verdict_of("data_cache", context_on(tiny_config("one"))).evidence
    tiny_run("one", {"training.max_steps": 30})
    after = gather(tiny_config("two"))
    assert "already prepared" in verdict_of("data_cache", after).evidence
    assert after.earlier is not None and after.earlier.name == "one" and after.earlier.steps == 30
    assert 0 < after.earlier.data_share < 1 and after.earlier.save_bytes_per_second


def step(number: int) -> StepDone:
    return StepDone(
        step=number, epoch=0.1, loss_sum=1.0, tokens=1, samples=1, lr=0.1, grad_norm=1.0, step_seconds=0.5,
        data_seconds=0.05, forward_seconds=0.2, backward_seconds=0.2, optimizer_seconds=0.05, tokens_per_second=2.0,
        samples_per_second=2.0, peak_memory_bytes=1,
    )  # fmt: skip


def test_shares_and_rates_are_computed_from_the_events_of_an_earlier_run():
    saved = CheckpointSaved(step=5, path="p", bytes=300_000, seconds=0.1, reason="scheduled")
    sampled = TextSampled(step=5, prompt="a", text="b", seconds=0.3)
    evaluated = EvalDone(step=5, loss_sum=1.0, tokens=4, loss=1.0, seconds=2.0, scheduled=True, best=False)
    steps = [step(number) for number in range(20)]
    found = earlier_run_of("r", apply_events([*steps, saved, sampled]))
    assert found is not None and found.data_share == pytest.approx(0.1)
    assert (found.sample_seconds, found.steps) == (0.3, 20)
    # A checkpoint of 10.9 MB takes hardly longer than a small one of an adapter.
    often = context_on(config("checkpoint.save_steps=1", "training.max_steps=40"), earlier=found)
    assert "39 during the run, 165 ms each (measured in run r)" in "\n".join(verdict_of("cadence", often).details)
    assert found.step_seconds == 0.5 and found.busy_share is None and found.evaluation_share is None
    assert earlier_run_of("r", apply_events([*steps, evaluated])).evaluation_share == pytest.approx(1.0)
    on_cores, on_card = GaugesRead(step=9, process_cpu_share=0.4), GpuReading(index=0, utilization_share=0.7)
    too_early = GaugesRead(step=1, process_cpu_share=0.9)
    assert earlier_run_of("r", apply_events([*steps, too_early, on_cores])).busy_share == 0.4
    assert earlier_run_of("r", apply_events([*steps, replace(on_cores, gpus=[on_card])])).busy_share == 0.7
    assert earlier_run_of("r", apply_events(steps[:19])) is None


def test_an_earlier_run_counts_only_for_its_task_model_and_device(tiny_run, tiny_config, tmp_path):
    """A text took 446 ms in a run of another task, and 4 ms here: the checklist promised a run 4.33 times as fast."""
    plan = estimated_plan(tiny_config("two"))
    assert newest_earlier_run(plan) is None
    folder, _ = tiny_run("one", {"training.max_steps": 30, "logging.sample_steps": 10, "checkpoint.save_steps": 10})
    found = newest_earlier_run(plan)
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
    assert [name for name, change in others.items() if newest_earlier_run(plan.model_copy(update=change))] == []

    another_setup = plan.model_copy(update={"shape_key": str(replace(key, setup="lora16"))})
    without_speed = {"data_share": None, "evaluation_share": None, "busy_share": None, "step_seconds": None}
    assert newest_earlier_run(another_setup) == replace(found, **without_speed)
    elsewhere = with_changes(plan.config, {"output.runs_dir": str(tmp_path / "elsewhere")})
    assert newest_earlier_run(plan.model_copy(update={"config": elsewhere})) == replace(
        found, save_bytes_per_second=None
    )
    rows = plan.model_copy(update={"shape_key": str(replace(key, cut="1of1x1"))})
    assert newest_earlier_run(rows) == replace(found, step_seconds=None)
    probed = "variable-length attention is not used (torch: gradients differ"
    for kind, message, changes in (
        ("attention changed", probed, {"attention_rejection": probed}),
        (KERNELS_MISSING, "0 of 90", {"unsloth_parts_sentence": "0 of 90"}),
        (KERNELS_IN_MODEL, "30 of 90", {"unsloth_parts_sentence": "30 of 90", "has_unsloth": True}),
    ):
        with JournalWriter(folder.journal) as journal:
            journal.append(RunProblem(step=0, kind=kind, message=message, hint=""))
        found = replace(found, **changes)
        assert newest_earlier_run(plan) == found
    setup = newest_earlier_run(another_setup)
    assert setup is not None and not setup.attention_rejection and not setup.unsloth_parts_sentence


def test_what_an_earlier_run_measured_replaces_what_was_assumed(quickstart):
    def details(name: str, earlier: EarlierRun | None) -> str:
        return "\n".join(verdict_of(name, replace(quickstart, earlier=earlier)).details)

    slow = EarlierRun(name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, sample_seconds=None)
    assert "not measured here yet" in details("cadence", None) and "measured in run r" in details("cadence", slow)
    measured = verdict_of("cadence", replace(quickstart, earlier=slow))
    assert measured.status == "warn" and measured.fix and "checkpoint.save_steps" in measured.fix
    probed = "variable-length attention is not used (torch: it leaks"
    assert f"run r: {probed}" in details("attention", replace(slow, attention_rejection=probed))
    assert "run r" not in details("attention", slow)


def test_the_checklist_names_only_findings_that_the_planned_run_can_have(quickstart):
    (finding,) = run_checks(quickstart, [check for check in all_checks() if check.name == "busy_machine"])
    plan = quickstart.required_plan
    for processes, has_slowest in ((1, False), (2, True)):
        shared = plan.model_copy(update={"processes": plan.processes.model_copy(update={"value": processes})})
        rows = ["".join(text for text, _ in row) for row in finding_lines(finding, 80, UNICODE, plan=shared)]
        doctor = rows[rows.index("During a run, the doctor would report:") :]
        assert any("Other processes:" in row for row in doctor)
        assert any("One slow process:" in row for row in doctor) == has_slowest


def test_no_fix_turns_saving_off(subtests):
    """In a short run with a large model each checkpoint takes longer than all steps together."""
    slow = EarlierRun(name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, sample_seconds=None)
    for save_steps, steps, is_seldom in (("1", 2, True), ("1", 9, False), ("0.02", 100, False), ("0.5", 5, False),
                                         ("5", 5, True)):  # fmt: skip
        with subtests.test(f"save_steps {save_steps} of {steps}"):
            saving = (f"checkpoint.save_steps={save_steps}", f"training.max_steps={steps}")
            loaded = config(*saving, "evaluation.eval_steps=0", "logging.sample_steps=0")
            verdict = verdict_of("cadence", context_on(loaded, earlier=slow))
            if is_seldom:
                assert verdict.status == "pass"
                continue
            assert verdict.status == "warn" and verdict.fix and set(verdict.fix) == {"checkpoint.save_steps"}
            mended = context_on(load_patched(loaded, verdict.fix), earlier=slow)
            assert 0 < mended.required_plan.save_every_steps.value < steps
            assert verdict_of("cadence", mended).status == "pass"


def test_the_gain_of_fewer_interruptions_is_estimated_from_what_they_took(quickstart):
    measured = EarlierRun(
        name="r", steps=50, data_share=0.0, save_bytes_per_second=1e3, evaluation_share=0.4, sample_seconds=0.2
    )
    context = context_on(config("checkpoint.save_steps=1", "training.max_steps=40"), earlier=measured)
    (finding,) = run_checks(context, [check for check in all_checks() if check.name == "cadence"])
    assert finding.verdict.reckoned_gain > 1.05 and "from the timings of run r" in finding.gain_words
    assert finding.gain_words.startswith(f"{finding.verdict.reckoned_gain:.2f} times as fast")


@pytest.mark.full
@pytest.mark.dry_run
def test_stored_attention_scores_cost_what_the_plan_counts(subtests):
    for name, loaded in (
        ("dropout", config(profile="char-lm")), ("eager", config("model.attn_implementation=eager")),
        ("short rows", config("model.attn_implementation=eager", "data.max_length=4096", profile="chat-scratch")),
    ):  # fmt: skip
        with subtests.test(name):
            context = context_on(loaded)
            verdict = verdict_of("attention", context)
            size = format_bytes(context.required_plan.memory_bytes.value)
            assert verdict.status == "warn" and f"peak memory {size}, " in verdict.evidence
            assert "with the fused kernel" in verdict.evidence


def test_a_learning_rate_is_judged_by_the_range_of_its_optimizer(subtests):
    def judged(optim: str, rate: float | str) -> Verdict:
        settings = (f"training.optim={optim}", f"training.learning_rate={rate}")
        return verdict_of("learning_rate", context_on(config(*settings)))

    for optim, low, good, high in (("adamw_torch_fused", 5e-5, 2e-3, 0.05), ("adafactor", 5e-5, 2e-3, 0.05),
                                   ("sgd", 5e-3, 0.05, 5.0)):  # fmt: skip
        with subtests.test(optim):
            assert [judged(optim, rate).status for rate in (low, good, high)] == ["warn", "pass", "warn"]
            assert judged(optim, low).fix == judged(optim, high).fix == {"training.learning_rate": "auto"}
            assert judged(optim, "auto").status == "pass"


def test_the_proposed_learning_rate_grows_with_the_effective_batch(subtests):
    for rows, rate in ((256, 0.01), (64, 0.006)):
        with subtests.test(f"{rows} rows"):
            context = context_on(config(f"training.effective_batch_size={rows}"))
            assert verdict_of("lr_scaling", context).fix == {"training.learning_rate": rate}


def test_a_batch_that_was_measured_to_be_faster_is_proposed_with_its_learning_rate():
    loaded = config("training.num_train_epochs=20")
    plan = context_on(loaded).required_plan
    device, key = device_key(plan.cpu_name, plan.threads.value, ""), StepKey.read(plan.shape_key)
    rows = plan.effective_batch_size.value
    assert key is not None and verdict_of("batch_size", context_on(loaded)).status == "pass"

    def measured(times: int, rows_per_second: float) -> None:
        cut = key.cut.replace(f"{rows}x", f"{times * rows}x")
        seconds = times * rows / rows_per_second
        keep_calibration(device, replace(key, cut=cut), step_seconds=seconds, flops=times * plan.step_flops)

    measured(1, 100.0)
    measured(2, 104.0)
    assert verdict_of("batch_size", context_on(loaded)).status == "pass"
    measured(4, 130.0)
    measured(8, 131.0)
    found = verdict_of("batch_size", context_on(loaded))
    assert found.fix == {"training.effective_batch_size": 4 * rows, "training.learning_rate": 0.006}
    assert "1.30 times" in found.evidence and "0.003 -> 0.006" in found.advice
    # No more rows are proposed than leave enough steps.
    assert verdict_of("batch_size", context_on(config("training.num_train_epochs=0.5"))).status == "pass"


def test_checks_do_not_blame_the_batch_and_epochs_that_the_preset_chooses_for_little_data(tmp_path, subtests):
    from tests.tiny_models import save_tiny_model

    model, data = save_tiny_model(tmp_path / "model", "bert"), tmp_path / "data.csv"
    for rows in (12, 30, 200, 400, 2_000):
        with subtests.test(f"{rows} rows"):
            lines = (f"the text of row {row} has some words,{('good', 'bad')[row % 2]}" for row in range(rows))
            data.write_text("\n".join(("text,label", *lines)))
            loaded = config(f"model.model_name_or_path={model}", f"data.path={data}", profile="finetune")
            context = context_on(loaded)
            assert context.required_plan.effective_batch_size.value >= 8
            for name in ("batch_size", "effective_batch", "steps", "early_stopping"):
                assert verdict_of(name, context).status == "pass", name


def test_a_config_without_a_recipe_stays_without_one_when_it_is_patched(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('[data]\npath = "sample:python-reference"\n[training]\nlearning_rate = 0.004\n')
    loaded = load_config(Request(config_file=path))
    changed = load_patched(loaded, {"training.weight_decay": 0.01, "output.name": 'a "quoted" name'})
    assert changed.recipe is None and changed.config.training.learning_rate == 0.004
    assert changed.config.training.weight_decay == 0.01 and changed.config.output.name == 'a "quoted" name'
    assert verdict_of("lr_scaling", context_on(changed)).status == "n/a"


def test_a_measured_peak_corrects_the_estimates_of_other_settings_in_proportion():
    basis = context_on().basis
    estimate, other = basis.needed_bytes(), basis.with_patch({"training.gradient_checkpointing": True}).needed_bytes()
    peak = MeasuredPeak(rows=basis.micro_batch, eval_rows=basis.eval_batch, bytes=2 * estimate, runs=1)
    measured = replace(basis, setup=replace(basis.setup, measured_peaks=(peak,)))
    assert measured.needed_bytes() > 1.5 * estimate > 1.5 * other
    times = measured.with_patch({"training.gradient_checkpointing": True}).needed_bytes() / other
    assert times == pytest.approx(measured.needed_bytes() / estimate, rel=1e-3)
    again = measured.with_patch({"training.gradient_checkpointing": False})
    assert again.needed_bytes() == measured.needed_bytes()


@pytest.mark.full
def test_a_smaller_model_needs_less_memory_and_has_a_tokenizer_for_the_language_of_the_data(tmp_path, monkeypatch):
    from tests.tiny_models import save_tiny_model, texts
    from tui_trainer.advice.rules import model_size
    from tui_trainer.models.catalogue import CatalogueEntry

    own, other = (save_tiny_model(tmp_path / name, "llama") for name in ("own", "other"))
    (tmp_path / "data.txt").write_text("\n".join(texts()))
    settings = (f"model.model_name_or_path={own}", f"data.path={tmp_path / 'data.txt'}", "data.max_length=32")
    context = context_on(config(*settings))
    shape = json.loads((own / "config.json").read_text())
    half = context.required_plan.parameters.value // 2

    def evidence(**changes: object) -> str:
        (other / "config.json").write_text(json.dumps(shape | changes))
        more = {"weights_bytes": None, "gated": False, "license": "mit", "source": ""}
        entry = CatalogueEntry(name=str(other), parameters=half, config=shape | changes, **more)
        monkeypatch.setattr(model_size, "all_entries", lambda: [entry])
        return verdict_of("model_choice", context).evidence

    assert f"smaller: {other}" in evidence(num_hidden_layers=1)
    assert " tokens/character instead of " in evidence(num_hidden_layers=1)
    # The catalogue says that this model has fewer parameters, but it needs more memory.
    assert "smaller" not in evidence(vocab_size=100_000)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    letters = {name: number for name, number in tokenizer["model"]["vocab"].items() if len(name) == 1 or name[0] == "<"}
    tokenizer["model"] |= {"merges": [], "vocab": letters}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "smaller" not in evidence(num_hidden_layers=1)


def with_counts(context: Context, *, details: object = None, facts: object = None, **counted: int) -> Context:
    """The context of a table of 1,000 rows that was prepared, of which `counted` was counted."""
    return replace(context, facts=replace(facts_of(counted), details=details or {}, **(facts or {})))


def with_micro_batch(context: Context, rows: int) -> Context:
    micro = context.required_plan.per_device_train_batch_size.model_copy(update={"value": rows})
    return replace(context, plan=context.required_plan.model_copy(update={"per_device_train_batch_size": micro}))


def half_is_padding(*_) -> PaddingShares:
    return PaddingShares(padded=0.5, grouped=0.1, packed=None)


def test_rows_of_a_table_are_not_taken_for_one_stream_of_text(quickstart, subtests):
    assert "one stream" in verdict_of("padding", with_counts(quickstart, rows_read=0)).evidence
    for more in ({"class_count": 2}, {"target_tokens": 30}):
        with subtests.test(str(more)):
            table = with_counts(
                quickstart, facts={**more, "longest_row": 128, "row_tokens": 40.0, "padding": half_is_padding}
            )
            context = with_micro_batch(table, 8)
            padding, length = (verdict_of(name, context) for name in ("padding", "sequence_length"))
            assert "documents of about 40 tokens, the longest 128" in padding.evidence
            assert padding.status == "pass" and padding.opposite_patch == {"data.group_by_length": "auto"}
            assert length.status == "pass" and "900 rows of up to 128 tokens, 40 tokens on average" in length.evidence


def test_rows_of_a_validation_split_are_held_out_whatever_the_share_is(quickstart):
    use = SplitUse(source="corpus", training_split="train (2 files)", evaluation_split="validation (valid.csv)")
    loaded = config("data.eval_fraction=0")

    def verdict(rows: int, use: SplitUse = use) -> Verdict:
        eval_rows = quickstart.required_plan.eval_rows.model_copy(update={"value": rows})
        plan = quickstart.required_plan.model_copy(update={"splits": (use,), "eval_rows": eval_rows})
        return verdict_of("held_out", replace(quickstart, loaded=loaded, plan=plan))

    enough = verdict(900)
    assert enough.status == "pass"
    assert enough.evidence == "900 rows of the validation split (validation (valid.csv)) are held out"
    assert verdict(3).status == "warn"
    shared = verdict(900, replace(use, shares_rows=True))
    assert shared.status == "warn" and "corpus: rows used for evaluation are also trained on" in shared.evidence


def test_a_length_is_proposed_that_keeps_99_of_100_rows_whole(quickstart):
    cut = verdict_of("truncation", with_counts(quickstart, truncated_rows=11, details={"length_for_99_percent": 187}))
    assert cut.status == "warn" and cut.fix == {"data.max_length": 192}
    assert "11 of 1,000 rows (1.1%) are longer than 128 tokens" in cut.evidence and "192 tokens" in cut.evidence
    unknown = verdict_of("truncation", with_counts(quickstart, truncated_rows=1000))
    assert unknown.fix == {"data.max_length": 256}, "the length is doubled where no row shows one"


def test_no_length_is_proposed_beyond_the_positions_of_the_model(quickstart):
    context = with_counts(quickstart, truncated_rows=500, details={"length_for_99_percent": 5000})
    for limit, fix in ((512, {"data.max_length": 512}), (128, None)):
        shape = replace(context.basis.shape, max_position_embeddings=limit)
        verdict = verdict_of("truncation", replace(context, plan_basis=replace(context.basis, shape=shape)))
        assert verdict.status == "warn" and verdict.fix == fix and bool(verdict.advice) == (fix is None)


def test_documents_that_are_cut_into_rows_lose_nothing(quickstart):
    def verdict(name: str, facts: object, **counted: int) -> Verdict:
        return verdict_of(name, with_counts(quickstart, facts=facts, rows_read=0, train_documents=790, **counted))

    packed = {"packed_rows": 3.0}
    cut = verdict("truncation", packed, cut_documents=5, pieces=17)
    assert cut.status == "pass" and "5 of 890 documents are split into 17 rows" in cut.evidence
    whole = verdict("truncation", packed)
    assert whole.status == "pass" and whole.evidence == "each of 890 documents fits into a row; none is split"
    assert {verdict(name, {}, cut_documents=5, pieces=17).status for name in ("truncation", "eval_leaks")} == {"n/a"}


def test_the_fixes_of_data_mend_a_table_that_is_prepared(quickstart, tmp_path):
    words = ("sheep", "goat", "cow", "hen", "horse")
    rows = [{"text": f"{words[n % 5]} {n}", "label": "joy"} for n in range(90)]
    rows += [{"text": f"{words[n % 5]} minus {n}", "label": "anger"} for n in range(6)]
    rows += [{"text": " ".join(str(n * k % 89) for k in range(20)), "label": "anger"} for n in range(4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *rows[:30])), encoding="utf-8")
    loaded = config(
        "task.type=sequence_classification", f"data.path={path}", "model.init=scratch", "data.max_length=24",
        "tuning.method=full", "model.scratch.vocab_size=300", "training.max_steps=5",
    )  # fmt: skip

    def verdict(name: str, loaded: LoadedConfig) -> Verdict:
        task = find_task(loaded.config.task.type)
        data = task.prepare(loaded.config, loaded.data, prepared_data_folder(), lambda *_: None)
        return verdict_of(name, replace(quickstart, loaded=loaded, facts=task.facts(loaded.config, data)))

    for name in ("truncation", "eval_leaks", "label_balance"):
        before = verdict(name, loaded)
        assert before.status == "warn" and before.fix, (name, before)
        assert verdict(name, load_patched(loaded, before.fix)).status == "pass", (name, before.fix)


def test_the_list_of_what_is_on_has_what_no_setting_switches(subtests):
    for words, hardware, settings in (
        ("fused AdamW on, gradients set to None", CPU, ()),
        ("TF32: no GPU; cuDNN autotune: n/a, because this model", CPU, ()),
        ("TF32 on; cuDNN autotune: n/a, because this model", H100, ()),
        ("non-blocking copies: no GPU", CPU, ()),
        ("non-blocking copies on, from pinned memory", H100, ()),
        ("non-blocking copies: off, batches are not in pinned memory", H100, ("dataloader.pin_memory=false",)),
        ("non-blocking copies: off, batches are not in pinned memory", H100, ("dataloader.num_workers=0",)),
    ):
        with subtests.test(f"{words} {settings}"):
            findings = run_checks(context_on(config(*settings), hardware))
            assert [one for one in findings if words in one.verdict.switch_state], [
                one.verdict.switch_state for one in findings
            ]
