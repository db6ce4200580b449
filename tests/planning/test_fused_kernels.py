"""model.kernels: what auto becomes on which machine, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.advice.test_on_gpus import H200, PASCAL
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fused_kernels import LIGER_FAMILIES, fused_kernels, kernel_problems

LIGER = replace(H200, libraries={**H200.libraries, "liger-kernel": "0.8.5"})
CPU = replace(LIGER, gpus=(), driver=None)


def planned(hardware: Hardware, family: str = "llama", **settings):
    """(what it becomes, its reason, why it is refused)."""
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    loaded, target = load_config(Request(assignments=assignments)), TrainingDevice.of(hardware)
    shape = SimpleNamespace(model_type=family)
    found = fused_kernels(loaded, hardware, target, shape)
    problems = kernel_problems(loaded, hardware, target, shape)
    return found.value, found.reason, " ".join(problem.message for problem in problems)


def test_auto_takes_liger_where_card_and_family_have_it():
    assert planned(LIGER) == ("liger", "auto: liger-kernel 0.8.5 knows llama", "")
    assert len(LIGER_FAMILIES) > 15 and planned(LIGER, "qwen3")[0] == "liger"


@pytest.mark.parametrize(("hardware", "family", "settings", "reason"), [
    (H200, "llama", {}, "liger-kernel is not installed"),
    (CPU, "llama", {}, "this run is on the CPU"),
    (LIGER, "gpt2", {}, "none for gpt2"),
    (replace(PASCAL, libraries=LIGER.libraries), "llama", {}, "7.0, this card has 6.1"),
    (replace(LIGER, libraries={**LIGER.libraries, "triton": None}), "llama", {}, "triton"),
    (LIGER, "llama", {"training__torch_compile": "true"}, "compiled layers fuse the same"),
    (LIGER, "llama", {"training__deterministic": "true"}, "the same bits"),
    (LIGER, "llama", {"model__kernels": "none"}, "from --set"),
])  # fmt: skip
def test_auto_takes_none_elsewhere_and_says_why(hardware, family, settings, reason):
    value, found, problems = planned(hardware, family, **settings)
    assert (value, problems) == ("none", "") and reason in found


@pytest.mark.parametrize(("hardware", "family", "kernels", "refusal"), [
    (H200, "llama", "liger", "liger-kernel is not installed"),
    (CPU, "llama", "liger", "on the CPU"),
    (LIGER, "gpt2", "liger", "none for gpt2"),
])  # fmt: skip
def test_what_is_asked_for_by_name_and_cannot_be_is_refused(hardware, family, kernels, refusal):
    value, _, problems = planned(hardware, family, model__kernels=kernels)
    assert value == kernels and refusal in problems


def test_by_name_they_stay_with_compiled_layers():
    settings = {"model__kernels": "liger", "training__torch_compile": "true"}
    assert planned(LIGER, **settings)[::2] == ("liger", "")
