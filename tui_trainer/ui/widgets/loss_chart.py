"""The chart of a run. A click or a drag reads values off it, the wheel zooms.

python -m tui_trainer.ui.widgets.loss_chart
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from textual.events import MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.reactive import reactive

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.drawing import METRICS, MOST_HALVINGS, SMOOTHINGS, ChartDrawing, ChartView
from tui_trainer.ui.widgets.pane import Pane

_TAIL_HALVINGS = 2
_ALL = ChartView()
T = TypeVar("T")


def _next(choices: Sequence[T], present: T) -> T:
    return choices[(choices.index(present) + 1) % len(choices)]


class LossChart(Pane):
    """Draws the run that `state` gives, as `view` says; a `view` that changes is drawn at once."""

    DEFAULT_CSS = "LossChart { height: 1fr; min-height: 4; }"
    ALLOW_SELECT = False

    view: reactive[ChartView] = reactive(_ALL, repaint=False, init=False)

    def __init__(
        self, state: Callable[[], RunState], view: ChartView = _ALL, *, id: str | None = None, disabled: bool = False
    ) -> None:
        super().__init__(lambda w, h: self._drawing.draw(state(), self.view, w, h, self.glyphs), id=id)
        self.disabled = disabled
        self._state, self._drawing = state, ChartDrawing()
        self.set_reactive(LossChart.view, view)

    def forget(self) -> None:
        """Another run: it is drawn as nothing was before, with what was chosen about the marks."""
        self._drawing = ChartDrawing()
        self.set_reactive(LossChart.view, replace(self.view, halvings=0, cross_step=None, log=False))

    def watch_view(self) -> None:
        self.redraw()

    def next_smoothing(self) -> None:
        """The next of 0, 0.6, 0.9 and 0.98."""
        self.view = replace(self.view, smoothing=_next(SMOOTHINGS, self.view.smoothing))

    def next_metric(self) -> None:
        """The next metric, on a linear axis."""
        self.view = replace(self.view, metric=_next(list(METRICS), self.view.metric), log=False)

    def toggle_log(self) -> str:
        """Linear or logarithmic y. Returns why not when no value is above zero, else nothing."""
        metric = self.view.metric
        if not self.view.log and not (METRICS[metric].values(self._state()) > 0).any():
            return f"a logarithmic axis needs values above zero, and {metric} has none"
        self.view = replace(self.view, log=not self.view.log)
        return ""

    def zoom(self, halvings: int) -> None:
        """Half as many steps, around the crosshair or at the tail, so many times; twice as many when negative."""
        self.view = replace(self.view, halvings=min(max(self.view.halvings + halvings, 0), MOST_HALVINGS))

    def toggle_tail(self) -> None:
        """All steps, or the last quarter of the axis."""
        self.view = replace(self.view, halvings=0 if self.view.halvings else _TAIL_HALVINGS, cross_step=None)

    def move_cross(self, columns: int) -> None:
        """Move the crosshair; the first move shows it at the last step."""
        self.view = replace(self.view, cross_step=self._drawing.moved_cross(self.view.cross_step, columns))

    def clear_cross(self) -> None:
        self.view = replace(self.view, cross_step=None)

    def on_mouse_down(self, event: MouseDown) -> None:
        self.capture_mouse()
        self._read_at(event.x)

    def on_mouse_move(self, event: MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._read_at(event.x)

    def on_mouse_up(self, event: MouseUp) -> None:
        self.release_mouse()

    def _read_at(self, x: int) -> None:
        if not self.view.compact:
            self.view = replace(self.view, cross_step=self._drawing.step_at(x))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.zoom(1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.zoom(-1)


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    run = RunState(total_steps=500)
    for step in range(1, 401):
        run.steps.append(step)
        run.losses.append(1.4 + 3 * math.exp(-step / 60) + 0.15 * math.sin(step * 1.7))
    Demo(lambda: [LossChart(lambda: run)]).run()
