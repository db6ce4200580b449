"""A widget alone on the screen, with made-up data: `python -m tui_trainer.ui.widgets.demo NAME`."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Final

from textual.app import App, ComposeResult
from textual.widget import Widget

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.drawing import LossChart
from tui_trainer.ui.screens.runs_view import Curve, Curves
from tui_trainer.ui.widgets.gauge import Gauge, GaugeBar
from tui_trainer.ui.widgets.lists import LineList, Row, SettingsTable
from tui_trainer.ui.widgets.pane import Section


def _curves() -> Iterator[Widget]:
    shown = Curves()
    speeds = zip("ABC", (4, 5, 6), strict=True)
    shown.curves = [Curve(sign, [(step, speed / step**0.3) for step in range(1, 400, 3)]) for sign, speed in speeds]
    yield shown


def _gauges() -> Iterator[Widget]:
    for name, share, height in (("short", 0.6, 1), ("history", 0.82, 5), ("silent", None, 1)):
        bar = GaugeBar(id=name)
        bar.styles.height = height
        values = [0.5 + math.sin(part / 5) / 2 for part in range(60 if share else 0)]
        bar.show(Gauge(name, share, (0.5, 0.8), "12.0/31.2 GiB", name), values)
        yield bar


def _lines() -> Iterator[Widget]:
    yield LineList(lambda place, _: [(f"line {place}", "text" if place else "cursor")], lambda: (1_000, 0))


def _loss() -> Iterator[Widget]:
    run = RunState(total_steps=500)
    for step in range(1, 401):
        run.steps.append(step)
        run.losses.append(1.4 + 3 * math.exp(-step / 60) + 0.15 * math.sin(step * 1.7))
    yield LossChart(lambda: run)


def _section() -> Iterator[Widget]:
    yield Section(lambda: ("plan", "a note"), lambda *_: [[("first line", "text")]])


def _settings() -> Iterator[Widget]:
    names = [f"made_up_{n}" for n in range(60)]
    rows = [Row(key=name, name=name, value=f"{n} steps", is_changed=n % 7 == 1) for n, name in enumerate(names)]
    table = SettingsTable(28)
    table.show([Row(name="Training"), *rows], names[0])
    yield table


DEMOS: Final[dict[str, Callable[[], Iterator[Widget]]]] = {
    "curves": _curves, "gauge": _gauges, "line_list": _lines, "loss_chart": _loss, "section": _section,
    "settings_table": _settings,
}  # fmt: skip


class Demo(App[None]):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._widgets = DEMOS[name]

    def compose(self) -> ComposeResult:
        yield from self._widgets()


if __name__ == "__main__":
    Demo(sys.argv[1]).run()
