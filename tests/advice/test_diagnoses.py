"""Each diagnosis on a journal in which it is the cause, and on those of runs that nothing ails."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.advice.made_up import GIB, MIB, falling, made_up, run_events
from tui_trainer.advice.contract import LEAST_CAUSE_SHARE, all_rules
from tui_trainer.advice.examine import all_symptoms, examine
from tui_trainer.advice.fixes import load_patched
from tui_trainer.config.load import Request
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.launching.open_run import load_config
from tui_trainer.methods.learning_rates import ADAPTIVE_RATES, rate_of_size
from tui_trainer.models.unsloth import KERNELS_MISSING
from tui_trainer.runs.events import PACKED_WITH_MASK, MicroBatchReduced, RunProblem, RunStarted
from tui_trainer.runs.state import apply_events
from tui_trainer.ui.keymap import name_keys_for_commands

GPU = {"device": "cuda:0", "threads": None}


def leaking(step):
    return 900 * MIB + step * 4 * MIB


def diverging(step):
    return falling(step) if step < 60 else 4.0 + step / 20


# Passes of three sizes, of which each takes three times as long as the one before.
SLOW_LARGE = {
    "positions": lambda step: 2048 + 1024 * (step % 3),
    "backward_seconds": lambda step: 0.12 * 3 ** (step % 3),
}


# What is planted, and what the evidence must hold.
PAIR_SCORES = {"accuracy": 0.5, "reward_margin": 0.1, "logp_chosen": -20.0, "logp_rejected": -20.0}
PLANTED = {
    "waiting_for_data": ({"step": {"data_seconds": 0.3}}, ["59 %", "300 of 510 ms/step"]),
    "slow_disk": (
        {"step": {"data_seconds": 0.3}, "reading": {"disk_read_bytes": 40 * MIB}},
        ["59 %", "300 of 510 ms/step", "8.0 MiB/s"],
    ),
    "cache_emptied": ({"between": {"empty_cache_seconds": 0.2}, "plan": {"empty_cache_steps": 1}}, ["49 %", "every 1"]),
    "evaluations": ({"eval_seconds": 9.0}, ["9.0 s each, every 40 steps", "52 %"]),
    "checkpoints": ({"save_seconds": 2.0, "plan": {"save_every_steps": 2}}, ["2.0 s", "10.0 MiB", "every 2 steps"]),
    "text_samples": ({"sample_seconds": 4.0, "plan": {"sample_every_steps": 10}}, ["4.0 s each, every 10 steps"]),
    "journal_writes": ({"between": {"journal_seconds": 0.1}, "plan": {"logging_steps": 1}}, ["32 %", "groups of 1"]),
    "between_steps": ({"between": {"other_seconds": 0.1}}, ["32 %", "100 of 311 ms/step"]),
    "padding": ({"step": {"input_tokens": 500}}, ["76 % padding", "500 tokens in 2,048 positions"]),
    "small_batch": (
        {"step": {"positions": 32, "input_tokens": 32, "optimizer_seconds": 0.06},
         "plan": {"effective_batch_size": 1, "per_device_train_batch_size": 1}},
        ["32 positions per micro-batch (1 row)", "24 %"],
    ),
    "launch_bound": ({**GPU, "card": {"utilization_share": 0.4}}, ["GPU 40 % busy"]),
    "memory_full": (
        {"reading": {"memory_available_bytes": 20 * MIB, "process_memory_bytes": 8 * GIB}}, ["20.0 MiB", "8.0 GiB"]
    ),
    "batch_too_large": (
        {**GPU, "card": {"memory_used_bytes": 75 * GIB}, "step": SLOW_LARGE},
        ["positions/s in the largest third of the batches", "94 % of the GPU's memory"],
    ),
    "memory_growing": (
        {"reading": {"process_memory_bytes": leaking}, "steps": 800, "plan": {"total_steps": 100_000}},
        ["resident memory of the process: 1.", "at step 800, 4.0 MiB/step over", "GiB at step 100,000"],
    ),
    "throttled": (
        {**GPU, "card": {"slowed_by": "heat", "clock_share": 0.6, "temperature_celsius": 91.0}},
        ["heat in 100 % of readings", "clock at 60 %", "91 degrees"],
    ),
    "other_processes": (
        {"reading": {"process_cpu_share": 0.5, "machine_cpu_share": 1.0, "core_wait_share": 0.4}},
        ["other programs use 1.0 of 2 cores, the run 1.0", "40 % of their time"],
    ),
    "threads_take_turns": ({"threads": 8, "reading": {"core_wait_share": 0.4}}, ["8 threads on 2 cores", "40 %"]),
    "slow_rank": (
        {"ranks": [0.09, 0.095, 0.095, 0.02]},
        ["75 of 212 ms/step", "35 % of the time", "waiting for the rank"],
    ),
    "one_thread": (
        {"threads": 1, "reading": {"process_cpu_share": 0.5, "machine_cpu_share": 0.52}},
        ["1 thread on 2 usable cores, 48 %", "198 of 212 ms"],
    ),
    "slow_precision": (
        {"plan": {"best_precision": "bf16", "precision_gain": 1.6, "precision_gain_of": "steps"}},
        ["forward and backward in fp32 take 180 of 212 ms/step", "1.60 times as fast for steps, measured here"],
    ),
    "slower_later": (
        {"steps": 400, "plan": {"total_steps": 400},
         "step": {"backward_seconds": lambda step: 0.12 if step < 200 else 0.4}},
        ["200 ms/step in the first 100", "480 ms now"],
    ),
    "compiles_again": (
        {"plan": {"torch_compile": True}, "step": {"forward_seconds": lambda step: 0.06 if step % 20 else 4.0}},
        ["steps took over 5 times as long"],
    ),
    "not_finite": (
        {"steps": 7, "loss": lambda step: math.nan if step == 7 else falling(step)}, ["step 7: loss nan"]
    ),
    "learning_rate_high": ({"loss": diverging, "plan": {"learning_rate": 0.5}}, ["learning rate 0.5", "above 0.01"]),
    "gradients_exploding": (
        {"step": {"grad_norm": lambda step: 0.7 if step < 170 else 70.0}}, ["gradient norm 70", "100 times the"]
    ),
    "loss_spikes": (
        {"loss": lambda step: falling(step) * (2.5 if step % 37 == 5 else 1)},
        ["6 steps have more than 1.5 times the loss of their neighbours", "at steps 5, 42, 79"],
    ),
    "no_gradient": ({"step": {"grad_norm": 0.0}, "steps": 20}, ["gradient norm 0 in each of the first 20 steps"]),
    "begins_high": (
        {"loss": lambda step: 8 * falling(step), "plan": {"base_model": "m", "total_steps": 5}, "data_rows": 400,
         "steps": 5},
        ["loss 36.3 at step 1", "100 choices gives 4.61"],
    ),
    "loss_unmoved": ({"loss": lambda step: 4.6, "steps": 20}, ["loss 4.6 in each of the first 20 steps"]),
    "loss_flat": ({"loss": lambda step: 4.6 + 0.01 * math.sin(step)}, ["loss 4.6"]),
    "degenerate_answers": (
        {"eval_scores": lambda step: {"stopped_answers": 1 - step / 400, "looping_answers": 0.0, "kept_answers": 0.6}},
        ["share of stopped answers went from 90 % at step 40 to 50 % at step 200, although the held-out loss fell",
         "only 60 % of the suite's answers stayed right at step 200"],
    ),
    "preferences_unlearned": (
        {"eval_loss": lambda step: 0.693, "eval_scores": lambda step: {**PAIR_SCORES, "reward_margin": 0.001}},
        ["step 200: reward margin 0.0010, accuracy 50 %"],
    ),
    "both_answers_fall": (
        {"eval_loss": lambda step: 0.6,
         "eval_scores": lambda step: {**PAIR_SCORES, "logp_chosen": -20 - step / 10, "logp_rejected": -20 - step / 5}},
        ["log-probability of the chosen answers: -24", "-40 at step 200"],
    ),
    "preferences_overfitted": (
        {"eval_loss": lambda step: 0.6,
         "eval_scores": lambda step: {**PAIR_SCORES, "accuracy": 0.9 - step / 500, "reward_margin": step / 100}},
        ["accuracy 82 % at step 40, 50 % at step 200"],
    ),
    "preferences_too_easy": (
        {"eval_loss": lambda step: 0.1, "plan": {"total_steps": 800},
         "eval_scores": lambda step: {**PAIR_SCORES, "accuracy": 1.0}},
        ["accuracy 100 % at step 40"],
    ),
    "overfitting": (
        {"eval_loss": lambda step: 1.6 if step == 40 else 1.6 + step / 400}, ["held-out loss 1.6 at step 40", "80 %"]
    ),
}  # fmt: skip


# What costs nothing and ends nothing leads nowhere: a note for the next run.
NOTES = {
    "packed_with_mask": (
        {"told": [RunProblem(
            step=0, kind=PACKED_WITH_MASK, message="variable-length attention is not used (torch")],
         "plan": {"packing": True}},
        ["is not used (torch"], {"data.packing": False, "data.group_by_length": True},
    ),
    "unsloth_missing": (
        {"told": [RunProblem(step=0, kind=KERNELS_MISSING, message="Unsloth computes 0 of the 90 modules")]},
        ["0 of the 90"], {"model.provider": "transformers"},
    ),
    "rate_could_rise": (
        {"plan": {"lora_rank": 16, "learning_rate": 2e-4, "usual_learning_rate": 2e-4}},
        ["without a spike at learning rate 0.0002"], {"training.learning_rate": 3e-4},
    ),
}  # fmt: skip


def test_each_diagnosis_has_a_planted_run_here():
    assert {*PLANTED, *NOTES} == {one.name for one in all_symptoms()} and len(PLANTED) >= 27


def test_the_advice_against_other_programs_is_a_whole_command_that_the_screens_do_not_change():
    found = examine(made_up(**PLANTED["other_processes"][0])).findings[0].cause
    assert (
        found.advice.endswith("`taskset --cpu-list 0 tui-trainer`")
        and name_keys_for_commands(found.advice) == found.advice
    )


def test_a_note_costs_nothing_and_leaves_the_run_healthy(subtests):
    for name, (planted, evidence, fix) in NOTES.items():
        with subtests.test(name):
            verdict = examine(made_up(**planted))
            assert verdict.name == "healthy" and verdict.fix == {} and [one.name for one in verdict.findings] == [name]
            (note,) = verdict.findings
            assert note.cause.fix == fix and all(words in note.cause.evidence for words in evidence)


def fix_of(name, **more):
    """Of one finding among those of a made-up run; None where it is none of them."""
    return next((one.cause for one in examine(made_up(**more)).findings if one.name == name), None)


def test_the_gain_of_16_bits_is_measured_or_reported_as_not_measured():
    unknown = fix_of("slow_precision", plan={"best_precision": "bf16"})
    assert unknown.share == 0 and "not been measured" in unknown.evidence and "--measure precision" in unknown.advice
    none = fix_of(
        "slow_precision", plan={"best_precision": "bf16", "precision_gain": 0.9, "precision_gain_of": "steps"}
    )
    assert none.share == 0 and none.fix is None
    decided = {"best_precision": "bf16", "hardware_settings": ["training.mixed_precision"]}
    assert fix_of("slow_precision", plan=decided) is None, "a hardware profile has its reasons"
    gain = {"best_precision": "bf16", "precision_gain": 1.5, "precision_gain_of": "matmuls"}
    assert fix_of("slow_precision", plan={**decided, **gain}), "which a measurement contradicts"
    assert fix_of("slow_precision", plan=gain).share == pytest.approx(0.18 / 0.212 / 3, abs=0.01)


def test_the_fixed_cost_of_a_pass_is_computed_from_passes_of_several_sizes():
    """80 ms whatever is in it, and 1 ms for 32 positions."""
    sizes = {"positions": lambda step: 320 * (1 + step % 5), "optimizer_seconds": 0.01, "forward_seconds": 0.03}
    sizes |= {"backward_seconds": lambda step: 0.05 + 0.01 * (1 + step % 5)}
    assert fix_of("small_batch", step=sizes) is None, "larger batches would leave too few steps"
    found = fix_of("small_batch", step=sizes, plan={"total_steps": 30_000})
    assert found.share == pytest.approx((0.08 + 0.01) / 0.136, abs=0.02)
    assert "80 ms of the forward and backward passes do not depend" in found.evidence
    cut = fix_of("small_batch", step=sizes, plan={"gradient_accumulation_steps": 2})
    assert cut.fix == {"training.gradient_accumulation_steps": "auto", "training.per_device_train_batch_size": "auto"}
    assert "optimizer" not in cut.evidence, "fewer passes do not spare it"
    in_proportion = sizes | {"forward_seconds": lambda step: 0.03 * (1 + step % 5), "backward_seconds": 0.0}
    assert fix_of("small_batch", step=in_proportion) is None


def test_the_remedy_for_full_memory_is_nothing_that_is_in_force_already(subtests):
    reading = {"memory_available_bytes": 20 * MIB, "process_memory_bytes": 8 * GIB}
    fewer_rows = {"training.per_device_train_batch_size": 8, "training.gradient_accumulation_steps": "auto"}
    one_row = {"per_device_train_batch_size": 1}
    for plan, fix in (
        ({}, fewer_rows),
        (one_row, {"training.gradient_checkpointing": True}),
        ({**one_row, "gradient_checkpointing": True}, None),
        ({**one_row, "gradient_checkpointing": None}, None),
    ):
        with subtests.test(str(plan)):
            found = fix_of("memory_full", plan=plan, reading=reading)
            assert found.fix == fix and "shorter rows" in found.advice and "qlora" not in found.advice
            is_off = plan.get("gradient_checkpointing", False) is False
            assert ("gradient_checkpointing" in str(found.fix) + found.advice) == is_off


def test_a_micro_batch_that_was_reduced_during_the_run_is_proposed_for_the_next():
    cut = MicroBatchReduced(
        step=40, kind="out of memory", message="m", what="training", rows_before=16, rows=8, passes=2,
        longest_row=128,
    )  # fmt: skip
    found = fix_of("batch_too_large", told=[cut])
    assert found.fix == {"training.per_device_train_batch_size": 8, "training.gradient_accumulation_steps": "auto"}
    assert "16 rows per batch until step 40, 8 from then on" in found.evidence


def test_larger_passes_that_are_slower_are_too_large_only_where_memory_is_short():
    assert fix_of("batch_too_large", **GPU, card={}, step=SLOW_LARGE) is None
    even = {
        "positions": lambda step: 2048 + 1024 * (step % 3),
        "backward_seconds": lambda step: 0.12 + 0.06 * (step % 3),
    }
    assert fix_of("batch_too_large", **GPU, card={"memory_used_bytes": 75 * GIB}, step=even) is None


def test_the_remedy_for_loss_spikes_is_nothing_that_is_in_force_already(subtests):
    for more, plan, fix in (
        ({}, {}, {"training.learning_rate": 1e-3}),
        ({}, {"learning_rate": 3e-4, "usual_learning_rate": 2e-4}, {"training.learning_rate": 2e-4}),
        ({}, {"max_grad_norm": 0.0}, {"training.max_grad_norm": 1.0}),
        ({}, {"precision": "fp16", "best_precision": "bf16"}, {"training.mixed_precision": "bf16"}),
        ({"steps": 60}, {"warmup_steps": 0, "total_steps": 1000}, {"training.warmup_steps": 0.05}),
    ):
        with subtests.test(str(plan)):
            spiked = {"loss": lambda step: falling(step) * (2.5 if step % 19 == 5 else 1)}
            found = fix_of("loss_spikes", **spiked, **more, plan=plan)
            assert found.is_fault and found.fix == fix


def test_a_loss_that_is_not_finite_asks_for_another_precision_only_under_fp16(subtests):
    key = "training.mixed_precision"
    for plan, fix in (
        ({"precision": "fp32", "best_precision": "bf16"}, None),
        ({"precision": "fp16", "best_precision": "bf16"}, {key: "bf16"}),
        ({"precision": "fp16", "best_precision": "fp16"}, {key: "no"}),
    ):
        with subtests.test(str(plan)):
            found = fix_of("not_finite", loss=lambda _: float("nan"), plan=plan)
            assert "fp16" not in found.advice and (found.fix == fix if fix else key not in (found.fix or {}))


def test_spikes_that_come_with_the_same_row_have_no_setting_as_remedy():
    """Row 7 of 400 spoils its step in each of four epochs; spikes anywhere are no row's."""
    order = RowOrder(np.zeros(400, dtype=np.int64), effective_batch=16, seed=42)
    bad = {step for step in range(1, 101) if 7 in order.at(step)}
    assert len(bad) == 4

    def loss(step):
        return falling(step) * (2.5 if step in bad else 1)

    plan = {"total_steps": 100, "steps_per_epoch": 25}
    found = fix_of("loss_spikes", loss=loss, steps=100, plan=plan, data_rows=400)
    assert found.fix is None and "row 7 of 400" in found.evidence and "preview" in found.advice
    other = fix_of("loss_spikes", loss=loss, steps=100, plan=plan | {"seed": 43}, data_rows=400)
    assert other.fix and "no particular row" in other.evidence
    unknown = fix_of("loss_spikes", loss=loss, steps=100, plan=plan | {"group_by_length": True}, data_rows=400)
    assert unknown.fix and "row" not in unknown.evidence


