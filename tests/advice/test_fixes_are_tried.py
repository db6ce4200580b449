"""Every fix of the checklist is one that the plan accepts: all that five configs are offered, each set wrong in many
ways."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice.test_every_check import (
    FULL,
    H100,
    RTX_4090,
    T4_WITH_BITSANDBYTES,
    TABLE,
    Input,
    documents,
    found,
    given,
    inputs_of,
    large_disk,
    load,
    seen,
)
from tests.combinations import first_by_default
from tests.test_gains import MEASURED
from tui_trainer.advice import checklist
from tui_trainer.advice.checklist import run_checks
from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Rule, Verdict, warned
from tui_trainer.advice.fixes import patched
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import ConfigError

__all__ = ["documents", "large_disk"]

UNSLOTH = {"model.provider": "unsloth"}
CONFIGS = {
    "characters on a CPU": given(),
    "LoRA of 1.5B on an H100": given(hardware=H100),
    "LoRA of 8B by Unsloth on an RTX 4090": given(UNSLOTH, RTX_4090, "llama-8b-lora"),
    "all weights of 82M on a T4": given(hardware=T4_WITH_BITSANDBYTES, recipe="distilgpt2-full"),
    "classes on a CPU": given(recipe="docstring-topics"),
}


def wrong_ways() -> Iterator[Mapping[str, Any]]:
    """Settings of the table with which some check has something to mend, each once."""
    known = set()
    for name in TABLE:
        for one in (*inputs_of(name, "warn"), *inputs_of(name, "fail")):
            if one.settings and (key := json.dumps(one.settings, sort_keys=True, default=str)) not in known:
                known.add(key)
                yield one.settings


def contexts(
    name: str, documents: Path, ways: list[Mapping[str, Any]]
) -> Iterator[tuple[Input, LoadedConfig, Context]]:
    base = CONFIGS[name]
    for settings in ({}, *ways):
        one = replace(base, settings={**base.settings, **settings}, run_seconds=7200.0)
        try:
            loaded = load(one, documents)
        except ConfigError:
            continue  # that is no setting of this config
        yield one, loaded, seen(one, loaded, one.hardware)


def refused(context: Context, loaded: LoadedConfig, fix: Mapping[str, Any], one: Input) -> list[str]:
    """What stands against the config with the fix and not against it without."""
    try:
        after = gather(patched(loaded, fix), hardware=one.hardware)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    if context.plan is None:  # what is in the way of planning may hide more
        return [str(problem) for problem in after.problems if problem.key in fix]
    kinds = {problem.key for problem in context.problems} | {"model.model_name_or_path", "model.provider"}
    return [str(problem) for problem in after.problems if problem.key not in kinds]


def offered(
    name: str, documents: Path, ways: list[Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any], list[str]]]:
    """(check, fix, why it is refused), each fix of each check once."""
    tried: dict[tuple[str, str], tuple[str, Mapping[str, Any], list[str]]] = {}
    for one, loaded, context in contexts(name, documents, ways):
        for finding in run_checks(context):
            key = finding.name, json.dumps(finding.fix, sort_keys=True)
            if finding.fix and key not in tried:
                tried[key] = finding.name, finding.fix, refused(context, loaded, finding.fix, one)
    return list(tried.values())


LEAST = dict(zip(CONFIGS, (50, 60, 60, 50, 48), strict=True))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.e2e) for name in CONFIGS])
def test_the_plan_accepts_every_fix_that_a_config_is_offered(name, documents):
    found_here = offered(name, documents, list(wrong_ways()))
    assert len(found_here) >= LEAST[name], len(found_here)
    assert [(check, fix, why) for check, fix, why in found_here if why] == []


@pytest.mark.parametrize("name", first_by_default(CONFIGS, 2))
def test_the_plan_accepts_every_fix_of_some_wrong_ways(name, documents):
    found_here = offered(name, documents, list(wrong_ways())[::12])
    assert len(found_here) >= 8
    assert [(check, fix, why) for check, fix, why in found_here if why] == []


def test_a_fix_that_the_plan_refuses_is_not_offered_and_the_check_says_why(documents):
    class Hopeful(Rule):
        """It proposes what another setting forbids."""

        name, title, order = "hopeful", "Hopeful", 1

        def before(self, context: Context) -> Verdict:
            return warned("1 thing is off", fix={"training.torch_compile": True}, advice="look")

    one = given(UNSLOTH, RTX_4090)
    (finding,) = run_checks(seen(one, load(one, documents), one.hardware), [Hopeful()])
    assert finding.fix is None and finding.changes == () and finding.is_open
    assert finding.verdict.advice.startswith("look; training.torch_compile = true would be refused here: ")
    assert "does not go with model.provider = unsloth" in finding.verdict.advice
    plain = given(hardware=RTX_4090)
    (finding,) = run_checks(seen(plain, load(plain, documents), plain.hardware), [Hopeful()])
    assert finding.fix == {"training.torch_compile": True} and finding.verdict.advice == "look"


def test_what_one_problem_hid_does_not_refuse_the_fix_of_it(documents):
    """Without kernels that are not here the plan goes on, and finds that the memory is short."""
    one = given({**FULL, "model.kernels": "liger"}, T4_WITH_BITSANDBYTES, "llama-8b-lora")
    context = seen(one, load(one, documents), one.hardware)
    assert context.plan is None and {problem.key for problem in context.problems} == {"model.kernels"}
    assert found("kernels", context).fix == {"model.kernels": "auto"}


def test_a_switch_whose_other_position_was_measured_to_be_faster_is_proposed(documents, monkeypatch):
    one = given(recipe="docstring-topics")
    context = seen(one, load(one, documents), one.hardware)
    before = found("optimizer", context)
    assert before.status == "pass" and before.verdict.opposite
    speed = found("attention", context)
    other = speed.verdict.opposite
    monkeypatch.setattr(checklist.KeptGains, "find", lambda self, patch: MEASURED if patch == other else None)
    faster = found("attention", context)
    assert (faster.status, faster.fix) == ("warn", other)
    assert "was measured to be faster here" in faster.verdict.evidence
