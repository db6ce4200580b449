"""The Train screen as lines of text, for every phase of a run. Wide terminals get more panes, not wider ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tui_trainer.hardware.gauges import Gauges
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens import train_panes as panes
from tui_trainer.ui.screens.gauges_view import gauge_lines, target_words
from tui_trainer.ui.screens.train_head import progress_line, run_line
from tui_trainer.ui.screens.train_plan import memory_title, plan_rows, tuning_line
from tui_trainer.ui.screens.train_scores import table_pane
from tui_trainer.ui.screens.train_story import ending, invitation, preparation
from tui_trainer.ui.spans import Line, Role, Span, fit

if TYPE_CHECKING:
    from tui_trainer.ui.chart.loss_chart import LossChart
    from tui_trainer.ui.chart.small_charts import SmallCharts

WIDE: Final = 120
VERY_WIDE: Final = 180
TALL: Final = 40
_GAP: Final = 2
_RIGHT: Final = 42
_RIGHT_VERY_WIDE: Final = 62
_LOWEST_CHART: Final = 6
_TALLEST_CHART: Final = 24
_OVER: Final = ("finished", "stopped", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainViewOptions:
    """What a person has chosen, and the words that depend on the key map and the place of the run.

    `offer` are sentences on what a start would do; `resume` is what to press or type to go on; `interrupted` when the
    run has not ended and its process is gone; `events_back` counts the newest events that are scrolled away.
    """

    log_open: bool = False
    table_open: bool = False
    frozen: bool = False
    interrupted: bool = False
    events_back: int = 0
    start_key: str = "t"
    try_key: str = "w"
    freeze_key: str = "Space"
    resume: str = "tui-trainer resume last"
    run_folder: str = ""
    offer: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainScene:
    """All that one picture of the Train screen is made from. Events are texts with roles, newest last."""

    state: RunState | None
    chart: LossChart
    small_charts: SmallCharts
    gauges: Gauges
    sparks: Mapping[str, Sequence[float]]
    events: Sequence[tuple[str, Role]] = ()
    log_lines: Sequence[str] = ()
    what_is_on: Sequence[str] = ()
    options: TrainViewOptions = TrainViewOptions()


def draw_train(scene: TrainScene, *, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Exactly `height` lines of exactly `width` cells."""
    lines = [fit(line, width, glyphs.ellipsis) for line in _body(scene, width, height, glyphs)[:height]]
    return lines + [fit([], width)] * (height - len(lines))