def test_a_proposed_learning_rate_goes_by_what_is_usual_for_the_method_and_the_size(subtests):
    lora = {"lora_rank": 16, "usual_learning_rate": 2e-4}
    small, large = ({"usual_learning_rate": rate_of_size(ADAPTIVE_RATES, "full", count).auto} for count in (5e6, 7e9))
    flat, high = {"loss": lambda step: 4.6}, {"loss": diverging}
    for name, more, plan, rate, proposed in (
        ("rate_could_rise", {}, lora, 5e-4, None),
        ("rate_could_rise", {"is_over": False}, lora, 2e-4, None),
        # 2e-4 is low for all weights of 5 M parameters, and more than enough for 7 B.
        ("rate_could_rise", {}, small, 2e-4, 3e-4),
        ("rate_could_rise", {}, large, 2e-4, None),
        ("rate_could_rise", {}, small, 3e-4, None),
        ("loss_flat", flat, lora, 1e-4, 2e-4),
        ("loss_flat", flat, small, 2e-5, 1.5e-4),
        ("loss_flat", flat, {**large, "most_learning_rate": 2e-4}, 1e-4, None),
        ("learning_rate_high", high, small, 2e-3, 3e-4),
        ("learning_rate_high", high, large, 2e-5, 1e-5),
    ):
        with subtests.test(f"{name} at {rate:g} of {plan['usual_learning_rate']:g}"):
            found = fix_of(name, **more, plan=plan | {"learning_rate": rate})
            assert (found and found.fix) == (proposed and {"training.learning_rate": proposed})
    assert {
        one.cost_words
        for one in examine(made_up(plan=lora | {"learning_rate": 2e-4})).findings
        if one.name == "rate_could_rise"
    } == {"note"}


