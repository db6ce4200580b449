"""The signs and ranges of which charts are drawn: a few that say what all the others follow from."""

import math
import random

import numpy as np
import pytest

from tui_trainer.ui.chart import Bounds, Raster, Series, domain_steps, labels, log_ticks, settle, ticks
from tui_trainer.ui.spans import ASCII, UNICODE, sparkline, text_of

NAN = math.nan


def series(values, steps=None, smoothing=0.0):
    made = Series(smoothing)
    steps = range(1, len(values) + 1) if steps is None else steps
    made.take(np.array(steps, np.int64), np.array(values, np.float64))
    return made


@pytest.mark.parametrize(
    ("low", "high", "size", "glyphs", "signs"),
    [
        ([3, 2.6, 2.2, 1.8, 1.4, 1, 0.6, 0.2], None, (4, 2), UNICODE, "⠑⢄\n  ⠑⢄"),  # a falling line
        ([0, 0], [3, 1], (1, 1), UNICODE, "⣧"),  # a band is filled from its lowest to its highest dot
        ([0, NAN, NAN, 3], None, (2, 1), UNICODE, "⡀⠈"),  # a gap is not bridged
        ([0, 3], None, (1, 1), UNICODE, "⡸"),  # a jump is connected in the newer column
        ([3, 3, 0, 0], None, (4, 1), ASCII, "''.."),
    ],
)
def test_values_become_these_signs(low, high, size, glyphs, signs):
    raster = Raster(*size, glyphs)
    raster.curve(np.array(low, float), np.array(high or low, float), Bounds(0, 3), "chart_raw")
    assert text_of(raster.lines()) == signs


@pytest.mark.parametrize("dots", [7, 300])
def test_columns_hold_the_extremes_of_their_points(dots):
    numbers = random.Random(dots)
    values = [numbers.uniform(0, 5) for _ in range(1000)]
    columns = series(values).columns(Bounds(0, 1024), dots)
    place = [min(int(step * dots / 1024), dots - 1) for step in range(1, 1001)]
    for column in range(dots):
        inside = [value for value, at in zip(values, place, strict=True) if at == column]
        if inside:
            assert (columns.low[column], columns.high[column]) == (min(inside), max(inside))


def test_the_mean_is_bias_corrected_and_the_same_however_the_points_arrive():
    values = [4.0, 2.0, math.inf, 3.0, 1.0]
    whole, piecewise = series(values, smoothing=0.9), Series(0.9)
    for end in range(1, 6):
        assert not piecewise.take(np.arange(1, end + 1), np.array(values[:end]))
    np.testing.assert_array_equal(whole.smoothed, piecewise.smoothed)
    assert whole.smoothed[1] == pytest.approx((0.9 * 0.1 * 4 + 0.1 * 2) / (1 - 0.9**2))
    assert math.isnan(whole.smoothed[2])


def test_the_spike_of_the_untrained_model_leaves_the_range_but_a_slow_fall_does_not():
    spike = series([50.0] + [2.0 + 0.1 * math.sin(step) for step in range(200)])
    assert spike.core(Bounds(0, 256), True, False).high < 2.5
    assert spike.core(Bounds(0, 256), False, False).high == 50.0
    assert spike.outside(Bounds(0, 256), Bounds(1.0, 3.0)) == (0, 1)
    assert series([4 - step / 100 for step in range(200)]).core(Bounds(0, 256), True, False) == Bounds(2.01, 4.0)
    assert series([1.0, NAN, math.inf, -math.inf, 2.0]).core(Bounds(0, 32), True, False) == Bounds(1.0, 2.0)
    assert series([NAN]).core(Bounds(0, 32), True, False) is None


def test_the_axes_double_and_are_kept_while_the_values_fit_and_fill_them():
    assert [domain_steps(step, 500) for step in (0, 32, 33, 200, 256, 257, 500)] == [32, 32, 64, 256, 256, 500, 500]
    first = settle(None, 1.0, 3.0)
    assert settle(first, 1.2, 3.1) is first
    assert settle(first, 2.5, 3.0).span < first.span and settle(None, 2.0, 2.0).span > 0


def test_ticks_are_nice_few_and_within_the_range():
    for span in (1e-6, 0.03, 7.3, 3e9):
        for most in (2, 5, 9):
            bounds = Bounds(0.37 * span, 1.37 * span)
            made = ticks(bounds, most)
            assert 1 <= len(made) <= most and len({tick.label for tick in made}) == len(made)
            assert all(bounds.low <= tick.at <= bounds.high and len(tick.label) <= 7 for tick in made)
    assert labels([0, 20_000, 40_000], 20_000) == ["0k", "20k", "40k"]
    assert [tick.label for tick in log_ticks(Bounds(0, 1), 5)] == ["1", "2", "5", "10"]


def test_a_sparkline_has_gaps_and_does_not_move_what_is_full():
    assert sparkline([0.0, NAN, 1.0, None], 6, UNICODE) == "  ▁ █ "
    assert sparkline([0.0, 1.0], 2, ASCII) == ".#"
    assert sparkline([5.0, 5.0], 2, UNICODE) == sparkline([7.0, 7.0], 2, UNICODE)
