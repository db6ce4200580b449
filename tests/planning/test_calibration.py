"""Earlier runs measured on this machine improve the next estimate of the step time, and never spoil it."""

from dataclasses import replace

from tui_trainer.hardware.probe import probe
from tui_trainer.launching.prepare import data_facts
from tui_trainer.planning.duration import step_time
from tui_trainer.planning.measured_steps import Calibration, StepKey, keep_calibration, read_calibration
from tui_trainer.planning.plan import make
from tui_trainer.planning.records import STEP_SECONDS, device_key, keep_record

CPU = device_key("some processor", 2)


def key(cut, model="char_lm gpt2", setup="full"):
    return StepKey(model, setup, cut)


def keep(cut, step_seconds, flops, machine=CPU, load=0.0, folder="", **of_key):
    keep_calibration(machine, key(cut, **of_key), step_seconds=step_seconds, flops=flops, load=load, folder=folder)


def test_a_step_with_other_rows_takes_the_rate_of_the_most_similar_step():
    keep("small", 0.1, 1e9)
    keep("large", 1.0, 5e10)
    assert read_calibration(CPU, key("new"), 4e10) == Calibration(flops_per_second=5e10, runs=1)


def test_a_tiny_step_gives_no_rate_for_a_large_one():
    keep("tiny", 0.005, 1e6)
    assert read_calibration(CPU, key("large"), 1e12) == Calibration()


def test_a_card_is_recognised_whatever_the_processor():
    keep("a", 0.5, 1e9, device_key("some processor", 2, "some card"))
    beside = device_key("another", 64, "some card")
    assert read_calibration(beside, key("a"), 1e9).step_seconds == 0.5
    assert read_calibration(CPU, key("a"), 1e9) == Calibration()
    other = device_key("some processor", 2, "another card")
    assert read_calibration(other, key("a"), 1e9) == Calibration()


def test_a_damaged_record_is_ignored(subtests):
    for number, figures in enumerate((
        {}, {"flops": 0.0, "step_seconds": 1.0}, {"flops": 1e9, "step_seconds": "x"},
        {"flops": 1e9, "step_seconds": 0.5, "load": -1.0}, {"flops": 1e9, "step_seconds": 0.5, "busy": True},
    )):  # fmt: skip
        with subtests.test(str(figures)):
            machine = device_key(f"processor {number}", 2)
            keep_record(STEP_SECONDS, key("a").record_key(machine), figures, "a")
            assert read_calibration(machine, key("a"), 1e9) == Calibration()
            keep("a", 0.5, 1e9, machine)
            assert read_calibration(machine, key("a"), 1e9).step_seconds == 0.5


def test_one_slow_or_impossibly_fast_run_among_others_changes_nothing():
    for seconds in (0.5, 3.0, 0.52, 0.51):
        keep("slow", seconds, 1e9)
    found = read_calibration(CPU, key("slow"), 1e9)
    assert (found.step_seconds, found.flops_per_second, found.runs) == (0.5, 2e9, 4)
    for seconds in (0.01, 0.5, 0.51, 0.52, 0.53, 0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56):
        keep("fast", seconds, 1e9)
    assert read_calibration(CPU, key("fast"), 1e9).step_seconds == 0.5


def test_the_parts_of_a_resumed_run_count_as_one_run():
    for folder in ("/runs/a", "/runs/b", "/runs/a", "/runs/a", "", ""):  # earlier versions stored no folder
        keep("resumed", 0.5, 1e9, folder=folder)
    assert read_calibration(CPU, key("resumed"), 1e9).runs == 4


def test_runs_on_a_busy_machine_count_only_if_there_is_no_other():
    keep("a", 0.2, 1e9, load=2.0)
    keep("a", 0.3, 1e9, load=5.0)
    assert read_calibration(CPU, key("a"), 1e9).load == 2.0
    keep("a", 0.5, 1e9)
    assert read_calibration(CPU, key("a"), 1e9) == Calibration(step_seconds=0.5, flops_per_second=2e9, runs=1)


def test_a_similar_step_on_an_idle_machine_is_preferred_to_one_on_a_busy_machine():
    keep("a", 3.0, 1e9, load=2.0)
    keep("similar", 1.0, 2e9)
    calm = Calibration(flops_per_second=2e9, runs=1)
    assert read_calibration(CPU, key("a"), 1e9) == calm
    assert read_calibration(CPU, key("new"), 1.01e9) == calm


def test_a_plan_compares_the_load_now_with_that_of_the_measured_steps(tiny_config, subtests):
    loaded, hardware = tiny_config("busy"), replace(probe(), usable_cores=2)
    facts = data_facts(loaded)
    plan = make(loaded, replace(hardware, load_of_others=8.0), facts)
    assert plan.busy_words.endswith("expect about 5 times longer while they run")
    device, step = device_key(plan.cpu_name, plan.threads.value), StepKey.read(plan.shape_key)
    keep_calibration(device, step, step_seconds=0.5, flops=plan.step_flops, load=8.0)
    for load, words in (
        (8.5, "the measured steps include this"),
        (18.0, "expect about 2 times longer while they run"),
        (0.0, "so the run should take about 20 % of the planned time"),
        (None, ""),
    ):
        with subtests.test(f"load {load}"):
            plan = make(loaded, replace(hardware, load_of_others=load), facts)
            assert plan.step_seconds.value == 0.5 and plan.busy_words.endswith(words)
            assert plan.duration_seconds.reason.endswith(plan.busy_words)


def test_the_reason_of_an_estimate_names_the_number_of_runs():
    measured = step_time(1e9, 64, Calibration(step_seconds=0.5, runs=3))
    assert measured.reason == "measured here, from 3 measured runs of the same steps"
    similar = step_time(1e9, 64, Calibration(flops_per_second=2e9, runs=1, load=3.0))
    assert similar.reason == (
        "from 1 measured run of this model with other rows while other programs kept the machine busy here (2 GFLOP/s)"
    )
