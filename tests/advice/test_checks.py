"""All checks at once: what each of them promises, and what their fixes mend together."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.advice.machines import CPU, RTX_4090, T4_WITH_BITSANDBYTES
from tests.advice.test_every_check import (
    FULL,
    WITH_UNSLOTH,
    Gathered,
    context_of,
    finding_of,
    given,
    load,
)
from tui_trainer.advice.checklist import all_checks, apply_fixes, run_checks, worst
from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import STATUSES, Verdict, all_rules, rule, warned
from tui_trainer.advice.fixes import load_patched
from tui_trainer.advice.gather import gather
from tui_trainer.advice.measured_gains import Gain, Measurable, keep_gain
from tui_trainer.config.load import LoadedConfig, Request, all_settings
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.units import GIB

SMALL_CPU = replace(CPU, usable_cores=2)


def config(**changes: object) -> LoadedConfig:
    """`config(training__max_steps=5)`: the quickstart recipe with a few settings changed."""
    pairs = {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in pairs.items())))


def context_on(loaded: LoadedConfig, hardware: Hardware = SMALL_CPU) -> Context:
    """What the checks look at. The speed and the load of the machine that runs the tests decide nothing."""
    context = gather(loaded, hardware=hardware)
    plan = context.plan
    if plan is not None:
        step = plan.step_seconds.model_copy(update={"value": plan.step_flops / 30e9})
        total = plan.duration_seconds.model_copy(update={"value": 1.1 * plan.total_steps.value * step.value})
        plan = plan.model_copy(update={"step_seconds": step, "duration_seconds": total})
    cache = replace(context.cache, free_bytes=100 * GIB)
    return replace(context, plan=plan, load_average=0.0, environment={}, disk_free_bytes=100 * GIB, cache=cache)


def text_file(folder: Path, characters: int) -> Path:
    path = folder / f"text-{characters}.txt"
    lines = (f"line {number} says {number * number % 97}.\n" for number in count())
    text = ""
    while len(text) < characters:
        text += next(lines)
    path.write_text(text[:characters])
    return path


def test_each_rule_has_a_name_and_a_place_of_its_own_a_reason_and_settings_that_exist():
    assert len({rule.name for rule in all_rules()}) == len(all_rules())
    assert len({check.order for check in all_checks()}) == len(all_checks())
    for one in all_rules():
        assert one.order or one.symptoms or one.remedies, one.name
        assert len({*one.settings}) == len(one.settings) and {*one.settings} <= set(all_settings()), one.name
    for check in all_checks():
        assert check.why.endswith(".") and len(check.title) <= 34, check.name
        assert not check.published_gain or "(" in check.published_gain, f"{check.name}: whose figure is it?"
        assert check.why.isascii() and check.published_gain.isascii()


@pytest.mark.full
def test_no_check_loads_torch():
    code = (
        "import sys\n"
        "from tui_trainer.advice.gather import gather\n"
        "from tui_trainer.advice.checklist import all_checks, run_checks\n"
        "from tui_trainer.config.load import Request\n"
        "from tui_trainer.launching.open_run import load_config\n"
        "assert len(run_checks(gather(load_config(Request())))) == len(all_checks())\n"
        "sys.exit(' '.join({'torch', 'transformers', 'textual'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_model_from_scratch_gets_a_size_that_its_text_can_teach(subtests):
    """The table in `test_every_check.py` leaves this out: a process with torch answers for each size that is tried."""
    few_layers = {"training__max_steps": 2, "model__scratch__hidden_size": 16, "model__scratch__num_hidden_layers": 8}
    for changes, key in (
        ({"training__max_steps": 60}, "model.scratch.hidden_size"),
        (few_layers, "model.scratch.num_hidden_layers"),
    ):
        with subtests.test(key):
            loaded = config(**changes)
            finding = finding_of("model_size", context_on(loaded))
            assert finding.status == "warn" and set(finding.fix) == {key}
            assert finding_of("model_size", context_on(load_patched(loaded, finding.fix))).status == "pass"


def assert_fixes_do_not_undo_each_other(folder: Path, characters: int, epochs: int) -> None:
    bad = {
        "data__path": f'"{text_file(folder, characters)}"',
        "data__max_length": 8 if characters > 20_000 else 128,
        "training__max_steps": 0,
        "training__num_train_epochs": epochs,
        "training__weight_decay": 0,
        "training__max_grad_norm": 0,
        "training__warmup_steps": 0,
        "evaluation__eval_steps": 1,
    }
    loaded, changes, findings = apply_fixes(config(**bad), context_on)
    assert {"training.weight_decay", "training.max_grad_norm", "training.warmup_steps"} <= set(changes)
    assert [finding.name for finding in findings if finding.fix] == []
    assert worst(findings) in ("pass", "warn")
    assert all(loaded.origin(key).by_user for key in changes)


def test_after_all_fixes_no_check_has_another_fix(tmp_path):
    assert_fixes_do_not_undo_each_other(tmp_path, characters=300_000, epochs=1)


@pytest.mark.full
def test_after_all_fixes_of_texts_from_a_few_lines_to_a_book_no_check_has_another_fix(tmp_path, subtests):
    for characters, epochs in ((400, 200), (3_000, 1), (30_000, 8)):
        with subtests.test(f"{characters} characters, {epochs} epochs"):
            assert_fixes_do_not_undo_each_other(tmp_path, characters, epochs)


def test_a_check_that_breaks_becomes_a_finding_and_stops_no_other():
    @rule("Broken", 1)
    def broken(context: Context) -> Verdict:
        raise ZeroDivisionError("division by zero")

    findings = run_checks(context_on(config()), [broken, *all_checks()])
    assert findings[0].status == "error" and "ZeroDivisionError: division by zero" in findings[0].verdict.evidence
    assert findings[0].is_open and worst(findings) == "error"
    assert len(findings) == len(all_checks()) + 1
    assert {finding.status for finding in findings[1:]} <= {*STATUSES} - {"error"}


def test_without_a_plan_only_checks_that_need_none_give_a_status(tmp_path):
    context = context_on(config(data__path=tmp_path / "missing.txt"))
    findings = {finding.name: finding for finding in run_checks(context)}
    assert context.plan is None
    plan = findings["plan"]
    assert plan.status == "fail" and "missing.txt" in plan.verdict.evidence and plan.setting == "data.path"
    assert plan.verdict.advice and plan.verdict.advice not in plan.verdict.evidence
    assert findings["steps"].status == "n/a" and findings["clipping"].status == "pass"
    assert not any(finding.status == "error" for finding in findings.values())


def test_fixes_are_applied_to_a_config_that_cannot_be_planned_as_well():
    loaded = config(profile="char-lm", data__eval_fraction=0)
    assert context_on(loaded).plan is None
    mended, changes, findings = apply_fixes(loaded, context_on)
    assert changes["data.eval_fraction"] == 0.1 and context_on(mended).plan is not None
    assert worst(findings) in ("pass", "warn")


@pytest.mark.usefixtures("large_disk")
def test_a_fix_that_the_plan_refuses_is_not_offered_and_the_advice_says_why(documents):
    @rule("Hopeful", 1)
    def hopeful(context: Context) -> Verdict:
        """It proposes what another setting forbids."""
        return warned("1 thing is off", fix={"training.torch_compile": True}, advice="look")

    gathered = Gathered(documents)
    (finding,) = run_checks(gathered.context(given(WITH_UNSLOTH, RTX_4090)), [hopeful])
    assert finding.fix is None and finding.changes == () and finding.is_open
    assert finding.verdict.advice.startswith("look; training.torch_compile = true would be refused here: ")
    assert "is not supported with model.provider = unsloth" in finding.verdict.advice
    (finding,) = run_checks(gathered.context(given(hardware=RTX_4090)), [hopeful])
    assert finding.fix == {"training.torch_compile": True} and finding.verdict.advice == "look"


@pytest.mark.usefixtures("large_disk")
def test_a_fix_is_offered_although_another_problem_was_hidden_behind_the_one_that_it_mends(documents):
    """Without kernels that are not installed the plan goes on, and finds that the memory is short."""
    row = given({**FULL, "model.kernels": "liger"}, T4_WITH_BITSANDBYTES, "llama-8b-lora")
    context = gather(load(row, documents), hardware=row.hardware)
    assert context.plan is None and {problem.key for problem in context.problems} == {"model.kernels"}
    assert finding_of("kernels", context).fix == {"model.kernels": "auto"}


def test_a_switch_whose_other_position_was_measured_to_be_faster_is_proposed(documents):
    row = given()
    context = context_of(row, gather(load(row, documents), hardware=row.hardware))
    before = finding_of("attention", context)
    other = before.verdict.opposite_patch
    assert before.status == "pass" and other
    gain = Gain(at="2026-11-23T10:00:00Z", ratios=(1.7, 1.8, 1.84), steps=24)
    keep_gain(Measurable.of(context.plan), other, context.plan.shape_key, gain)
    faster = finding_of("attention", context)
    assert (faster.status, faster.fix) == ("warn", other)
    assert "was measured to be faster here" in faster.verdict.evidence
