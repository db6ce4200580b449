"""The parts of a chart: ranges and ticks, reduction and smoothing, and the signs that come out."""

import math
import random

import numpy as np
import pytest

from tui_trainer.ui.chart.axes import Bounds, domain_steps, labels, log_ticks, settle, ticks, window
from tui_trainer.ui.chart.raster import Raster, Series
from tui_trainer.ui.spans import ASCII, UNICODE, sparkline, text_of


def series(values, steps=None, smoothing=0.0):
    made = Series(smoothing)
    steps = range(1, len(values) + 1) if steps is None else steps
    made.take(np.array(steps, np.int64), np.array(values, np.float64))
    return made


def drawn(low, high, bounds, size, glyphs, role="chart_raw"):
    raster = Raster(*size, glyphs)
    raster.curve(np.array(low, float), np.array(high, float), bounds, role)
    return text_of(raster.lines())


def test_a_falling_line_in_braille():
    values = [3, 2.6, 2.2, 1.8, 1.4, 1, 0.6, 0.2]
    assert drawn(values, values, Bounds(0, 3), (4, 2), UNICODE) == "⠑⢄\n  ⠑⢄"


def test_a_band_fills_from_its_lowest_to_its_highest_dot():
    assert drawn([0, 0], [3, 1], Bounds(0, 3), (1, 1), UNICODE) == "⣧"


def test_a_gap_stays_empty_and_is_not_bridged():
    nan = math.nan
    assert drawn([0, nan, nan, 3], [0, nan, nan, 3], Bounds(0, 3), (2, 1), UNICODE) == "⡀⠈"


def test_a_jump_is_connected_in_the_newer_column():
    assert drawn([0, 3], [0, 3], Bounds(0, 3), (1, 1), UNICODE) == "⡸"


def test_ascii_has_two_dots_in_a_cell_and_a_sign_of_its_own_for_the_mean():
    values = [1, 1, 0, 0]
    assert drawn(values, values, Bounds(0, 1), (4, 1), ASCII) == "''.."
    assert drawn(values, values, Bounds(0, 1), (4, 1), ASCII, "chart_smooth") == "****"


def test_the_mean_covers_the_steps_in_its_cell():
    raster = Raster(1, 1, UNICODE)
    raster.curve(np.zeros(2), np.full(2, 3.0), Bounds(0, 3), "chart_raw")
    raster.curve(np.full(2, 3.0), np.full(2, 3.0), Bounds(0, 3), "chart_smooth")
    assert raster.lines() == [[("⠉", "chart_smooth")]]


@pytest.mark.parametrize("dots", [7, 64, 300])
def test_columns_hold_the_extremes_of_their_points(dots):
    numbers = random.Random(dots)
    values = [numbers.uniform(0, 5) for _ in range(1000)]
    columns = series(values).columns(Bounds(0, 1024), dots)
    place = [min(int(step * dots / 1024), dots - 1) for step in range(1, 1001)]
    for column in range(dots):
        inside = [value for value, at in zip(values, place, strict=True) if at == column]
        if inside:
            assert (columns.low[column], columns.high[column]) == (min(inside), max(inside))
    assert np.isfinite(columns.low[: max(place)]).all()


def test_points_that_are_far_apart_are_joined_but_not_across_a_value_that_is_not_finite():
    columns = series([1.0, 2.0, math.nan, 2.0], steps=[0, 4, 8, 12]).columns(Bounds(0, 16), 16)
    assert columns.low[:5].tolist() == [1.0, 1.25, 1.5, 1.75, 2.0]
    assert np.isnan(columns.low[5:12]).all()
    assert np.flatnonzero(columns.bad).tolist() == [8]
    assert np.isnan(columns.low[13:]).all()


def test_the_mean_is_bias_corrected_and_the_same_however_the_points_arrive():
    values = [4.0, 2.0, math.inf, 3.0, 1.0]
    whole, piecewise = series(values, smoothing=0.9), Series(0.9)
    for end in range(1, 6):
        assert not piecewise.take(np.arange(1, end + 1), np.array(values[:end]))
    np.testing.assert_array_equal(whole.smoothed, piecewise.smoothed)
    assert whole.smoothed[0] == pytest.approx(4.0)
    assert whole.smoothed[1] == pytest.approx((0.9 * 0.1 * 4 + 0.1 * 2) / (1 - 0.9**2))
    assert math.isnan(whole.smoothed[2])


