"""What earlier runs measured helps the next estimate, and never spoils it."""

import pytest

from tui_trainer.hardware.processor import load_of_others, load_of_threads
from tui_trainer.planning.duration import step_time
from tui_trainer.planning.measured_steps import (
    Calibration,
    StepKey,
    device_key,
    is_busy,
    keep_calibration,
    read_calibration,
)
from tui_trainer.planning.records import STEP_SECONDS, keep_record

CPU = device_key("some processor", 2)


def key(cut, model="char_lm gpt2", setup="full"):
    return StepKey(model, setup, cut)


def keep(cut, step_seconds, flops, machine=CPU, load=None, **of_key):
    keep_calibration(machine, key(cut, **of_key), step_seconds=step_seconds, flops=flops, busy=is_busy(load, 2))


def test_the_same_shape_is_known_by_its_step_time():
    keep("a", 0.5, 1e9)
    assert read_calibration(CPU, key("a"), 1e9) == Calibration(step_seconds=0.5, flops_per_second=2e9, runs=1)


def test_other_rows_take_the_rate_of_the_most_similar_step():
    keep("small", 0.1, 1e9)
    keep("large", 1.0, 5e10)
    assert read_calibration(CPU, key("new"), 4e10) == Calibration(flops_per_second=5e10, runs=1)


@pytest.mark.parametrize("other", [{"model": "chat gpt2"}, {"setup": "lora16"}])
def test_another_task_model_or_setup_says_nothing(tmp_path, other):
    keep("a", 0.5, 1e9, **other)
    assert read_calibration(CPU, key("a"), 1e9) == Calibration()


def test_tiny_steps_say_nothing_about_large_ones():
    keep("tiny", 0.005, 1e6)
    assert read_calibration(CPU, key("large"), 1e12) == Calibration()


def test_another_machine_is_another_matter():
    keep("a", 0.5, 1e9)
    assert read_calibration(device_key("some processor", 4), key("a"), 1e9) == Calibration()


def test_a_card_is_known_whatever_processor_it_sits_beside():
    keep("a", 0.5, 1e9, device_key("some processor", 2, "some card"))
    beside = device_key("another", 64, "some card")
    assert read_calibration(beside, key("a"), 1e9).step_seconds == 0.5
    assert read_calibration(CPU, key("a"), 1e9) == Calibration()
    other = device_key("some processor", 2, "another card")
    assert read_calibration(other, key("a"), 1e9) == Calibration()


@pytest.mark.parametrize("figures", [{}, {"flops": 0.0, "step_seconds": 1.0}, {"flops": 1e9, "step_seconds": "x"}])
def test_a_damaged_record_says_nothing(figures):
    keep_record(STEP_SECONDS, key("a").on(CPU), figures, "a")
    assert read_calibration(CPU, key("a"), 1e9) == Calibration()
    keep("a", 0.5, 1e9)
    assert read_calibration(CPU, key("a"), 1e9).step_seconds == 0.5


def test_one_slow_run_among_others_changes_nothing():
    for seconds in (0.5, 3.0, 0.52, 0.51):
        keep("a", seconds, 1e9)
    found = read_calibration(CPU, key("a"), 1e9)
    assert (found.step_seconds, found.flops_per_second, found.runs) == (0.5, 2e9, 4)


def test_one_impossibly_fast_run_among_many_changes_little():
    for seconds in (0.01, 0.5, 0.51, 0.52, 0.53, 0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56):
        keep("a", seconds, 1e9)
    assert read_calibration(CPU, key("a"), 1e9).step_seconds == 0.5


def test_only_the_last_runs_of_a_shape_are_remembered():
    for _ in range(12):
        keep("a", 0.5, 1e9)
    for _ in range(12):
        keep("a", 0.8, 1e9)
    found = read_calibration(CPU, key("a"), 1e9)
    assert (found.step_seconds, found.runs) == (0.8, 12)


def test_runs_on_a_busy_machine_count_only_where_there_is_no_other():
    keep("a", 0.2, 1e9, load=2.0)
    assert read_calibration(CPU, key("a"), 1e9).busy
    keep("a", 0.5, 1e9, load=0.1)
    assert read_calibration(CPU, key("a"), 1e9) == Calibration(step_seconds=0.5, flops_per_second=2e9, runs=1)


def test_similar_steps_on_a_calm_machine_are_believed_before_a_busy_one():
    keep("a", 3.0, 1e9, load=2.0)
    keep("similar", 1.0, 2e9, load=0.0)
    calm = Calibration(flops_per_second=2e9, runs=1)
    assert read_calibration(CPU, key("a"), 1e9) == calm
    assert read_calibration(CPU, key("new"), 1.01e9) == calm


@pytest.mark.parametrize(("seconds", "others"), [(0.0, 3.0), (1e6, 1.0)])
def test_the_load_of_others_is_without_the_threads_that_trained(seconds, others, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    assert load_of_others(load_of_threads(2, seconds)) == pytest.approx(others)
    assert load_of_others(load_of_threads(8, 1e6)) == 0


def test_the_reason_of_a_time_says_how_many_runs_it_comes_from():
    measured = step_time(1e9, 64, Calibration(step_seconds=0.5, runs=3))
    assert measured.reason == "measured here, from 3 measured runs of such steps"
    similar = step_time(1e9, 64, Calibration(flops_per_second=2e9, runs=1, busy=True))
    assert similar.reason == (
        "from 1 measured run of this model with other rows while others kept the machine busy here (2 GFLOP/s)"
    )