def _body(scene: TrainScene, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    state, options = scene.state, scene.options
    if state is None:
        return _before(scene, width, height, glyphs)
    side = _RIGHT_VERY_WIDE if width >= VERY_WIDE else _RIGHT
    left_width = width - side - _GAP
    head_width = left_width if width >= VERY_WIDE else width
    head = [run_line(state, options.interrupted, head_width, glyphs)]
    head.append(progress_line(state, head_width, glyphs) if state.steps else [])
    rows = height - len(head)
    if width < WIDE:
        return [*head, *_left(scene, state, width, rows, glyphs, narrow=True)]
    left = _left(scene, state, left_width, rows, glyphs, narrow=False)
    if width < VERY_WIDE:
        return [*head, *_side_by_side(left, _right(scene, state, side, rows, glyphs), (left_width, side), rows, glyphs)]
    return _side_by_side([*head, *left], _right(scene, state, side, height, glyphs), (left_width, side), height, glyphs)


def _before(scene: TrainScene, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    words = invitation(scene.options.start_key, scene.options.offer, width, glyphs)
    machine = panes.pane("machine", _machine(scene, width, glyphs), width, glyphs)
    room = height - len(machine)
    return [[], *words, *[[]] * max(room - len(words) - 1, 0), *machine] if len(words) < room else [[], *words]


def _side_by_side(
    left: Sequence[Line], right: Sequence[Line], widths: tuple[int, int], height: int, glyphs: Glyphs
) -> list[Line]:
    def row(lines: Sequence[Line], number: int, width: int) -> Line:
        return fit(lines[number] if number < len(lines) else [], width, glyphs.ellipsis)

    gap: Span = (" " * _GAP, "text")
    return [[*row(left, number, widths[0]), gap, *row(right, number, widths[1])] for number in range(height)]


def _machine(scene: TrainScene, width: int, glyphs: Glyphs) -> list[Line]:
    return gauge_lines(scene.gauges, scene.sparks, min(width, 100), glyphs)


def _left(scene: TrainScene, state: RunState, width: int, height: int, glyphs: Glyphs, *, narrow: bool) -> list[Line]:
    """The chart takes what the parts below it leave; the events take what the chart does not need."""
    has_steps = bool(state.steps)
    below = _below(scene, state, width, height, glyphs, narrow)
    least_events = 2 if state.status in _OVER else 4 if narrow else 5
    room = height - len(below) - least_events - 1
    chart_rows = min(max(room, _LOWEST_CHART), _TALLEST_CHART, max(2 * height // 3, 10)) if has_steps else 0
    top = scene.chart.draw(state, width, chart_rows, glyphs) if has_steps else preparation(state, width, glyphs)
    if not has_steps:
        top += [[]] * max(min(room, 10) - len(top), 1)
    rest = height - len(top) - len(below)
    return [*top, *below, *_events(scene, state, width, rest, glyphs)]


def _below(scene: TrainScene, state: RunState, width: int, height: int, glyphs: Glyphs, narrow: bool) -> list[Line]:
    """What stands between the chart and the events."""
    machine = _machine(scene, width, glyphs) if narrow else []
    end = _end(scene, state, width, glyphs, memory_title(state) if narrow and state.steps else "")
    if scene.options.table_open:
        return table_pane(state, width, max(height - _LOWEST_CHART - 3, 6), glyphs)
    if scene.options.log_open:
        rows = max(height // 3, 6)
        log = panes.pane("log", panes.log_rows(scene.log_lines, rows, glyphs), width, glyphs)
        return [*end, *(log + [[]] * (rows + 1 - len(log)))]
    if end:
        return end if narrow and height < TALL else [*end, *_small(scene, state, width, height, glyphs)]
    if not state.steps:
        return panes.pane("machine", machine, width, glyphs)
    rates = [panes.rates_line(state, width, glyphs)]
    if narrow:
        # There is no pane of the plan.
        rates += [panes.parts_line(state, width, glyphs), *tuning_line(state, glyphs)]
    speed = panes.pane("speed", [*rates, *machine], width, glyphs, memory_title(state) if narrow else "")
    return [*speed, *_small(scene, state, width, height, glyphs)]


def _small(scene: TrainScene, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    if height < TALL - 2 or width < 70 or not state.steps:
        return []
    return scene.small_charts.draw(state, width, 12, glyphs)


def _end(scene: TrainScene, state: RunState, width: int, glyphs: Glyphs, memory: str) -> list[Line]:
    options = scene.options
    folder = options.run_folder or "."
    lines = ending(state, folder, options.try_key, options.resume, options.interrupted, width, glyphs)
    return panes.pane("result", lines, width, glyphs, memory)


def _events(scene: TrainScene, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    rows = panes.event_rows(scene.events, width, height - 1, scene.options.events_back, glyphs)
    frozen = f"held still: {scene.options.freeze_key} goes on" if scene.options.frozen else ""
    return panes.pane("events", rows, width, glyphs, frozen or panes.saved_words(state)) if height > 1 else []


def _right(scene: TrainScene, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Panes from the most to the least important; those that do not fit any more are left out whole."""
    most = 7 if height >= TALL else 4
    target = target_words(glyphs)
    on = [line for text in scene.what_is_on for line in panes.wrapped(text, width, glyphs, most=2, indent="  ")]
    column: list[Line] = []
    for title, lines in (
        ("machine", _machine(scene, width, glyphs)),
        ("time of a step", panes.parts_rows(state, width, glyphs)),
        ("plan", plan_rows(state, glyphs)),
        ("switched on", on),
        ("epochs", panes.epoch_rows(state, most) if width >= _RIGHT_VERY_WIDE else []),
    ):
        block = panes.pane(title, lines, width, glyphs, target if title == "machine" else "")
        if block and len(column) + len(block) + bool(column) <= height:
            column += [*([[]] if column else []), *block]
    room = height - len(column) - 2
    samples = panes.sample_rows(state, width, room, glyphs) if room >= 3 else []
    return [*column, *([[]] if samples else []), *panes.pane("what it writes", samples, width, glyphs)]