def test_a_stall_of_the_disk_is_only_the_cause_when_the_run_reads_from_it(subtests):
    """At five seconds a reading and half a second a step, a batch of 2,048 tokens is read, or a tenth of it."""
    for read_bytes, name in ((100_000, "slow_disk"), (6_000, "waiting_for_data")):
        with subtests.test(name):
            reading = {"disk_read_bytes": read_bytes, "io_stall_share": 0.8}
            assert examine(made_up(step={"data_seconds": 0.3}, reading=reading)).name == name


def test_the_planted_cause_leads_with_its_figures_and_a_remedy(subtests):
    config = load_config(Request())
    for name, (planted, evidence) in PLANTED.items():
        with subtests.test(name):
            verdict = examine(made_up(**planted))
            assert verdict.name == name, [(one.name, one.cause.share, one.cause.evidence) for one in verdict.findings]
            found = verdict.leading_finding.cause
            assert [words for words in evidence if words not in found.evidence] == [], found.evidence
            assert found.is_fault or LEAST_CAUSE_SHARE <= found.share <= 1
            assert found.fix or found.advice
            if found.fix:
                (rule,) = [rule for rule in all_rules() if name in (one.name for one in rule.symptoms)]
                assert set(found.fix) <= set(rule.settings)
                loaded = load_patched(config, found.fix)
                assert {key: loaded.origin(key).by_user for key in found.fix} == dict.fromkeys(found.fix, True)


