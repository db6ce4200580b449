"""Grades of throughput, relative to the best rate or the computing rate of this machine; and times, relative to the
plan."""

import re
from dataclasses import replace

import pytest

from tests.runs.journals import PLANNED, end, read_all, start, steps
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.planning.duration import busy_words
from tui_trainer.runs.events import ComputeRates, EpochDone, GaugesRead, LibrariesLoaded, PlanMade
from tui_trainer.runs.result import computing_words, grade, throughput_words
from tui_trainer.runs.state import apply_events
from tui_trainer.runs.steps_and_eta import is_off_plan, speed_rows, time_words, whole_seconds

WORDS = [
    (3.64, "excellent"),
    (1.99, "excellent"),
    (1.6, "good"),
    (1.1, "acceptable"),
    (0.6, "slow"),
    (0.1, "very slow"),
]
"""Rows a second, where 2 are the best."""
ON_A_CPU = replace(
    PLANNED,
    steps_per_epoch=5,
    step_seconds=0.25,
    step_seconds_reason="numpy matmuls here",
    duration_seconds=2.5,
    cpu_threads=2,
    compute_rates=ComputeRates(row_flops=1e9, usual_share=0.5, measured=4e9, measured_of="fp32 matmuls"),
)
ON_A_CARD = replace(
    PLANNED,
    compute_rates=ComputeRates(
        row_flops=1e12, usual_share=0.25, measured=6e12, measured_of="bf16 matmuls", maker=8e12,
        maker_source="A card (its sheet)",
    ),
)  # fmt: skip
EPOCH = EpochDone(step=5, epoch=1, mean_loss=1.0, seconds=2.5, samples_per_second=1.6, tokens_per_second=100.0)


def graded(rate: float, plan: PlanMade | None, others: float = 0.0) -> str:
    """Of a run of this plan, beside others that use so many of two cores."""
    reading = GaugesRead(process_cpu_share=1.0 - others / 2, usable_cores=2.0, machine_cpu_share=1.0)
    events = [start(), *([plan] if plan else []), LibrariesLoaded(resident_bytes=0), *steps(1, 5), reading]
    return grade(apply_events(events), rate)


def test_what_others_used_comes_before_a_grade_and_instead_of_a_bad_one_that_it_explains():
    best = replace(ON_A_CPU, best_samples_per_second=2.0)
    assert (
        graded(1.8, best, 0.6)
        == "other programs used 0.6 of 2 cores; good, 90 % of the best earlier speed here (2 rows/s)"
    )
    for rate, others in ((0.8, 1.0), (0.1, 1.6)):
        assert graded(rate, best, others) == f"not rated: other programs used {others} of 2 cores"
    assert graded(0.1, best, 0.6).startswith("other programs used 0.6 of 2 cores; very slow, 5 %")
    assert graded(0.8, best, 0.1).startswith("slow, 40 %")
    on_a_card = replace(ON_A_CARD, best_samples_per_second=2.0)
    assert graded(0.8, on_a_card, 1.6).startswith("slow, 40 %")


def test_a_rate_is_graded_by_its_share_of_the_best_or_of_what_is_usual(subtests):
    best = replace(ON_A_CPU, best_samples_per_second=2.0)
    for rate, word in WORDS:
        with subtests.test(word, rate=rate):
            share = f"{word}, {rate / 2 * 100:.0f} % of" if rate < 2.1 else f"{word}, {rate / 2:.1f} times"
            assert graded(rate, best) == f"{share} the best earlier speed here (2 rows/s)"
            for planned in (ON_A_CPU, ON_A_CARD):
                assert graded(rate, planned) == f"{share} the usual speed for this model width"


def test_a_step_dominated_by_starting_its_operations_is_not_graded_by_computing():
    tiny = replace(ON_A_CPU, effective_batch_size=8, gradient_accumulation_steps=2, processes=2)
    seconds = 4 * 1e9 / (4e9 * 0.5)
    for starting, is_graded in ((0.49 * seconds, True), (0.51 * seconds, False)):
        planned = replace(tiny, compute_rates=replace(tiny.compute_rates, starting_seconds=starting))
        assert graded(0.04, planned).startswith("very slow, 1 % of the usual speed") == is_graded
    assert graded(0.02, planned) == (
        "not rated: steps are so small that launch overhead dominates (overhead 2.0 s, computing 2.0 s)"
    )
    # What the machine reached itself with such steps is still a measure.
    assert graded(0.02, replace(planned, best_samples_per_second=2.0)).startswith(
        "very slow, 1 % of the best earlier speed here"
    )


def test_there_is_no_grade_without_a_best_rate_and_computing_rates():
    assert graded(2.0, PLANNED) == "" and graded(2.0, None) == "" and graded(0.0, ON_A_CPU) == ""
    unknown_card = replace(ON_A_CARD, compute_rates=replace(ON_A_CARD.compute_rates, maker=None))
    assert graded(2.0, unknown_card) == ""
    assert throughput_words(apply_events([start(), PLANNED, *steps(1, 5)])) == ""


