"""Several curves over one axis, as the comparison of runs draws them."""

from __future__ import annotations

import math

from tui_trainer.ui.screens.compare_dialog import ROLES, ComparedCurve, curves_lines
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

FALLING = [(float(step), 5 - step / 100) for step in range(1, 401)]


def test_six_curves_fill_their_cells_each_with_its_sign_and_role():
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


def test_a_curve_ends_where_its_run_ended_and_what_cannot_be_drawn_is_left_out():
    short, long = (
        ComparedCurve(sign="S", points=FALLING[:200]),
        ComparedCurve(sign="L", points=[(x, 1.0) for x, _ in FALLING]),
    )
    rows = text_of(curves_lines([short, long], "tokens", 108, 22, UNICODE)).split("\n")
    ends = {sign: max(row.rfind(sign) for row in rows) for sign in "SL"}
    assert ends["L"] == 107 and ends["S"] in (8 + 50 - 1, 8 + 50)
    odd = ComparedCurve(sign="A", points=[(1, 2.0), (2, math.nan), (3, math.inf), (4, -1.0), (5, 1.0)])
    for log in (False, True):
        text = text_of(curves_lines([odd, ComparedCurve(sign="B")], "seconds", 60, 12, UNICODE, log=log))
        assert "A" in text and "B" not in text
    assert "no value" in text_of(
        curves_lines([ComparedCurve(sign="A", points=[(1, math.nan)])], "steps", 60, 12, UNICODE)
    )
