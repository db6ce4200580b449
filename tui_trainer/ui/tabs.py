"""What the first line says: the machine, and the screens with their state in a word."""

from __future__ import annotations

from tui_trainer.safe_text import one_line
from tui_trainer.ui.frame import header
from tui_trainer.ui.screens.hardware_view import machine_summary
from tui_trainer.ui.spans import Line
from tui_trainer.ui.workbench import Workbench

TITLES = ("Hardware", "Config", "Checklist", "Train")
_HOST_CELLS, _MACHINE_CELLS = 24, 30


def first_line(bench: Workbench, width: int) -> Line:
    """The header of every screen."""
    machine = machine_summary(bench.hardware, _MACHINE_CELLS)
    host = one_line(bench.hardware.host, _HOST_CELLS)
    return header(host, machine, tabs(bench), bench.current, width, bench.glyphs)


def tabs(bench: Workbench) -> list[tuple[str, str]]:
    """The titles of the screens, each with its state."""
    unsaved = bench.glyphs.changed if bench.has_unsaved_edits else ""
    return list(zip(TITLES, ("", unsaved, bench.checks_mark()[0], _run_mark(bench)), strict=True))


def _run_mark(bench: Workbench) -> str:
    if bench.run is None:
        return ""
    state = bench.run.state
    if state.status not in ("training", "paused") or not state.total_steps:
        return state.status
    # Rounded down: 100 % is said when it is done.
    share = f"{100 * state.step // state.total_steps}%"
    return share if state.status == "training" else f"{share} paused"
