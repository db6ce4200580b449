"""The chart of a run while it starts, goes wrong, stops and goes on; its signs and ranges; curves of several runs."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tui_trainer.runs import events as e
from tui_trainer.runs.state import RunState, apply_events
from tui_trainer.ui.chart import ChartView, LossChart
from tui_trainer.ui.curves import METRICS, Series, metrics_of
from tui_trainer.ui.plot import GUTTER, Bounds, domain_steps, with_y_axis
from tui_trainer.ui.screens.compare_dialog import ROLES, ComparedCurve, curves_lines
from tui_trainer.ui.spans import ASCII, UNICODE, sparkline, text_of, width_of

NAN = math.nan


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
    return apply_events([started(total_steps), *(step(number + 1, loss) for number, loss in enumerate(losses))])


class Drawn:
    """A chart and the run that it shows, which a test may put another one in place of."""

    def __init__(self, state: RunState, **view) -> None:
        self.state = state
        self.chart = LossChart(lambda: self.state, ChartView(**view))

    def lines(self, width=60, height=10, glyphs=UNICODE):
        lines = self.chart.draw_lines(width, height, glyphs)
        assert [width_of(line) for line in lines] == [width] * height
        return lines

    def text(self, *size, **more) -> str:
        return text_of(self.lines(*size, **more))

    @property
    def heading(self) -> str:
        return text_of(self.lines(90)[:1])


def cells(lines):
    return [[(sign, role) for text, role in line for sign in text] for line in lines]


def axes(lines) -> tuple[list[str], str]:
    """What stands beside and below the curves."""
    rows = text_of(lines).split("\n")
    return [row[:GUTTER] for row in rows[1:]], rows[-1]


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


def test_a_whole_chart_in_ascii():
    drawn = Drawn(run([4.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0], total_steps=8))
    drawn.state.apply(evaluated(4, 2.0))
    assert drawn.text(40, 9, ASCII) == "\n".join(GOLDEN)


def test_few_points_equal_points_and_no_points_are_drawn(subtests):
    for losses in ([], [2.0], [2.0, 1.0], [2.0] * 40, [0.0] * 3, [NAN] * 3, [1e30, -1e30]):
        for glyphs in (UNICODE, ASCII):
            with subtests.test(f"{losses[:3]} ascii={glyphs.ascii}"):
                for size in ((60, 10), (18, 4), (200, 30), (10, 3)):
                    text = Drawn(run(losses)).text(*size, glyphs)
                    assert not glyphs.ascii or text.isascii()
                assert ("no step" in Drawn(run(losses)).text()) == (not losses)


def test_steps_within_the_ranges_change_only_the_tail_and_the_axes_move_rarely():
    numbers = random.Random(0)
    drawn, moved, swept = Drawn(run([], total_steps=1000)), 0, 0
    for number in range(1, 141):
        drawn.state.apply(step(number, 3 * math.exp(-number / 80) + 1 + numbers.gauss(0, 0.1)))
    before, count = drawn.lines(80, 12), 140
    while count < 900:
        for number in range(count + 1, count + 8):
            drawn.state.apply(step(number, 3 * math.exp(-number / 80) + 1 + numbers.gauss(0, 0.1)))
        after = drawn.lines(80, 12)
        pairs = zip(cells(before)[:-1], cells(after)[:-1], strict=True)
        touched = [x for one, other in pairs for x in range(len(one)) if one[x] != other[x]]
        if min(touched) >= GUTTER + int(count / domain_steps(count, 1000) * (80 - GUTTER)):
            assert axes(after) == axes(before) and len(touched) <= 30
            swept += 1
        else:
            moved += 1
        before, count = after, count + 7
    assert swept >= 80 and moved <= 20


def test_labels_of_the_y_axis_are_even_and_never_on_neighbouring_lines():
    for low, high in ((6.405, 6.455), (1.2, 4.6), (1.4, 1.9), (0.001, 0.0032), (0.0, 100.0)):
        for rows in range(2, 21):
            plot = with_y_axis([[]] * rows, Bounds(low, high), min(rows // 2 + 1, 5), UNICODE, log=False)
            labelled = [row for row, line in enumerate(plot) if line[0][0].strip()]
            gaps = [below - above for above, below in pairwise(labelled)]
            assert gaps and min(gaps) >= min(2, rows - 1), (low, high, rows, labelled)
            assert max(gaps) - min(gaps) <= 1, (low, high, rows, labelled)


def test_a_loss_that_is_not_a_number_is_a_gap_a_red_mark_and_a_sentence():
    losses = [2.0, 1.9, 1.8, 1.7] * 5
    losses[9] = NAN
    for glyphs in (UNICODE, ASCII):
        lines = Drawn(run(losses, total_steps=20)).lines(glyphs=glyphs)
        assert "loss is NaN at step 10" in text_of(lines)
        assert (glyphs.bad[0], "bad") in lines[-1]
        # The marked column and the one before it hold part of the gap.
        column = cells(lines)[-1].index((glyphs.bad[0], "bad"))
        assert all(row[column][0] == " " for row in cells(lines)[1:-1])
    assert "infinite at step 20" in Drawn(run([*losses[:19], math.inf])).text()


def test_values_beyond_the_range_are_marked_and_counted():
    losses = [40.0] + [2 + 0.2 * math.sin(n) for n in range(90)]
    lines = Drawn(run(losses)).lines()
    assert "▴ 1 above" in text_of(lines[:1]) and "▴" in text_of(lines[1:2])
    assert "above" not in Drawn(run(losses[1:])).text()


def test_a_logarithmic_axis_is_refused_without_values_above_zero():
    drawn = Drawn(run([-1.0, 0.0]))
    assert "needs positive values" in drawn.chart.toggle_log() and not drawn.chart.view.log
    drawn.state.apply(step(3, 2.0))
    assert drawn.chart.toggle_log() == ""
    assert "log" in drawn.heading and "▾ 2 below" in drawn.heading
    assert drawn.chart.toggle_log() == "" and not drawn.chart.view.log


def test_the_crosshair_reads_exact_and_smoothed_values_and_stops_at_the_ends():
    drawn = Drawn(run([3.0, 2.5, 2.0, 1.5]), smoothing=0.0)
    drawn.state.apply(evaluated(2, 2.75))
    drawn.chart.move_cross(-1)
    assert drawn.chart.view.cross_step is None, "nothing was drawn yet"
    for steps, words in ((1, "step 4  loss 1.5000  ◆ 2.7500 at step 2"), (-1, "step 3  loss 2.0000"),
                         (-9, "step 1  loss 3.0000")):  # fmt: skip
        drawn.lines()
        for _ in range(abs(steps)):
            drawn.chart.move_cross(steps // abs(steps))
        assert words in drawn.heading
    assert "chart_cross" in {role for line in drawn.lines()[1:-1] for _, role in line}
    drawn.chart.clear_cross()
    assert "step 1" not in drawn.heading
    drawn = Drawn(run([4.0, 2.0, NAN]), smoothing=0.9)
    drawn.lines()
    drawn.chart.move_cross(1)
    assert "step 3  loss NaN" in drawn.heading
    drawn.chart.move_cross(-1)
    assert "step 2  loss 2.0000  smoothed 2.9474" in drawn.heading


def test_a_resumed_run_is_drawn_as_if_it_had_never_been_further():
    losses = [3 - n / 50 for n in range(100)]
    drawn = Drawn(run(losses))
    drawn.lines()
    drawn.state.apply(started(resumed_from_step=40))
    assert drawn.lines() == Drawn(run(losses[:40])).lines()
    drawn.state.apply(step(41, 7.0))
    assert drawn.lines() == Drawn(run([*losses[:40], 7.0])).lines()


def test_every_metric_is_drawn_and_has_its_values():
    drawn, names = Drawn(run([3.0, 2.0, 1.0])), []
    drawn.state.apply(evaluated(2, 2.0))
    for _ in METRICS:
        names.append(drawn.chart.view.metric)
        text = drawn.text()
        assert f"── {names[-1]} " in text and ("held out" in text) == (names[-1] == "loss")
        drawn.chart.next_metric()
    assert names == list(METRICS)
    assert METRICS["tokens/s"].values(drawn.state).tolist() == [200.0] * 3
    assert METRICS["learning rate"].values(drawn.state).tolist() == pytest.approx([1e-4, 2e-4, 3e-4])


def test_every_score_is_a_curve_of_its_own():
    drawn = Drawn(run([3.0, 2.0, 1.0, 0.5]))
    for number, accuracy in ((2, 0.25), (4, 0.75)):
        drawn.state.apply(replace(evaluated(number, 2.0), scores={"accuracy": accuracy, "f1": accuracy / 2}))
    assert list(metrics_of(drawn.state)) == [
        *METRICS, "held-out loss", "accuracy, held out", "f1, held out", "peak memory, GiB"
    ]  # fmt: skip
    drawn.chart.view = replace(drawn.chart.view, metric="accuracy, held out")
    text = drawn.text()
    # The higher one stands above the lower one, and on the right.
    marks = sorted((row, line.index("◆")) for row, line in enumerate(text.split("\n")) if "◆" in line)[-2:]
    assert "── accuracy, held out " in text and marks[0][1] > marks[1][1]
    drawn.chart.view = replace(drawn.chart.view, cross_step=3)
    assert "0.7500" in drawn.text() or "0.2500" in drawn.text()
    # Another run has none of them.
    drawn.chart.view, drawn.state = replace(drawn.chart.view, cross_step=None), run([3.0, 2.0])
    assert "── loss " in drawn.text()
    drawn.chart.forget()
    assert drawn.chart.view.metric == "loss"


def test_steps_and_gauges_are_curves_with_marks_and_the_baselines():
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
    # A step that has no such score is no gap and no alarm.
    assert [column.tolist() for column in metrics["accuracy, training"].points(state)] == [[3, 5], [0.5, 0.6]]
    assert metrics["GPU use"].values(state).tolist() == [0.75, 0.5] and metrics["GPU use"].newest(state) == "50%"
    assert metrics["process memory, GiB"].values(state).tolist() == [1.0, 2.0]
    assert "GPU power, W" not in metrics and "CPU use" not in metrics
    for name in ("accuracy, held out", "accuracy, training"):
        text = Drawn(state, metric=name).text(76)
        assert "◆" in text and "NaN" not in text, text
    assert "◆ held out" in text and "┈┈┈ most frequent c" in text and "chance" not in text


def test_baselines_stand_at_their_height_and_pass_no_control_signs():
    state = run([3.0, 2.9, 2.0, 1.0], total_steps=100)
    state.apply(e.BaselinesMeasured(losses={"order 1": 2.0, "\x1b[2J": 1.5, "far": 90.0}, eval_tokens=1, unit="t"))
    for glyphs in (UNICODE, ASCII):
        text = Drawn(state).text(glyphs=glyphs)
        assert "order 1" in text and "\x1b" not in text and "far" not in text
        assert not glyphs.ascii or text.isascii()


def test_tokens_a_second_are_those_that_the_model_reads_as_in_the_line_of_speed():
    steps = [replace(step(number, 1.0), tokens=10, input_tokens=300) for number in (1, 2, 3)]
    state = apply_events([started(), *steps])
    assert METRICS["tokens/s"].values(state).tolist() == [600.0] * 3 == [state.tokens_per_second] * 3
    again = apply_events([started(), *steps, started(resumed_from_step=1), replace(steps[1], input_tokens=0)])
    assert METRICS["tokens/s"].values(again).tolist() == [600.0, 20.0], "an old journal has only those of the loss"


def series(values, smoothing=0.0):
    made = Series(smoothing)
    made.take(np.arange(1, len(values) + 1), np.array(values, np.float64))
    return made


def test_columns_hold_the_extremes_of_their_points():
    for dots in (7, 300):
        numbers = random.Random(dots)
        values = [numbers.uniform(0, 5) for _ in range(1000)]
        low, high, *_ = series(values).columns(Bounds(0, 1024), dots)
        place = [min(int(step * dots / 1024), dots - 1) for step in range(1, 1001)]
        for column in range(dots):
            inside = [value for value, at in zip(values, place, strict=True) if at == column]
            if inside:
                assert (low[column], high[column]) == (min(inside), max(inside))


def test_a_sparkline_has_gaps_and_does_not_move_what_is_full():
    assert sparkline([0.0, NAN, 1.0, None], 6, UNICODE) == "  ▁ █ "
    assert sparkline([0.0, 1.0], 2, ASCII) == ".#"
    assert sparkline([5.0, 5.0], 2, UNICODE) == sparkline([7.0, 7.0], 2, UNICODE)


FALLING = [(float(step), 5 - step / 100) for step in range(1, 401)]


def test_six_compared_curves_fill_their_cells_each_with_its_sign_and_role():
    curves = [
        ComparedCurve(sign=sign, points=[(x, y + place) for x, y in FALLING], marks=[(200, 4 + place)])
        for place, sign in enumerate("ABCDEF")
    ]
    for size, glyphs in (((30, 5), UNICODE), ((76, 10), ASCII), ((196, 30), UNICODE)):
        lines = curves_lines(curves, "steps", *size, glyphs)
        assert len(lines) == size[1] and {width_of(line) for line in lines} == {size[0]}
        text = text_of(lines)
        assert text.endswith("steps") and (not glyphs.ascii or text.isascii())
        if size[1] > 5:
            assert all(sign in text for sign in "ABCDEF")
            assert set(ROLES) <= {role for line in lines[:-2] for _, role in line[2:]}


def test_a_compared_curve_ends_where_its_run_ended_and_values_that_are_no_numbers_are_left_out():
    short = ComparedCurve(sign="S", points=FALLING[:200])
    long = ComparedCurve(sign="L", points=[(x, 1.0) for x, _ in FALLING])
    rows = text_of(curves_lines([short, long], "tokens", 108, 22, UNICODE)).split("\n")
    ends = {sign: max(row.rfind(sign) for row in rows) for sign in "SL"}
    assert ends["L"] == 107 and ends["S"] in (8 + 50 - 1, 8 + 50)
    odd = ComparedCurve(sign="A", points=[(1, 2.0), (2, NAN), (3, math.inf), (4, -1.0), (5, 1.0)])
    for log in (False, True):
        text = text_of(curves_lines([odd, ComparedCurve(sign="B")], "seconds", 60, 12, UNICODE, log=log))
        assert "A" in text and "B" not in text
    nothing = ComparedCurve(sign="A", points=[(1, NAN)])
    assert "no value" in text_of(curves_lines([nothing], "steps", 60, 12, UNICODE))