def test_a_run_without_a_cause_is_healthy_with_its_figures(subtests):
    for device in ({}, {**GPU, "card": {}}):
        for is_over in (True, False):
            with subtests.test(f"{device.get('device', 'cpu')}, over: {is_over}"):
                verdict = examine(made_up(**device, is_over=is_over))
                assert verdict.name == "healthy" and verdict.findings == () and verdict.fix == {}
                assert "forward and backward 85 %" in verdict.words and "optimizer 9 %" in verdict.words


def test_the_cause_that_costs_most_leads_and_the_others_follow():
    verdict = examine(made_up(step={"data_seconds": 0.3}, between={"journal_seconds": 0.2}, eval_seconds=20.0))
    assert [one.name for one in verdict.findings] == ["evaluations", "waiting_for_data", "journal_writes"]
    shares = [one.cause.share for one in verdict.findings]
    assert shares == sorted(shares, reverse=True) and sum(shares) < 1
    assert set(verdict.fix) == {"evaluation.eval_steps", "dataloader.num_workers", "logging.logging_steps"}


def test_a_fault_comes_before_what_is_merely_slow():
    verdict = examine(made_up(step={"data_seconds": 5.0}, loss=diverging))
    assert [one.name for one in verdict.findings][:2] == ["learning_rate_high", "waiting_for_data"]


