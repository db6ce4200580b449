"""What the first line says: the machine, and the screens with their state in a word."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.cells import cell_len

from tui_trainer.safe_text import one_line
from tui_trainer.ui.chart.sparkline import sparkline
from tui_trainer.ui.frame import header, tab_text
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.hardware_view import machine_summary
from tui_trainer.ui.spans import Line
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.runs.state import RunState

_ROOM_FOR_CURVE = 120
_CURVE_PARTS = 12
_CURVE_SAMPLES = 600
TITLES = ("Hardware", "Config", "Checklist", "Train", "Runs")
_HOST_CELLS, _MACHINE_CELLS = 24, 30


def first_line(bench: Workbench, width: int) -> Line:
    """The header of every screen."""
    machine = machine_summary(bench.hardware, _MACHINE_CELLS)
    host = one_line(bench.hardware.host, _HOST_CELLS)
    return header(host, machine, tabs(bench, width), bench.current, width)


def tab_at(bench: Workbench, width: int, x: int) -> int | None:
    """The screen whose title stands on cell `x` of the first line."""
    end = width
    for index, tab in reversed(list(enumerate(tabs(bench, width)))):
        end, behind = end - cell_len(tab_text(index, *tab)), end
        if end <= x < behind:
            return index
    return None


def tabs(bench: Workbench, width: int) -> list[tuple[str, str]]:
    """The titles of the screens, each with its state; where there is room, the loss as a small curve on all of them."""
    unsaved = bench.glyphs.changed if bench.has_unsaved_edits else ""
    run = _run_mark(bench)
    if bench.run is not None and width >= _ROOM_FOR_CURVE and (curve := loss_curve(bench.run.state, bench.glyphs)):
        run = f"{run} {curve}"
    return list(zip(TITLES, ("", unsaved, bench.checks_mark()[0], run, ""), strict=True))


def loss_curve(state: RunState, glyphs: Glyphs) -> str:
    """Mean losses of equal parts of the run, a sign each. Parts belong to steps: what is drawn does not slide."""
    parts: list[list[float]] = [[] for _ in range(_CURVE_PARTS)]
    losses = state.losses
    # A long run has many steps in a part: some of them are as good as all.
    stride = max(len(losses) // _CURVE_SAMPLES, 1)
    for index in range(0, min(len(losses), len(state.steps)), stride):
        part = (state.steps[index] - 1) * _CURVE_PARTS // max(state.total_steps, state.steps[-1])
        if math.isfinite(losses[index]):
            parts[part].append(losses[index])
    means = [sum(part) / len(part) if part else math.nan for part in parts]
    return sparkline(means, _CURVE_PARTS, glyphs) if any(map(math.isfinite, means)) else ""


def _run_mark(bench: Workbench) -> str:
    if bench.run is None:
        return ""
    state = bench.run.state
    if state.status not in ("training", "paused") or not state.total_steps:
        return state.status
    # Rounded down: 100 % is said when it is done.
    share = f"{100 * state.step // state.total_steps}%"
    return share if state.status == "training" else f"{share} paused"
