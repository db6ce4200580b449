"""The curves beside the loss: learning rate, gradient norm, tokens per second and the time of a step."""

from __future__ import annotations

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.loss_chart import LossChart
from tui_trainer.ui.chart.metrics import METRICS
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line

_GAP = 2


class SmallCharts:
    """Four charts of one run, two beside each other."""

    def __init__(self) -> None:
        self._charts = [LossChart(name, compact=True) for name in METRICS if name != "loss"]

    def draw(self, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """`height` lines of `width` cells, in two rows of two charts."""
        left, right = width - _GAP - (width - _GAP) // 2, (width - _GAP) // 2
        upper, lower = height - height // 2, height // 2
        first, second, third, fourth = self._charts
        rows = [(first, second, upper), (third, fourth, lower)]
        return [
            [*one, (" " * _GAP, "text"), *other]
            for a, b, tall in rows
            for one, other in zip(a.draw(state, left, tall, glyphs), b.draw(state, right, tall, glyphs), strict=True)
        ]