def test_the_proposed_evaluations_take_a_twentieth_of_the_time():
    found = examine(made_up(eval_seconds=9.0, plan={"total_steps": 2_000})).leading_finding.cause
    every = found.fix["evaluation.eval_steps"]
    assert 9.0 / (9.0 + every * 0.205) == pytest.approx(0.05, rel=0.1)


def test_evaluations_are_not_proposed_beyond_the_end_of_the_run():
    assert examine(made_up(eval_seconds=9.0)).leading_finding.cause.fix == {"evaluation.eval_steps": 200}


def test_the_evaluation_and_the_checkpoint_of_the_last_step_are_no_interruptions():
    at_the_end = {"eval_every_steps": 0, "save_every_steps": 0}
    assert examine(made_up(eval_seconds=90.0, save_seconds=90.0, plan=at_the_end)).name == "healthy"


def test_a_single_checkpoint_on_the_way_is_not_judged():
    assert examine(made_up(save_seconds=9.0, plan={"save_every_steps": 100})).name == "healthy"
    # The fix keeps one checkpoint on the way, as that of the Checklist does.
    assert fix_of("checkpoints", save_seconds=9.0, plan={"save_every_steps": 40}).fix == {"checkpoint.save_steps": 120}


def test_too_few_steps_are_not_judged_but_a_loss_that_is_not_finite_is():
    short = examine(made_up(steps=15))
    assert (short.is_known, short.name) == (False, "") and "too short to judge" in short.words
    alive = examine(made_up(steps=60, is_over=False))
    assert not alive.is_known and "15.0 s of training are needed" in alive.words
    assert examine(made_up(steps=3, loss=lambda _: math.inf)).name == "not_finite"