def test_a_rate_is_shown_as_a_share_of_the_computing_rates():
    assert computing_words(1.0, ON_A_CPU) == "25 % of the 4 GFLOP/s of fp32 matmuls here"
    of_the_card = "12 % of the 8 TFLOP/s of A card (its sheet)"
    assert computing_words(1.0, ON_A_CARD) == f"17 % of the 6 TFLOP/s of bf16 matmuls here, {of_the_card}"
    # Each of two processes has half of the rows.
    assert computing_words(1.0, replace(ON_A_CPU, processes=2)).startswith("12 % of")


def test_the_line_of_an_epoch_has_grade_and_planned_time():
    state = apply_events([start(), replace(ON_A_CPU, best_samples_per_second=2.0), *steps(1, 5), EPOCH])
    line = lines.event_line(EPOCH, state)
    assert line.endswith("good, 80 % of the best earlier speed here (2 rows/s)") and ", 2.5 s (1.2 s planned), " in line
    assert throughput_words(state).startswith("excellent, 100 %")


def test_the_end_shows_throughput_time_and_use():
    reading = GaugesRead(process_cpu_share=0.5, usable_cores=2.0, machine_cpu_share=0.9)
    before = LibrariesLoaded(resident_bytes=0)
    state = apply_events(
        [
            start(10),
            replace(ON_A_CPU, total_steps=10, memory_bytes=1024),
            before,
            *steps(1, 10),
            reading,
            EPOCH,
            end(10),
        ]
    )
    shown = dict(speed_rows(state))
    assert (
        shown["throughput"].startswith("other programs used 0.8 of 2 cores; excellent, 100 % of the usual speed")
        and "50 % of the 4 GFLOP/s" in shown["throughput"]
    )
    assert shown["time"] == (
        "5.0 s, 2.5 s planned; 500 ms/step, planned 250 ms: numpy matmuls here; other programs used 0.8 of 2 cores"
    )
    assert shown["in use"] == "memory 1.0 of 1.0 KiB planned, CPU 1.0 of 2 threads planned"
    printed = "\n".join(lines.end_lines(state, "a", "a"))
    assert all(words in printed for words in shown.values())


def test_the_estimated_time_is_corrected_by_the_steps_so_far():
    state = apply_events(
        [start(100), replace(ON_A_CPU, total_steps=100, duration_seconds=25.0, busy_words="others are here")]
    )
    assert time_words(state) == "about 25.0 s planned: numpy matmuls here; others are here"
    apply_events(steps(1, 21), state)
    assert not is_off_plan(state, 25.0), "too few steps"
    apply_events(steps(22, 22), state)
    assert is_off_plan(state, 25.0) and not is_off_plan(state, whole_seconds(state))
    assert whole_seconds(state) >= 50 and "estimated from the steps so far, 25.0 s planned" in time_words(state)


def test_time_before_the_first_step_is_shown_apart():
    planned = replace(ON_A_CPU, total_steps=10, duration_seconds=32.5, beginning_seconds=30.0)
    state = apply_events([start(10), planned, *steps(1, 10), EPOCH, end(10)])
    assert time_words(state).startswith("5.0 s, 32.5 s planned, including 30.0 s before the first step; 500 ms/step")


def test_a_plan_reports_cores_that_others_use():
    assert busy_words(None, 2, 2) == busy_words(0.4, 2, 2) == ""
    assert "enough cores remain for this run" in busy_words(4.0, 16, 8)
    assert busy_words(4.0, 16, 8, 4.0).endswith("the measured steps include this")
    assert busy_words(0.0, 16, 8, 4.0) == ""


@pytest.mark.full
def test_the_second_run_of_a_shape_is_graded_against_the_first(tiny_run):
    tiny_run("one", {"training.max_steps": 30})
    folder, _ = tiny_run("two", {"training.max_steps": 30})
    events = read_all(folder.journal)
    best = next(event for event in events if isinstance(event, PlanMade)).best_samples_per_second
    assert best is not None and best > 0
    # On a busy machine, the second run may be faster.
    grade = re.compile(r"(% of|times) the best earlier speed here")
    assert grade.search("\n".join(lines.end_lines(apply_events(events), "two", str(folder.root))))
    assert grade.search((folder.root / "report.md").read_text())


@pytest.mark.full
def test_the_first_run_of_a_shape_is_graded_by_what_the_machine_computes(tiny_run):
    folder, _ = tiny_run("one", {"training.max_steps": 30, "training.learning_rate": 0.00123})
    state = apply_events(read_all(folder.journal))
    assert state.plan.compute_rates.measured > 0 and state.plan.compute_rates.row_flops > 0
    report = (folder.root / "report.md").read_text()
    for words in (throughput_words(state), time_words(state)):
        assert words in "\n".join(lines.end_lines(state, "one", str(folder.root)))
    assert "of fp32 matmuls here" in report and "planned" in report