def test_points_that_were_replaced_by_a_resumed_run_are_noticed_and_smoothed_anew():
    made = series([4.0, 3.0, 2.0, 1.0], smoothing=0.9)
    assert made.take(np.arange(1, 6), np.array([4.0, 3.0, 2.5, 1.0, 0.5]))
    np.testing.assert_array_equal(made.smoothed, series([4.0, 3.0, 2.5, 1.0, 0.5], smoothing=0.9).smoothed)
    assert made.take(np.arange(1, 3), np.array([4.0, 3.0]))


def test_the_spike_of_the_untrained_model_leaves_the_range_but_a_slow_fall_does_not():
    spike = series([50.0] + [2.0 + 0.1 * math.sin(step) for step in range(200)])
    assert spike.core(Bounds(0, 256), True, False).high < 2.5
    assert spike.core(Bounds(0, 256), False, False).high == 50.0
    assert spike.outside(Bounds(0, 256), Bounds(1.0, 3.0)) == (0, 1)
    fall = series([4 - step / 100 for step in range(200)])
    assert fall.core(Bounds(0, 256), True, False) == Bounds(2.01, 4.0)


def test_values_that_are_not_finite_are_never_in_the_range():
    made = series([1.0, math.nan, math.inf, -math.inf, 2.0])
    assert made.core(Bounds(0, 32), True, False) == Bounds(1.0, 2.0)
    assert series([math.nan]).core(Bounds(0, 32), True, False) is None
    assert series([-1.0, 10.0, 100.0]).core(Bounds(0, 32), False, True) == Bounds(1.0, 2.0)


def test_the_x_axis_doubles_and_ends_with_the_run():
    assert [domain_steps(step, 500) for step in (0, 32, 33, 200, 256, 257, 500)] == [32, 32, 64, 256, 256, 500, 500]
    assert domain_steps(700, 0) == 1024


def test_a_part_of_the_axis_holds_the_tail_and_does_not_slide():
    starts = []
    for last in range(1, 1000):
        part = window(1024, last, 3, None)
        assert part.low <= last <= part.high
        assert part.span == 128
        starts.append(part.low)
    assert len(set(starts)) <= 16
    assert all(window(1024, 999, 4, at).low <= at <= window(1024, 999, 4, at).high for at in range(1, 1000))


def test_a_range_is_kept_while_the_values_fit_and_fill_it():
    first = settle(None, 1.0, 3.0)
    assert settle(first, 1.2, 3.1) is first
    assert settle(first, 0.5, 3.0) == settle(None, 0.5, 3.0)
    assert settle(first, 2.5, 3.0).span < first.span
    assert settle(None, 2.0, 2.0).span > 0
    assert settle(None, 0.0, 0.0).span > 0


@pytest.mark.parametrize("span", [1e-6, 0.03, 1.0, 7.3, 2e4, 3e9])
@pytest.mark.parametrize("most", [2, 3, 5, 9])
def test_ticks_are_nice_few_and_within_the_range(span, most):
    bounds = Bounds(0.37 * span, 1.37 * span)
    made = ticks(bounds, most)
    assert 1 <= len(made) <= most
    assert all(bounds.low <= tick.at <= bounds.high and len(tick.label) <= 7 for tick in made)
    assert len({tick.label for tick in made}) == len(made)


def test_labels_share_a_unit_and_a_number_of_digits():
    assert labels([1.5, 2.0], 0.5) == ["1.5", "2.0"]
    assert labels([0, 20_000, 40_000], 20_000) == ["0k", "20k", "40k"]
    assert labels([0, 1e-3, 2e-3], 1e-3) == ["0", "1.0e-03", "2.0e-03"]


def test_logarithmic_ticks_are_1_2_5_or_powers_of_ten():
    assert [tick.label for tick in log_ticks(Bounds(0, 1), 5)] == ["1", "2", "5", "10"]
    assert [tick.at for tick in log_ticks(Bounds(-3, 1), 5)] == [-3, -2, -1, 0, 1]
    assert len(log_ticks(Bounds(0.1, 0.2), 5)) >= 2


def test_a_sparkline_has_gaps_and_does_not_move_what_is_full():
    assert sparkline([0.0, math.nan, 1.0, None], 6, UNICODE) == "  ▁ █ "
    assert sparkline([0.0, 1.0], 2, ASCII) == ".#"
    assert sparkline([], 3, UNICODE) == "   "
    assert sparkline([5.0, 5.0], 2, UNICODE) == sparkline([7.0, 7.0], 2, UNICODE)
    assert sparkline([0.0, 0.0, 8.0, 8.0], 2, UNICODE) == "▁█"
    assert sparkline([2.0, -1.0], 2, UNICODE, low=0.0, high=1.0) == "█▁"
