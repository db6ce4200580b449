"""The chart as a whole, over runs that start, go wrong, stop and go on."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tui_trainer.runs import events as e
from tui_trainer.runs.state import RunState, fold
from tui_trainer.ui.chart import GUTTER, METRICS, ChartView, LossChart, metrics_of
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

SETS = pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])


def step(number, loss):
    return e.StepDone(
        step=number, epoch=0.1, loss_sum=loss * 100, tokens=100, samples=4, lr=1e-4 * number, grad_norm=1.0,
        step_seconds=0.5, data_seconds=0.1, forward_seconds=0.1, backward_seconds=0.2, optimizer_seconds=0.1,
        tokens_per_second=200.0, samples_per_second=8.0, peak_memory_bytes=10,
    )  # fmt: skip


def evaluated(number, loss):
    return e.EvalDone(step=number, loss_sum=loss, tokens=1, loss=loss, seconds=1.0, scheduled=True, best=True)


def started(total_steps=100, resumed_from_step=None):
    return e.RunStarted(
        name="a", task="t", device="cpu", pid=1, total_steps=total_steps, resumed_from_step=resumed_from_step
    )


def run(losses, total_steps=100):
    return fold([started(total_steps), *(step(number + 1, loss) for number, loss in enumerate(losses))])


def a_chart(**view):
    return LossChart(RunState, ChartView(**view))


def draw(chart, state, width=60, height=10, glyphs=UNICODE):
    chart._state = lambda: state
    lines = chart.drawn(width, height, glyphs)
    assert [width_of(line) for line in lines] == [width] * height
    return lines


def cells(lines):
    return [[(sign, role) for text, role in line for sign in text] for line in lines]


def changed(before, after):
    pairs = zip(cells(before), cells(after), strict=True)
    return [(y, x) for y, (a, b) in enumerate(pairs) for x in range(len(a)) if a[x] != b[x]]


def test_a_whole_chart_in_ascii():
    state = run([4.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0], total_steps=8)
    state.apply(evaluated(4, 2.0))
    assert text_of(draw(a_chart(), state, 40, 9, ASCII)) == "\n".join(GOLDEN)


GOLDEN = [
    "-- loss  : steps  * smoothed 0.9 -------",
    "      4+    **",
    "       |     '****",
    "      3+       '. *****",
    "       |         ''.   ******",
    "      2+            ''''o.   **********",
    "       |                  '.           *",
    "      1+                    ''''''''''''",
    "       +0-------------------5-------step",
]


@SETS
@pytest.mark.parametrize("losses", [[], [2.0], [2.0, 1.0], [2.0] * 40, [0.0] * 3, [math.nan] * 3, [1e30, -1e30]])
def test_few_points_equal_points_and_no_points_are_drawn(losses, glyphs):
    for size in ((60, 10), (18, 4), (200, 30), (10, 3)):
        text = text_of(draw(a_chart(), run(losses), *size, glyphs))
        assert not glyphs.ascii or text.isascii()
    assert ("no step" in text_of(draw(a_chart(), run(losses)))) == (not losses)


def test_steps_within_the_ranges_change_only_the_tail():
    swept = 0
    for seed in range(3):
        numbers = random.Random(seed)
        losses = [3 * math.exp(-n / 80) + 1 + numbers.gauss(0, 0.1) for n in range(300)]
        chart, state, count = a_chart(), run(losses[:140], total_steps=1000), 140
        before = draw(chart, state, 80, 12)
        while count < 250:
            bounds = chart._bounds
            for number in range(count, count + 7):
                state.apply(step(number + 1, min(max(losses[number], bounds.low), bounds.high)))
            after = draw(chart, state, 80, 12)
            if chart._bounds is bounds:
                touched = changed(before, after)
                oldest = GUTTER + int(count / 256 * (80 - GUTTER))
                assert all(x >= oldest for y, x in touched), (seed, count, touched)
                assert 0 < len(touched) <= 30
                swept += 1
            before, count = after, count + 7
    assert swept >= 25


def test_the_axes_move_rarely():
    numbers, chart, state, seen = random.Random(1), a_chart(), run([], total_steps=2000), []
    for number in range(1, 2001):
        state.apply(step(number, 4 * math.exp(-number / 300) + 1 + numbers.gauss(0, 0.1)))
        if number % 8 == 0:
            draw(chart, state)
            seen.append((chart._bounds, chart._shown))
    assert sum(a != b for a, b in pairwise(seen)) <= 30


@SETS
def test_a_loss_that_is_not_a_number_is_a_gap_a_red_mark_and_a_sentence(glyphs):
    losses = [2.0, 1.9, 1.8, 1.7] * 5
    losses[9] = math.nan
    lines = draw(a_chart(), run(losses, total_steps=20), glyphs=glyphs)
    assert "loss is NaN at step 10" in text_of(lines)
    assert (glyphs.bad[0], "bad") in lines[-1]
    # The marked column and the one before it hold part of the gap.
    column = cells(lines)[-1].index((glyphs.bad[0], "bad"))
    assert all(row[column][0] == " " for row in cells(lines)[1:-1])
    assert "infinite at step 20" in text_of(draw(a_chart(), run([*losses[:19], math.inf])))


def test_values_beyond_the_range_are_marked_and_counted():
    losses = [40.0] + [2 + 0.2 * math.sin(n) for n in range(90)]
    lines = draw(a_chart(), run(losses))
    assert "▴ 1 above" in text_of(lines[:1])
    assert "▴" in text_of(lines[1:2])
    assert "above" not in text_of(draw(a_chart(), run(losses[1:])))


def test_a_logarithmic_axis_is_refused_without_values_above_zero():
    chart, state = a_chart(), run([-1.0, 0.0])
    chart._state = lambda: state
    assert "above zero" in chart.toggle_log()
    assert not chart.view.log
    state.apply(step(3, 2.0))
    assert chart.toggle_log() == ""
    assert "log" in text_of(draw(chart, state)[:1])
    assert "▾ 2 below" in text_of(draw(chart, state, 90)[:1])
    assert chart.toggle_log() == ""
    assert not chart.view.log


def test_the_crosshair_reads_exact_values_and_stops_at_the_ends():
    state = run([3.0, 2.5, 2.0, 1.5])
    state.apply(evaluated(2, 2.75))
    chart = a_chart(smoothing=0.0)
    chart.move_cross(-1)
    assert chart.view.cross_step is None
    draw(chart, state)
    chart.move_cross(1)
    assert "step 4  loss 1.5000  ◆ 2.7500 at step 2" in text_of(draw(chart, state)[:1])
    chart.move_cross(-1)
    assert "step 3  loss 2.0000" in text_of(draw(chart, state)[:1])
    for _ in range(9):
        chart.move_cross(-1)
    lines = draw(chart, state)
    assert "step 1  loss 3.0000" in text_of(lines[:1])
    assert {role for line in lines[1:-1] for _, role in line} >= {"chart_cross"}
    chart.clear_cross()
    assert "step 1" not in text_of(draw(chart, state)[:1])


def test_the_crosshair_shows_the_smoothed_value_and_a_value_that_is_not_a_number():
    chart, state = a_chart(smoothing=0.9), run([4.0, 2.0, math.nan])
    draw(chart, state)
    chart.move_cross(1)
    assert "step 3  loss NaN" in text_of(draw(chart, state)[:1])
    chart.move_cross(-1)
    assert "step 2  loss 2.0000  smoothed 2.9474" in text_of(draw(chart, state)[:1])


def test_a_resumed_run_is_drawn_as_if_it_had_never_been_further():
    losses = [3 - n / 50 for n in range(100)]
    chart, state = a_chart(), run(losses)
    draw(chart, state)
    state.apply(started(resumed_from_step=40))
    assert draw(chart, state) == draw(a_chart(), run(losses[:40]))
    state.apply(step(41, 7.0))
    assert draw(chart, state) == draw(a_chart(), run([*losses[:40], 7.0]))


def test_every_metric_is_drawn_and_has_its_values():
    chart, state, names = a_chart(), run([3.0, 2.0, 1.0]), []
    state.apply(evaluated(2, 2.0))
    for _ in METRICS:
        names.append(chart.view.metric)
        text = text_of(draw(chart, state))
        assert f"── {chart.view.metric} " in text
        assert ("held out" in text) == (chart.view.metric == "loss")
        chart.next_metric()
    assert names == list(METRICS)
    assert METRICS["tokens/s"].values(state).tolist() == [200.0] * 3
    assert METRICS["learning rate"].values(state).tolist() == pytest.approx([1e-4, 2e-4, 3e-4])


def test_every_score_is_a_curve_of_its_own():
    chart, state = a_chart(), run([3.0, 2.0, 1.0, 0.5])
    for number, accuracy in ((2, 0.25), (4, 0.75)):
        state.apply(replace(evaluated(number, 2.0), scores={"accuracy": accuracy, "f1": accuracy / 2}))
    assert list(metrics_of(state)) == [
        *METRICS, "held-out loss", "accuracy, held out", "f1, held out", "peak memory, GiB"
    ]  # fmt: skip
    chart.view = replace(chart.view, metric="accuracy, held out")
    lines = draw(chart, state)
    assert "── accuracy, held out " in text_of(lines) and "◆" in text_of(lines)
    # The higher one stands above the lower one, and on the right.
    marks = sorted((row, line.index("◆")) for row, line in enumerate(text_of(lines).split("\n")) if "◆" in line)[-2:]
    assert marks[0][1] > marks[1][1]
    chart.view = replace(chart.view, cross_step=3)
    assert "0.7500" in text_of(draw(chart, state)) or "0.2500" in text_of(draw(chart, state))
    # Another run has none of them.
    chart.view = replace(chart.view, cross_step=None)
    assert "── loss " in text_of(draw(chart, run([3.0, 2.0])))
    chart.forget()
    assert chart.view.metric == "loss"


def test_what_steps_and_readings_measure_is_a_curve_with_marks_and_what_is_to_be_beaten():
    state = run([3.0, 2.0])
    scored = replace(step(3, 1.0), sums={"accuracy": 1.0}, counts={"accuracy": 2})
    card = e.GpuReading(index=0, utilization_share=0.5)
    to_beat = e.BaselinesMeasured(
        losses={}, eval_tokens=1, unit="t", scores={"accuracy of the most frequent class": 0.52, "f1 of chance": 0.5}
    )
    for event in (
        scored, step(4, 1.0), replace(scored, step=5, sums={"accuracy": 1.2}), to_beat,
        replace(evaluated(5, 2.0), scores={"accuracy": 0.5}),
        e.GaugesRead(step=3, process_memory_bytes=2**30, gpus=[card, replace(card, index=1, utilization_share=1.0)]),
        e.GaugesRead(step=5, process_memory_bytes=2**31, gpus=[card]),
    ):  # fmt: skip
        state.apply(event)
    metrics = metrics_of(state)
    trained = metrics["accuracy, training"]
    # A step that has no such score is no gap and no alarm.
    assert [column.tolist() for column in trained.points(state)] == [[3, 5], [0.5, 0.6]]
    assert metrics["GPU use"].values(state).tolist() == [0.75, 0.5] and metrics["GPU use"].newest(state) == "50%"
    assert metrics["process memory, GiB"].values(state).tolist() == [1.0, 2.0]
    assert "GPU power, W" not in metrics and "CPU use" not in metrics
    for name in ("accuracy, training", "accuracy, held out"):
        text = text_of(draw(a_chart(metric=name), state, width=76))
        assert "◆" in text and "NaN" not in text, text
    text = text_of(draw(a_chart(metric="accuracy, training"), state, width=76))
    assert "◆ held out" in text and "┈┈┈ most frequent c" in text and "chance" not in text


@SETS
def test_baselines_stand_at_their_height_and_pass_no_control_signs(glyphs):
    state = run([3.0, 2.9, 2.0, 1.0], total_steps=100)
    state.apply(e.BaselinesMeasured(losses={"order 1": 2.0, "\x1b[2J": 1.5, "far": 90.0}, eval_tokens=1, unit="t"))
    text = text_of(draw(a_chart(), state, glyphs=glyphs))
    assert "order 1" in text
    assert "\x1b" not in text
    assert "far" not in text
    assert not glyphs.ascii or text.isascii()


def test_tokens_a_second_are_those_that_the_model_reads_as_in_the_line_of_speed():
    steps = [replace(step(number, 1.0), tokens=10, input_tokens=300) for number in (1, 2, 3)]
    state = fold([started(), *steps])
    assert METRICS["tokens/s"].values(state).tolist() == [600.0] * 3 == [state.tokens_per_second] * 3
    again = fold([started(), *steps, started(resumed_from_step=1), replace(steps[1], input_tokens=0)])
    assert METRICS["tokens/s"].values(again).tolist() == [600.0, 20.0], "an old journal has only those of the loss"