def test_the_newest_steps_count_during_a_run_and_all_steps_afterwards():
    waiting = {"steps": 2_000, "step": {"data_seconds": lambda step: 0.0 if step < 1_000 else 0.2}}
    waiting["plan"] = {"total_steps": 4_000}
    alive, over = (examine(made_up(**waiting, is_over=is_over)).leading_finding.cause for is_over in (False, True))
    assert alive.share == pytest.approx(0.49, abs=0.02) and over.share == pytest.approx(0.33, abs=0.03)


def test_a_resumed_run_is_judged_by_its_own_start():
    """It may have moved to a faster disk since."""
    state = made_up(steps=100, step={"data_seconds": 0.5}, is_over=False)
    again = RunStarted(name="a", task="t", device="cpu", pid=2, total_steps=200, resumed_from_step=80)
    state.apply(again)
    assert not examine(state).is_known
    healthy = [event for event in made_up_events_after(80) if not isinstance(event, RunStarted)]
    assert examine(apply_events(healthy, state)).name == "healthy"


def made_up_events_after(step):
    return [event for event in run_events() if event.step > step or not event.step]


def test_more_loader_threads_are_advised_as_far_as_the_checklist_allows_them(subtests):
    for run, cores, workers, more in (
        ({}, 8, 0, 1),
        ({}, 8, 1, None),
        (GPU, 8, 0, 1),
        (GPU, 8, 2, 4),
        (GPU, 8, 4, 6),
        (GPU, 8, 6, None),
        (GPU, 2, 1, None),
    ):
        with subtests.test(f"{run.get('device', 'cpu')}, {cores} cores, {workers} threads"):
            reading, step = {"usable_cores": cores}, {"data_seconds": 0.3}
            waiting = made_up(**run, plan={"loader_workers": workers}, reading=reading, step=step)
            found = examine(waiting).leading_finding.cause
            assert found.fix == ({"dataloader.num_workers": more} if more else None)
            assert more or "faster disk" in found.advice


