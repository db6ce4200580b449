"""Several curves over one axis."""

from __future__ import annotations

import math

import pytest

from tui_trainer.ui.screens.runs_view import ROLES, Curve, curves_lines
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

FALLING = [(float(step), 5 - step / 100) for step in range(1, 401)]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [(30, 5), (76, 10), (196, 30)])
def test_six_curves_fill_their_cells_each_with_its_sign_and_role(size, glyphs):
    curves = [
        Curve(sign=sign, points=[(x, y + place) for x, y in FALLING], marks=[(200, 4 + place)])
        for place, sign in enumerate("ABCDEF")
    ]
    lines = curves_lines(curves, "steps", *size, glyphs)
    assert len(lines) == size[1] and {width_of(line) for line in lines} == {size[0]}
    text = text_of(lines)
    assert text.endswith("steps") and (not glyphs.ascii or text.isascii())
    if size[1] > 5:
        assert all(sign in text for sign in "ABCDEF")
        drawn = {role for line in lines[:-2] for _, role in line[2:]}
        assert set(ROLES) <= drawn


def test_a_curve_falls_from_the_left_to_its_own_end():
    short, long = Curve(sign="S", points=FALLING[:200]), Curve(sign="L", points=[(x, 1.0) for x, _ in FALLING])
    rows = text_of(curves_lines([short, long], "tokens", 108, 22, UNICODE)).split("\n")
    ends = {sign: max(row.rfind(sign) for row in rows) for sign in "SL"}
    assert ends == {"S": 8 + 50 - 1, "L": 107} or ends == {"S": 8 + 50, "L": 107}
    places = [next(number for number, row in enumerate(rows) if row[8 + column :][:1].strip()) for column in (1, 40)]
    assert places[0] < places[1]


def test_points_that_cannot_be_drawn_are_left_out_also_on_a_logarithmic_axis():
    odd = Curve(sign="A", points=[(1, 2.0), (2, math.nan), (3, math.inf), (4, -1.0), (5, 1.0)])
    for log in (False, True):
        lines = curves_lines([odd, Curve(sign="B")], "seconds", 60, 12, UNICODE, log=log)
        assert "A" in text_of(lines) and "B" not in text_of(lines)
    assert odd.scaled(True).points == [(1, math.log10(2)), (5, 0.0)]


def test_without_a_loss_it_says_so():
    for curves in ([], [Curve(sign="A", points=[(1, math.nan)])]):
        assert "no loss" in text_of(curves_lines(curves, "steps", 60, 12, UNICODE))


def test_one_point_is_a_sign():
    assert "A" in text_of(curves_lines([Curve(sign="A", points=[(0.0, 2.0)])], "steps", 60, 12, UNICODE))
