"""How many processes a run has, on which cards, with which strategy, and how the batch is cut among them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tui_trainer.config.load import Request
from tui_trainer.data.batching.row_order import share_of
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.planning import plan as planning
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.planning.retarget import retarget_processes
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB, format_bytes, format_seconds


def card(index, name="NVIDIA A100-SXM4-80GB", free=79):
    return Gpu(
        index=index, name=name, uuid=f"GPU-0000000{index}", capability=(8, 0), memory_bytes=80 * GIB,
        memory_free_bytes=free * GIB, processes=(),
    )  # fmt: skip


def machine(*gpus):
    return Hardware(
        cpu_name="Test CPU", usable_cores=16, memory_bytes=512 * GIB, memory_available_bytes=500 * GIB,
        platform="Linux", python_version="3.11", gpus=gpus, driver=Driver(version="580", cuda=(13, 0)),
        torch_cuda=(13, 0), libraries={"torch": "2.15.0", "peft": "0.18"},
    )  # fmt: skip


FACTS = DataFacts(
    rows=4000, eval_rows=0, tokens=400_000, eval_tokens=0, vocabulary=32_000, row_tokens=100.0, exact=True, reason="",
)  # fmt: skip


def planned(hardware, gpu=None, **settings):
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    loaded = load_config(Request(profile="tinyllama-lora", assignments=("data.packing=false", *assignments)))
    return planning.make(loaded, hardware, FACTS, chosen_gpu=gpu)


FOUR = machine(*map(card, range(4)))


def test_each_card_of_one_kind_has_a_process():
    plan = planned(FOUR, training__effective_batch_size=64)
    assert plan.processes.value == 4 and plan.gpu_uuids == tuple(gpu.cuda_uuid for gpu in FOUR.gpus)
    assert plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value == 16
    assert plan.threads.value == 3
    assert any("processes" in line and "4 identical GPUs" in line for line in plan_lines(plan))
    one = planned(FOUR, distributed__processes=1, training__effective_batch_size=64)
    assert plan.host_memory_bytes.value == pytest.approx(4 * one.host_memory_bytes.value, rel=0.05)
    text = planned(machine(card(0))).model_dump_json(exclude={"processes", "gpu_uuids"})
    assert read_plan_file(text.encode()).processes.value == 1, "a plan of an earlier version"


def test_the_learning_rate_is_scaled_to_the_rows_of_all_processes():
    cut = {"training__per_device_train_batch_size": 4, "training__gradient_accumulation_steps": 4}
    plan = planned(FOUR, training__lr_scaling="linear", **cut)
    whole = planned(FOUR, training__lr_scaling="linear", training__effective_batch_size=64)
    assert plan.effective_batch_size.value == whole.effective_batch_size.value == 64
    assert plan.learning_rate.value == whole.learning_rate.value
    assert "(recipe tinyllama-lora) to 64 rows" in plan.learning_rate.reason


COUNTS = [
    (machine(card(0)), None, {}, 1, "one GPU"),
    (FOUR, 2, {}, 1, "GPU 2 was chosen"),
    (machine(card(0), card(1, "NVIDIA T4")), None, {}, 1, "the other GPUs are different models"),
    (FOUR, None, {"distributed__processes": 2}, 2, "from --set"),
    (FOUR, None, {"training__effective_batch_size": 3}, 3, "4 GPUs, but a step has only 3 rows"),
    (FOUR, "none", {}, 1, "one process uses all cores of the CPU"),
    (FOUR, "none", {"distributed__processes": 2}, 2, "from --set"),
    (machine(card(0), replace(card(1), visible=False)), None, {}, 1, "one GPU"),
]


def test_the_number_of_processes_has_a_reason(subtests):
    for hardware, gpu, settings, count, reason in COUNTS:
        with subtests.test(reason):
            plan = planned(hardware, gpu, **settings)
            assert (plan.processes.value, plan.processes.reason) == (count, reason)
            assert len(plan.gpu_uuids) == (count if count > 1 and gpu != "none" else 0)


def test_the_memory_budget_is_that_of_the_card_with_the_least_free():
    tight = machine(card(0), card(1, free=20), card(2))
    plan = planned(tight, training__effective_batch_size=512)
    assert plan.processes.value == 3 and plan.memory_budget_bytes == int(0.9 * 20 * GIB)
    assert plan.memory_bytes.value <= plan.memory_budget_bytes


CONFLICTS = [
    ({"distributed__processes": 5}, "is 5, but only 4 GPUs can be used"),
    ({"distributed__processes": 4, "training__effective_batch_size": 3}, "is 4, but a step has 3 rows, and each"),
    ({"distributed__processes": 2, "training__effective_batch_size": 64, "training__per_device_train_batch_size": 8,
      "training__gradient_accumulation_steps": 8}, "distributed.processes = 8 x 8 x 2 = 128"),
    ({"distributed__strategy": "hsdp"}, "is hsdp, which needs several nodes"),
]  # fmt: skip
NOT_OFFLOADED = [
    ({"distributed__strategy": "ddp"}, "is ddp, which keeps all weights on each GPU"),
    ({"training__torch_compile": "true"}, "cannot be sharded, but distributed.cpu_offload = true shards the model"),
    ({"training__optim": "adafactor"}, "the optimizer state of adafactor cannot be sharded"),
    ({"training__optim": "adamw_torch"}, "the optimizer state of adamw_torch cannot be sharded"),
]


def test_conflicting_settings_are_one_problem(subtests):
    cases = [(planned, FOUR, *case) for case in CONFLICTS]
    for plan, hardware, settings, words in cases + [(offloaded, cards_of(1, 80), *case) for case in NOT_OFFLOADED]:
        with subtests.test(words):
            with pytest.raises(ConfigError) as caught:
                plan(hardware, **settings)
            [problem] = caught.value.problems
            assert words in problem.message


def test_a_run_can_continue_in_another_number_of_processes():
    plan = planned(FOUR, training__effective_batch_size=64, training__per_device_train_batch_size=8)
    fewer, words = retarget_processes(plan, FOUR, 2)
    assert words == "resuming with 2 processes instead of 4"
    assert (fewer.processes.value, len(fewer.gpu_uuids)) == (2, 2)
    assert (fewer.per_device_train_batch_size.value, fewer.gradient_accumulation_steps.value) == (8, 4)
    assert retarget_processes(plan, FOUR, None) == (plan, "")
    lost, words = retarget_processes(plan, machine(*map(card, range(3))), None)
    assert (lost.processes.value, words) == (3, "resuming with 3 processes instead of 4")
    for count, why in ((5, "5 processes need one GPU each, but only 4 can be used"), (65, "need one GPU each")):
        with pytest.raises(ConfigError, match=why):
            retarget_processes(plan, FOUR, count)


def test_rows_are_shared_evenly_among_processes_and_none_is_lost():
    random = np.random.default_rng(5)
    for count, rows in product((1, 2, 3, 4, 7), (1, 2, 5, 32)):
        lengths = random.integers(1, 500, rows)
        shares = [share_of(lengths, number, count) for number in range(count)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(rows))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        if rows == 32:
            tokens = [int(lengths[share].sum()) for share in shares]
            assert max(tokens) - min(tokens) <= 500


def large(hardware, **settings):
    """Plan the training of all weights of 8 B parameters."""
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    loaded = load_config(Request(profile="llama-8b-lora", assignments=("tuning.method=full", *assignments)))
    return planning.make(loaded, hardware, replace(FACTS, vocabulary=128_256))


def test_a_model_that_does_not_fit_on_one_card_is_sharded():
    plan = large(FOUR, training__effective_batch_size=16)
    assert (plan.processes.value, plan.strategy.value) == (4, "fsdp")
    assert plan.strategy.reason == "the model fits only when sharded"
    parts = {part.name: part.bytes for part in plan.memory_parts}
    huge = machine(replace(card(0), memory_bytes=400 * GIB, memory_free_bytes=400 * GIB))
    whole = {part.name: part.bytes for part in large(huge, training__effective_batch_size=16).memory_parts}
    assert whole["optimizer"] == pytest.approx(4 * parts["optimizer"], rel=1e-6)
    assert "gathered" in parts and "gathered" not in whole
    assert plan.memory_bytes.value <= plan.memory_budget_bytes
    # Copies of it are what does not fit.
    with pytest.raises(ConfigError, match="needs about"):
        large(FOUR, distributed__strategy="ddp", training__effective_batch_size=16)


def test_a_model_that_fits_is_replicated_unless_fsdp_is_requested():
    plan = planned(FOUR)
    assert plan.strategy.value == "ddp" and "model and its gradients fit" in plan.strategy.reason
    split = planned(FOUR, distributed__strategy="fsdp")
    shown = "\n".join(plan_lines(split))
    assert split.strategy.value == "fsdp" and "fsdp" in shown and "gathered" in shown
    with pytest.raises(ConfigError, match="4-bit weights cannot be sharded"):
        with_it = replace(FOUR, libraries=FOUR.libraries | {"bitsandbytes": "0.48"})
        planned(with_it, distributed__strategy="fsdp", tuning__method="qlora")


REPLICATED, TOO_LARGE = ("ddp", "model and its gradients fit"), ("", "needs about")
# GB of a card, cards, method; the strategy, or that it fits on none, and the reason.
TABLE = [
    *((size, 1, "lora", "ddp", "one process") for size in (24, 80)),
    *((size, count, "lora", *REPLICATED) for size in (24, 80) for count in (2, 8)),
    *((24, count, "full", *TOO_LARGE) for count in (1, 2, 8)),
    (80, 1, "full", *TOO_LARGE),
    (80, 2, "full", "fsdp", "sharding comes closest"),
    (80, 8, "full", "fsdp", "the model fits only when sharded"),
]


def test_strategy_of_8_billion_parameters_by_card_size_and_count(subtests):
    for size, count, method, strategy, reason in TABLE:
        with subtests.test(f"{count} x {size} GB, {method}"):
            settings = {"tuning__method": method, "training__effective_batch_size": 16, "data__max_length": 2048}
            hardware = replace(cards_of(count, size), memory_bytes=2048 * GIB)
            if not strategy:
                with pytest.raises(ConfigError, match=reason):
                    large(hardware, **settings)
                continue
            plan = large(hardware, **settings)
            assert plan.strategy.value == strategy and reason in plan.strategy.reason
            assert plan.memory_bytes.value <= size * 10**9


def test_each_node_has_the_whole_model_if_it_fits():
    several = {"distributed__nodes": 2, "training__effective_batch_size": 16}
    plan = large(replace(FOUR, memory_bytes=4096 * GIB), **several)
    assert (plan.strategy.value, plan.training_setup.shards) == ("hsdp", 4)
    assert "sharded within each node" in plan.strategy.reason
    tight = machine(*(replace(card(n), memory_bytes=24 * GIB, memory_free_bytes=24 * GIB) for n in range(4)))
    plan = large(replace(tight, memory_bytes=4096 * GIB), **several)
    assert (plan.strategy.value, plan.training_setup.shards) == ("fsdp", 8)


@pytest.mark.full
def test_memory_of_a_sharded_run_follows_a_change_of_its_processes():
    """Compare with plans that were made for as many processes from the beginning."""
    settings = {"distributed__strategy": "fsdp", "tuning__method": "full", "training__effective_batch_size": 16}
    two, four = (planned(FOUR, distributed__processes=count, **settings) for count in (2, 4))
    assert two.memory_bytes.value > four.memory_bytes.value
    moved, _ = retarget_processes(two, FOUR, 4)
    assert (moved.training_setup.shards, moved.training_setup.most_rows) == (4, four.training_setup.most_rows)
    split = {"per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"}
    assert all(getattr(moved, name).value == getattr(four, name).value for name in split)
    assert (moved.memory_parts, moved.memory_bytes.value) == (four.memory_parts, four.memory_bytes.value)
    assert moved.host_memory_parts == four.host_memory_parts
    alone, _ = retarget_processes(two, FOUR, 1)
    assert alone.training_setup.shards == 1 and "gathered" not in {part.name for part in alone.memory_parts}
    back, _ = retarget_processes(alone, FOUR, 4)
    assert back.memory_parts == four.memory_parts


def test_resume_rejects_fewer_processes_if_the_model_does_not_fit():
    small = machine(*(replace(one, memory_bytes=12 * GIB, memory_free_bytes=12 * GIB) for one in FOUR.gpus))
    plan = planned(small, tuning__method="full", distributed__strategy="fsdp", training__effective_batch_size=4)
    assert plan.training_setup.shards == 4
    with pytest.raises(ConfigError, match=r"the run needs about .* the GPU has 12\.0 GiB"):
        retarget_processes(plan, small, 1)


def offloaded(hardware, **settings):
    return large(hardware, distributed__cpu_offload="true", training__effective_batch_size=16, **settings)


def cards_of(count, size):
    memory = {"memory_bytes": size * 10**9, "memory_free_bytes": size * 10**9}
    cards = [replace(card(n), name=f"Test card of {size} GB", **memory) for n in range(count)]
    return replace(machine(*cards), memory_bytes=256 * GIB)


def test_8_billion_parameters_train_on_one_24_gb_card_with_cpu_offload():
    plan = offloaded(cards_of(1, 24))
    assert (plan.processes.value, plan.strategy.value, plan.is_group) == (1, "fsdp", True)
    assert plan.strategy.reason == "offloaded weights are copied to a GPU layer by layer"
    assert {"weights", "optimizer", "gradients"}.isdisjoint(part.name for part in plan.memory_parts)
    kept = {part.name: part.bytes for part in plan.host_memory_parts}
    parameters = plan.parameters.value
    # AdamW in fp32: a weight, its gradient and two moments.
    assert kept["weights"] + kept["gradients"] + kept["optimizer"] == pytest.approx(16 * parameters, rel=1e-3)
    assert plan.step_seconds.value is None and "measure a step" in plan.step_seconds.reason
    # In each pass weights go there twice and their gradient comes back, 4 bytes each; PCIe 4.0 moves 31.5 GB/s.
    moved = 3 * 4 * parameters * plan.gradient_accumulation_steps.value
    words = f"each step copies {format_bytes(moved)} to the GPU and back, which takes at least "
    words += format_seconds(moved / 31.5e9)
    [line] = [line for line in plan_lines(plan) if line.startswith("CPU offload")]
    assert f"{words} over PCIe 4.0 x16 (estimated), plus the update on the CPU" in line
    assert offloaded(cards_of(2, 24)).cpu_offload.reason != plan.cpu_offload.reason, "each process has half of them"


def test_cpu_offload_needs_host_memory_and_changes_nothing_on_a_cpu():
    with pytest.raises(ConfigError, match="GiB of host memory in addition to GPU memory"):
        offloaded(replace(cards_of(1, 24), memory_bytes=96 * GIB))
    plan = planned(FOUR, "none", distributed__cpu_offload="true")
    assert (plan.processes.value, plan.strategy.value, plan.cpu_offload.value) == (1, "ddp", False)
    assert plan.cpu_offload.reason == "from --set, which has no effect on a CPU"


@pytest.mark.full
@pytest.mark.dry_run
def test_offloaded_parts_on_the_host_do_not_grow_with_the_processes():
    one, two = (offloaded(replace(cards_of(count, 24), memory_bytes=1024 * GIB)) for count in (1, 2))

    def kept(plan):
        return sum(p.bytes for p in plan.host_memory_parts if p.name in ("weights", "gradients", "optimizer"))

    assert kept(two) == pytest.approx(kept(one), rel=1e-6)
    # Of a layer that is gathered each has copied its part only: there is room for more rows.
    assert two.per_device_train_batch_size.value > one.per_device_train_batch_size.value
    assert two.memory_bytes.value <= two.memory_budget_bytes


@pytest.mark.full
def test_a_multimodal_model_trains_on_every_card(tmp_path):
    from tests.tiny_models import save_tiny_model_with_towers

    folder = save_tiny_model_with_towers(tmp_path / "gemma3", "gemma3")
    plan = planned(FOUR, model__model_name_or_path=folder, model__revision="main")
    assert (plan.processes.value, plan.strategy.value) == (4, "ddp")
    assert plan.parameters.value == 36_976 and "5.94 k of them in vision_tower" in plan.parameters.reason
    split = {"model__model_name_or_path": folder, "model__revision": "main", "distributed__strategy": "deepspeed-3"}
    with pytest.raises(ConfigError, match='is "deepspeed-3", which has not been tested with gemma3'):
        planned(FOUR, **split)