def test_journals_of_older_versions_are_judged_by_what_they_hold():
    """Without positions, threads, waits and settings: data and evaluations are timed in them all the same."""
    old_plan = dict.fromkeys(("packing", "group_by_length", "torch_compile", "loader_workers", "logging_steps",
                              "empty_cache_steps", "learning_rate", "most_learning_rate"))  # fmt: skip
    old_plan |= {"precision": "", "best_precision": ""}
    nothing = dict.fromkeys(("machine_cpu_share", "core_wait_share", "disk_read_bytes", "io_stall_share",
                             "memory_available_bytes"))  # fmt: skip
    old = {"plan": old_plan, "reading": nothing, "threads": None}
    step = {"positions": 0, "lr": 1e-3}
    assert examine(made_up(**old, step=step)).name == "healthy"
    waiting = examine(made_up(**old, step={**step, "data_seconds": 0.3}))
    assert waiting.name == "waiting_for_data" and waiting.leading_finding.cause.fix is None
    assert examine(made_up(**old, step=step, loss=diverging)).leading_finding.name == "learning_rate_high"


def test_cores_that_others_use_explain_steps_that_became_slower():
    slower = {"steps": 400, "plan": {"total_steps": 400},
              "step": {"backward_seconds": lambda step: 0.12 if step < 200 else 0.4}}  # fmt: skip
    crowded = {"process_cpu_share": 0.5, "machine_cpu_share": 1.0, "core_wait_share": 0.4}
    names = [one.name for one in examine(made_up(**slower, reading=crowded)).findings]
    assert names == ["other_processes"]


NORMAL = {
    "memory that settles": {"reading": {"process_memory_bytes": lambda step: 900 * MIB + min(step, 60) * 4 * MIB}},
    "a few kilobytes": {"reading": {"process_memory_bytes": lambda step: 900 * MIB + step * 1024}},
    "a noisy loss": {"loss": lambda step: falling(step) + 0.3 * math.sin(step)},
    "worse at the end only": {"eval_loss": lambda step: 1.6 if step == 160 else 1.7},
    "single long gradients": {"step": {"grad_norm": lambda step: 0.7 if step % 10 else 9.0}},
    "bf16": {"plan": {"precision": "bf16", "best_precision": "bf16"}},
    "one core": {"threads": 1, "reading": {"usable_cores": 1.0}},
    "little padding": {"step": {"input_tokens": 1950}},
    "what grouping leaves to a task that cannot pack": {
        "step": {"input_tokens": 1600}, "plan": {"group_by_length": True},
    },
    "processes that differ a little": {"ranks": [0.06, 0.055]},
}  # fmt: skip


def test_what_is_normal_is_no_cause(subtests):
    for name, more in NORMAL.items():
        with subtests.test(name):
            assert examine(made_up(**more, steps=200)).name == "healthy"


def growing_on(step):
    return {"process_memory_bytes": lambda n: 900 * MIB + min(n, step) * MIB}


