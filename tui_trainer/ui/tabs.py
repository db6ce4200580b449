"""The first line of a screen: the machine, and the screens with their state in a word."""

import math
from collections.abc import Sequence

from rich.cells import cell_len

from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import PLACES, TITLES
from tui_trainer.ui.glyphs import Glyphs, sparkline
from tui_trainer.ui.screens.hardware_view import machine_summary
from tui_trainer.ui.spans import Line, beside, width_of
from tui_trainer.ui.workbench import Workbench

_NARROW = 120
_HOST_CELLS, _MACHINE_CELLS = 24, 30
_CURVE_PARTS = 12
_CURVE_SAMPLES = 600
PROGRAM = "tui-trainer"
Tab = tuple[str, str]
"""The title of a screen and its state."""


def first_line(bench: Workbench, width: int) -> Line:
    hardware = bench.hardware
    host, machine = one_line(hardware.host, _HOST_CELLS), machine_summary(hardware, _MACHINE_CELLS)
    return header(host, machine, _tabs(bench, width), bench.current, width)


def header(host: str, machine: str, tabs: Sequence[Tab], current: int, width: int) -> Line:
    """Program, host, machine; the screens with their state: `1 Hardware  2 Config  3 Checklist 2!  4 Train 37 %`."""
    right: Line = [(_tab_text(index, *tab), "cursor" if index == current else "dim") for index, tab in enumerate(tabs)]
    room = width - width_of(right) - 1
    left: Line = [(PROGRAM, "title")] if len(PROGRAM) <= room else []
    for part in filter(None, (machine, host) if width < _NARROW else (host, machine)):
        if width_of(left) + 2 + cell_len(part) <= room:
            left.append((f"  {part}", "dim"))
    return beside(left, right, width)


def tab_at(bench: Workbench, width: int, x: int) -> int | None:
    """The screen whose title stands on cell `x` of the first line."""
    begin = width
    for index, tab in reversed(list(enumerate(_tabs(bench, width)))):
        begin -= cell_len(_tab_text(index, *tab))
        if begin <= x:
            return index
    return None


def _tab_text(index: int, title: str, state: str) -> str:
    return f" {index + 1} {title} {state} " if state else f" {index + 1} {title} "


def _tabs(bench: Workbench, width: int) -> list[Tab]:
    """The screens; where there is room, the loss as a small curve on all of them."""
    unsaved = bench.glyphs.changed if bench.has_unsaved_edits else ""
    run = _run_mark(bench.run.state) if bench.run else ""
    if bench.run is not None and width >= _NARROW and (curve := _loss_curve(bench.run.state, bench.glyphs)):
        run = f"{run} {curve}"
    titles = [TITLES[place] for place in PLACES[1:]]
    return list(zip(titles, ("", unsaved, bench.checks_mark()[0], run, ""), strict=True))


def _loss_curve(state: RunState, glyphs: Glyphs) -> str:
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


def _run_mark(state: RunState) -> str:
    if state.status not in ("training", "paused") or not state.total_steps:
        return state.status
    # Rounded down: 100 % is said when it is done.
    share = f"{100 * state.step // state.total_steps}%"
    return share if state.status == "training" else f"{share} paused"
