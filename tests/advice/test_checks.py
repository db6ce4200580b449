"""All checks at once: what each of them promises, and what each of their fixes mends."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter

import pytest

from tui_trainer.advice import rules
from tui_trainer.advice.checklist import all_checks, apply_fixes, run_checks, worst
from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import STATUSES, Rule, Verdict, all_rules
from tui_trainer.advice.fixes import patched
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import LoadedConfig, Request, all_settings
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.units import GIB

NUMBER_OF_CHECKS = 57
MACHINE = Hardware(
    cpu_name="Test CPU",
    usable_cores=2,
    memory_bytes=16 * GIB,
    memory_available_bytes=8 * GIB,
    platform="Linux",
    python_version="3.11",
)


def asked(**changes) -> LoadedConfig:
    """`asked(training__max_steps=5)`: the quickstart recipe with a few settings changed."""
    pairs = {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in pairs.items())))


def seen(loaded: LoadedConfig, hardware: Hardware = MACHINE, **facts) -> Context:
    """What the checks look at on the test machine; `facts` replace what was gathered."""
    context = gather(loaded, hardware=hardware)
    facts = {
        "load_average": 0.0,
        "environment": {},
        "disk_free_bytes": 100 * GIB,
        "cache": replace(context.cache, free_bytes=100 * GIB),
    } | facts
    plan = context.plan
    if plan is not None:
        # The speed of the machine that the tests run on decides nothing.
        step = plan.step_seconds.model_copy(update={"value": plan.step_flops / 30e9})
        total = plan.duration_seconds.model_copy(update={"value": 1.1 * plan.total_steps.value * step.value})
        plan = plan.model_copy(update={"step_seconds": step, "duration_seconds": total})
    return replace(context, plan=plan, **facts)


def named(context: Context, name: str):
    (finding,) = run_checks(context, [check for check in all_checks() if check.name == name])
    return finding


def text_file(folder: Path, characters: int) -> Path:
    path = folder / f"text-{characters}.txt"
    words = (f"line {number} says {number * number % 97}.\n" for number in count())
    text = ""
    while len(text) < characters:
        text += next(words)
    path.write_text(text[:characters])
    return path


def test_every_class_of_a_rule_is_asked():
    sources = [path.read_text("utf-8") for path in Path(rules.__path__[0]).glob("*.py")]
    classes = sum(source.count("(Rule):\n") for source in sources)
    assert len({rule.name for rule in all_rules()}) == len(all_rules()) == classes
    assert len({check.order for check in all_checks()}) == len(all_checks()) == NUMBER_OF_CHECKS
    for rule in all_rules():
        speaks = "before" in vars(type(rule)), bool(rule.during), "remedies" in vars(type(rule))
        assert speaks[0] == bool(rule.order) and any(speaks), rule.name
        assert len({*rule.settings}) == len(rule.settings) and {*rule.settings} <= set(all_settings()), rule.name


def test_every_check_keeps_its_promise():
    swept = 0
    for loaded in (asked(), asked(profile="char-lm"), asked(training__weight_decay=0)):
        for finding in run_checks(seen(loaded)):
            check, verdict = finding.rule, finding.verdict
            assert check.why.endswith(".") and len(check.title) <= 34, check.name
            assert not check.published or "(" in check.published, f"{check.name}: whose figure is it?"
            assert finding.status in STATUSES and finding.status != "error", verdict.evidence
            assert any(sign.isdigit() for sign in verdict.evidence) or finding.status == "n/a", verdict.evidence
            assert "\n" not in verdict.evidence and not verdict.evidence.endswith(".")
            assert verdict.evidence.isascii() and check.why.isascii() and check.published.isascii()
            assert finding.is_open == (finding.status in ("warn", "fail"))
            if finding.is_open:
                assert finding.fix or verdict.advice, f"{check.name}: what is there to do?"
            else:
                assert not finding.fix
            assert finding.measured_gain is None
            assert not (verdict.fix and verdict.opposite), f"{check.name}: one alternative"
            swept += 1
    assert swept == 3 * NUMBER_OF_CHECKS


def test_a_look_is_quick():
    context = seen(asked())
    for check in all_checks():
        before = perf_counter()
        check.before(context)
        assert perf_counter() - before < 0.2, check.name


def test_no_check_loads_torch():
    code = (
        "import sys\n"
        "from tui_trainer.advice.gather import gather\n"
        "from tui_trainer.advice.checklist import run_checks\n"
        "from tui_trainer.config.load import Request\n"
        "from tui_trainer.launching.open_run import load_config\n"
        f"assert len(run_checks(gather(load_config(Request())))) == {NUMBER_OF_CHECKS}\n"
        "sys.exit(' '.join({'torch', 'transformers', 'textual'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training__max_steps": 60}, "model.scratch.hidden_size"),
        (
            {"training__max_steps": 2, "model__scratch__hidden_size": 16, "model__scratch__num_hidden_layers": 8},
            "model.scratch.num_hidden_layers",
        ),
    ],
)
def test_a_model_from_scratch_gets_a_size_that_its_text_can_teach(changes, key):
    """Each size that is tried is asked of a process with torch: the other checks are in `test_every_check.py`."""
    loaded = asked(**changes)
    found = named(seen(loaded), "model_size")
    assert found.status == "warn" and set(found.fix) == {key}
    assert named(seen(patched(loaded, found.fix)), "model_size").status == "pass"


@pytest.mark.parametrize("characters", [400, 3_000, 30_000, 300_000])
@pytest.mark.parametrize("epochs", [1, 8, 200])
def test_all_fixes_together_leave_nothing_that_a_patch_could_mend(tmp_path, characters, epochs):
    """On texts from a few lines to a book: the fixes do not undo each other."""
    path = text_file(tmp_path, characters)
    bad = {
        "data__path": f'"{path}"',
        "data__max_length": 8 if characters > 20_000 else 128,
        "training__max_steps": 0,
        "training__num_train_epochs": epochs,
        "training__weight_decay": 0,
        "training__max_grad_norm": 0,
        "training__warmup_steps": 0,
        "evaluation__eval_steps": 1,
    }
    loaded, changes, findings = apply_fixes(asked(**bad), seen)
    assert {"training.weight_decay", "training.max_grad_norm", "training.warmup_steps"} <= set(changes)
    assert [finding.name for finding in findings if finding.fix] == []
    assert worst(findings) in ("pass", "warn")
    for key in changes:
        assert loaded.origin(key).by_user


def test_a_check_that_breaks_becomes_a_finding_and_stops_no_other():
    class Broken(Rule):
        name, title, order = "broken", "Broken", 1

        def before(self, context: Context) -> Verdict:
            raise ZeroDivisionError("division by zero")

    context = seen(asked())
    findings = run_checks(context, [Broken(), *all_checks()])
    assert findings[0].status == "error" and "ZeroDivisionError: division by zero" in findings[0].verdict.evidence
    assert findings[0].is_open and worst(findings) == "error"
    assert len(findings) == NUMBER_OF_CHECKS + 1


def test_without_a_plan_only_what_needs_none_is_judged(tmp_path):
    context = seen(asked(data__path=tmp_path / "missing.txt"))
    found = {finding.name: finding for finding in run_checks(context)}
    assert context.plan is None
    assert found["plan"].status == "fail" and "missing.txt" in found["plan"].verdict.evidence
    assert found["steps"].status == "n/a" and found["clipping"].status == "pass"
    assert not any(finding.status == "error" for finding in found.values())


def test_a_fix_may_be_the_way_to_a_plan():
    loaded = asked(profile="char-lm", data__eval_fraction=0)
    assert seen(loaded).plan is None
    mended, changes, findings = apply_fixes(loaded, seen)
    assert changes["data.eval_fraction"] == 0.1 and seen(mended).plan is not None
    assert worst(findings) in ("pass", "warn")