def sizes_until(step):
    """A pass in five has a new size until then."""
    return {"positions": lambda n: 1024 + 256 * (min(n, step) // 5)}


IN_16_BITS = {"precision": "bf16", "best_precision": "bf16", "total_steps": 400}
CARD_RUN = {**GPU, "steps": 400, "plan": {"total_steps": 400}}


# Each run, and whether growing memory is named as a cause.
GROWING = {
    "new sizes still come": ({"plan": IN_16_BITS, "reading": growing_on(400), "step": sizes_until(400)}, False),
    "no new sizes for long": ({"plan": IN_16_BITS, "reading": growing_on(400), "step": sizes_until(60)}, True),
    "within the kernels of the plan": (
        {"plan": {**IN_16_BITS, "kernel_bytes": 320 * MIB}, "reading": growing_on(400)}, False
    ),
    "more than these kernels": ({"plan": {**IN_16_BITS, "kernel_bytes": 100 * MIB}, "reading": growing_on(400)}, True),
    "a plateau": ({"plan": IN_16_BITS, "reading": growing_on(120)}, False),
    "less and less": ({"reading": {"process_memory_bytes": lambda n: (900 + 60 * math.log(n)) * MIB}}, False),
    "a card: the process": ({**CARD_RUN, "reading": {"process_memory_bytes": leaking}}, False),
    "a card: other processes": (
        {**CARD_RUN, "card": {"memory_used_bytes": lambda n: 20 * GIB + n * 20 * MIB}}, False
    ),
    "a card: what is allocated": ({**CARD_RUN, "step": {"peak_memory_bytes": leaking}}, True),
    "a card: larger passes": ({**CARD_RUN, "step": {"peak_memory_bytes": leaking, **sizes_until(400)}}, False),
    "a card: smaller passes": (
        {**CARD_RUN, "step": {"peak_memory_bytes": leaking, "positions": lambda n: 4096 - 8 * n}}, True
    ),
    "a card: one evaluation": (
        {**CARD_RUN, "step": {"peak_memory_bytes": lambda n: 900 * MIB + (n > 80) * GIB}}, False
    ),
}  # fmt: skip


def test_a_cache_that_fills_is_no_leak(subtests):
    for name, (run, is_named) in GROWING.items():
        with subtests.test(name):
            found = [one for one in examine(made_up(**{"steps": 400, **run})).findings if one.name == "memory_growing"]
            assert bool(found) is is_named
            if found:
                on_card = "peak GPU memory"
                subject = on_card if run.get("device") else "resident memory of the process"
                assert found[0].cause.evidence.startswith(subject)


def test_sums_of_several_passes_are_no_new_sizes():
    """Every other step has a sum of its own, and passes that are alike: these excuse no leak."""
    step = {"positions": lambda n: 4 * 1160 + n // 2, "input_tokens": 4 * 1160}
    more = {"gradient_accumulation_steps": 4, "total_steps": 100_000}
    leak = made_up(steps=800, plan=more, step=step, reading=growing_on(800))
    assert "memory_growing" in [one.name for one in examine(leak).findings]


def test_a_resumed_run_is_judged_by_its_own_peaks():
    """Those of the start before grew; this one has so much from its first step on."""
    before = run_events(**CARD_RUN, step={"peak_memory_bytes": leaking}, is_over=False)
    again = run_events(**{**CARD_RUN, "steps": 230}, step={"peak_memory_bytes": leaking(200)})
    again[0] = replace(again[0], resumed_from_step=200)
    state = apply_events([*before, *(event for event in again if event.step > 200 or not event.step)])
    assert list(state.step_peak_bytes) == [leaking(min(step, 200)) for step in range(1, 231)]
    assert "memory_growing" not in [one.name for one in examine(state).findings]


def test_a_diagnosis_that_breaks_is_a_note_and_stops_no_other(monkeypatch):
    def broken(_):
        raise ZeroDivisionError("no steps")

    symptoms = [replace(one, find_cause=broken) if one.name == "padding" else one for one in all_symptoms()]
    monkeypatch.setattr("tui_trainer.advice.examine.all_symptoms", lambda: symptoms)
    verdict = examine(made_up(step={"data_seconds": 0.3}))
    assert verdict.name == "waiting_for_data"
    notes = [one for one in verdict.findings if not one.matters]
    assert [one.name for one in notes] == ["padding"] and "ZeroDivisionError: no steps" in notes[0].cause.evidence


def test_each_diagnosis_has_a_reason_and_a_title_of_its_own():
    every = all_symptoms()
    assert all(one.why.endswith(".") and one.title for one in every)
    assert len({one.name for one in every}) == len({one.title for one in every}) == len(every)
