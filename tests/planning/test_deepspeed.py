"""DeepSpeed ZeRO as a strategy: when it is planned, its memory, and what it is refused with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_processes import FOUR, card, machine, planned
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.facts import Hardware
from tui_trainer.lines.plan_and_events import plan_lines

WITH_IT = replace(FOUR, libraries=FOUR.libraries | {"deepspeed": "0.19.8", "bitsandbytes": "0.48"})
STAGES = ("deepspeed-2", "deepspeed-3")
FULL = {"tuning__method": "full", "training__effective_batch_size": 64, "training__per_device_train_batch_size": 1}


def part(plan, name):
    return sum(found.bytes for found in plan.memory_parts if found.name == name)


def test_deepspeed_is_planned_only_on_request_and_for_several_processes():
    for strategy in STAGES:
        plan = planned(WITH_IT, distributed__strategy=strategy)
        assert (plan.processes.value, plan.strategy.value) == (4, strategy)
        assert "--set" in plan.strategy.reason and any(strategy in line for line in plan_lines(plan))
    assert planned(WITH_IT).strategy.value == "ddp"
    tight = replace(machine(*(card(n, free=6) for n in range(4))), libraries=WITH_IT.libraries)
    assert planned(tight, **FULL).strategy.value == "fsdp"
    one = replace(machine(card(0)), libraries={"torch": "2.15.0", "peft": "0.18"})
    assert planned(one, distributed__strategy="deepspeed-3").strategy.value == "ddp"


REFUSED = [
    ("deepspeed-2", {"tuning__method": "qlora"}, "4-bit weights cannot be trained"),
    ("deepspeed-2", {"training__torch_compile": "true"}, "layers cannot be compiled"),
    ("deepspeed-3", {"training__mixed_precision": "fp16"}, "fp16 loss scaling is not supported"),
    ("deepspeed-3", {"training__optim": "adafactor"}, "the optimizer state of adafactor cannot be sharded"),
    ("deepspeed-2", {"training__optim": "adamw_8bit"}, "the optimizer state of adamw_8bit cannot be sharded"),
    ("deepspeed-3", {"tuning__use_dora": "true"}, "DoRA"),
    (
        "deepspeed-2",
        {"tuning__modules_to_save": "lm_head", "model__dtype": "bfloat16"},
        "16-bit modules that are trained whole",
    ),
]


def test_settings_that_deepspeed_does_not_support_are_refused(subtests):
    for strategy, settings, words in REFUSED:
        with subtests.test(f"{strategy} {settings}"):
            with pytest.raises(ConfigError, match=words) as refused:
                planned(WITH_IT, distributed__strategy=strategy, **settings)
            [problem] = refused.value.problems
            assert f"with distributed.strategy = {strategy}" in problem.message
            [key] = [key for key in settings if key.startswith(problem.key.replace(".", "__"))]
            assert key and problem.hint


def test_a_missing_deepspeed_is_refused_with_the_command_to_install_it():
    with pytest.raises(ConfigError, match="needs DeepSpeed, which is not installed") as refused:
        planned(FOUR, distributed__strategy="deepspeed-2")
    [problem] = refused.value.problems
    assert problem.key == "distributed.strategy" and "uv pip install deepspeed" in problem.hint


def memory(hardware: Hardware, strategy: str, **settings):
    return planned(hardware, distributed__strategy=strategy, **FULL, **settings)


def test_zero_2_splits_optimizer_state_and_zero_3_also_weights():
    copies, two, three = (memory(WITH_IT, strategy) for strategy in ("ddp", *STAGES))
    assert part(two, "optimizer") == part(three, "optimizer") == pytest.approx(part(copies, "optimizer") / 4, rel=1e-6)
    parameters = copies.parameters.value
    assert part(copies, "weights") == 4 * parameters
    # All weights, and a part of their fp32 copies.
    assert part(two, "weights") == pytest.approx(5 * parameters, rel=1e-6)
    head = 4 * 32_000 * 2048
    assert part(three, "weights") == pytest.approx(2 * parameters + head, rel=1e-6)
    assert part(three, "gathered") and not part(two, "gathered")
    assert three.memory_bytes.value < two.memory_bytes.value < copies.memory_bytes.value


def test_offloaded_state_moves_from_the_card_to_the_host(subtests):
    for strategy in STAGES:
        with subtests.test(strategy):
            cards, host = memory(WITH_IT, strategy), memory(WITH_IT, strategy, distributed__cpu_offload="true")
            assert host.cpu_offload.value and not cards.cpu_offload.value
            assert part(host, "optimizer") == 0 and part(host, "weights") < part(cards, "weights")
            assert host.host_memory_bytes.value > cards.host_memory_bytes.value + 4 * (part(cards, "optimizer") // 2)
