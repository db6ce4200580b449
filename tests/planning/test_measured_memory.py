"""Measured memory peaks on this machine correct the next plan of such a run, and no other plan."""

from __future__ import annotations

from itertools import count

import psutil
import pytest

from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.config.load import Request
from tui_trainer.launching import run_lifecycle as carry_out_module
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.prepare import estimated_plan, read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning.measured_steps import LASTING_PARTS, keep_measured_peak, measured_peaks, nearest_peak
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.records import PEAK, Key, count_kinds, keep_record
from tui_trainer.planning.training_setup import MeasuredPeak
from tui_trainer.units import MIB


@pytest.fixture
def settings(tmp_path) -> dict[str, object]:
    data = write_rows(tmp_path / "rows.jsonl", [training_row("causal_lm", n) for n in range(60)])
    return {**SETTINGS, "task.type": "causal_lm", "output.runs_dir": tmp_path / "runs", "data.path": data,
            "data.packing": "false", "training.per_device_train_batch_size": 8, "training.max_steps": 3}  # fmt: skip


def request(settings, **changes) -> Request:
    named = {f"training.{key}": value for key, value in changes.items()}
    return Request(assignments=tuple(f"{key}={value}" for key, value in {**settings, **named}.items()))


def planned(settings, **changes) -> Plan:
    return estimated_plan(load_config(request(settings, **changes), gpu="none"), gpu="none")


def test_a_plan_takes_the_measured_peak_of_the_same_batch(settings):
    before = planned(settings)
    peak = before.memory_bytes.value + 10 * MIB
    keep_measured_peak(Key.read(before.memory_key), 8, 8, peak - MIB)
    keep_measured_peak(Key.read(before.memory_key), 8, 8, peak)
    after = planned(settings)
    assert after.memory_bytes.value == sum(part.bytes for part in after.memory_parts) == pytest.approx(peak, abs=20)
    assert after.memory_bytes.reason.startswith("2 runs here with 8 rows per pass had a peak of ")
    lasting = [[part for part in plan.memory_parts if part.name in LASTING_PARTS] for plan in (before, after)]
    assert lasting[0] == lasting[1]


def test_another_batch_takes_half_of_the_difference_measured_for_the_nearest(settings):
    before, smaller = planned(settings), planned(settings, per_device_train_batch_size=4)
    less = -4096  # of some kilobytes that this model's activations take
    for difference in (less, 10 * MIB, 1000 * MIB):
        keep_measured_peak(Key.read(before.memory_key), 8, 8, before.memory_bytes.value + difference)
        more = planned(settings, per_device_train_batch_size=4).memory_bytes.value - smaller.memory_bytes.value
        # Half of it counts. Little is the same for any rows, and what is beyond it goes with them.
        half = difference / 2
        if difference == 1000 * MIB:
            assert 128 * MIB + (half - 128 * MIB) / 4 < more < 128 * MIB + (half - 128 * MIB) / 1.5
        else:
            assert more == pytest.approx(half, abs=20)
    keep_measured_peak(Key.read(before.memory_key), 4, 4, smaller.memory_bytes.value + MIB)
    found = planned(settings, per_device_train_batch_size=4).memory_bytes.value
    assert found == pytest.approx(smaller.memory_bytes.value + MIB, abs=20)


def test_a_peak_measured_with_other_settings_is_ignored(settings, subtests):
    keep_measured_peak(Key.read(planned(settings).memory_key), 8, 8, 900 * MIB)
    assert planned(settings).memory_bytes.value == pytest.approx(900 * MIB, abs=20)
    for name, value in (
        ("gradient_checkpointing", "true"), ("effective_batch_size", 16), ("optim", "sgd"), ("cpu_threads", 1),
    ):  # fmt: skip
        with subtests.test(name):
            assert planned(settings, **{name: value}).memory_bytes.value < 500 * MIB


def test_a_measured_peak_beyond_the_memory_makes_the_micro_batch_smaller(settings):
    changes = {"per_device_train_batch_size": "auto"}
    before = planned(settings, **changes)
    assert before.per_device_train_batch_size.value == 8 and before.memory_budget_bytes
    keep_measured_peak(Key.read(before.memory_key), 8, 8, 3 * before.memory_budget_bytes)
    assert planned(settings, **changes).per_device_train_batch_size.value < 8


def test_a_damaged_record_is_ignored(subtests):
    for number, (part, figures) in enumerate(
        [("8", {"bytes": 1}), ("8+8", {"bytes": "x"}), ("8+8", {}), ("0+8", {"bytes": 5}), ("8+8", {"bytes": -5})]
    ):
        with subtests.test(f"{part} {figures}"):
            key = Key(device=f"card {number}")
            keep_record(PEAK, key, figures, part)
            assert measured_peaks(key) == ()
            keep_measured_peak(key, 8, 8, MIB)
            assert MeasuredPeak(rows=8, eval_rows=8, bytes=MIB, runs=1) in measured_peaks(key)


def test_the_highest_peak_of_the_last_runs_counts():
    one, other = Key(device="a"), Key(device="b")
    for peak in [900, *range(1, 10)]:
        keep_measured_peak(one, 4, 2, peak)
    assert measured_peaks(one) == (MeasuredPeak(rows=4, eval_rows=2, bytes=9, runs=8),)
    keep_measured_peak(one, 32, 32, 50)
    assert nearest_peak(measured_peaks(one), 16, 16) == MeasuredPeak(rows=32, eval_rows=32, bytes=50, runs=1)
    assert nearest_peak(measured_peaks(other), 16, 16) is None


def trained(settings, **changes):
    opened = open_new(load_config(request(settings, **changes), gpu="none"), gpu="none")
    assert execute_run(opened).exit_code == 0
    return opened


@pytest.mark.full
def test_the_first_run_of_a_process_keeps_its_measured_peak(settings, monkeypatch):
    from tui_trainer.training import run

    monkeypatch.setattr(run, "peak_memory_bytes", lambda device: psutil.Process().memory_info().rss + 90 * MIB)
    trained(settings)
    assert PEAK not in {kept.kind for kept in count_kinds()}
    monkeypatch.setattr(carry_out_module, "_EARLIER_RUNS", count())
    plan = read_plan(trained(settings).folder)
    [peak] = measured_peaks(Key.read(plan.memory_key))
    assert (peak.rows, peak.eval_rows, peak.runs) == (8, 8, 1) and peak.bytes > 0
    assert planned(settings).memory_bytes.value == pytest.approx(peak.bytes, abs=20)
