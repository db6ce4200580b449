"""What the plan says of a config, in one line: memory, time, disk, steps. `~` stands before what is estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.planned import Planned
from tui_trainer.ui.screens.config_memory import MemoryUse
from tui_trainer.ui.spans import Line, Role, Span
from tui_trainer.units import format_bytes, format_count, format_seconds

LABEL_CELLS = 8
# A share of the memory from which a run may meet its end, and one where it surely does not.
FULL_SHARE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """`cells`: (name, text) of each number; `memory_share` of what is free where it computes, None when not known."""

    cells: tuple[tuple[str, str], ...]
    memory_share: float | None = None
    memory_use: MemoryUse | None = None

    @classmethod
    def of(cls, plan: Plan, room: MemoryBudget) -> PlanSummary:
        """The summary of a plan beside the memory of its card, or of the machine."""
        memory, time, disk, steps = plan.memory_bytes, plan.duration_seconds, plan.disk_bytes, plan.total_steps
        share = memory.value / room.free_bytes if room.free_bytes else None
        cells = (
            ("memory", _marked(memory, format_bytes) + ("" if share is None else f" {_percent(share)}")),
            ("time", _marked(time, format_seconds)),
            ("disk", _marked(disk, format_bytes)),
            ("steps", _marked(steps, _steps)),
        )
        parts = [(part.name, part.bytes) for part in plan.memory_parts]
        return cls(cells=cells, memory_share=share, memory_use=MemoryUse.of(parts, room))


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def estimate_lines(plan: PlanSummary | None, preset: PlanSummary | None, planning: bool) -> list[Line]:
    """Two lines: what is planned now, and what the presets alone would give where that differs; else blank."""
    label: Span = (("planning" if planning else "plan").ljust(LABEL_CELLS), "dim")
    if plan is None:
        words = "" if planning else "none yet: the problems come first"
        return [[label, (words, "dim")], []]
    now = [label, *_figures(plan, planning)]
    if preset is None or preset == plan:
        return [now, []]
    return [now, [("presets".ljust(LABEL_CELLS), "dim"), *_figures(preset, True)]]


def estimate_column(plan: PlanSummary | None, preset: PlanSummary | None, planning: bool) -> list[Line]:
    """One number a line, with that of the presets beside it where it differs."""
    if plan is None:
        return [[("planning" if planning else "none yet: the problems come first", "dim")]]
    lines: list[Line] = []
    for (name, text), (_, before) in zip(plan.cells, (preset or plan).cells, strict=True):
        line: Line = [(name.ljust(LABEL_CELLS), "dim"), (text.ljust(22), _role(name, plan, planning))]
        lines.append([*line, (f"presets {before}", "dim")] if before != text else line)
    note = "planning" if planning else "~ estimated, until the data is prepared"
    return [*lines, [(note, "dim")]]


def _figures(plan: PlanSummary, dim: bool) -> Line:
    """In columns, so that a number that grows by a digit moves none of the others."""
    line: Line = []
    for (name, text), cells in zip(plan.cells, (25, 18, 16, 0), strict=True):
        room = max(cells - len(name) - 1, len(text) + 1)
        line += [(f"{name} ", "dim"), (text.ljust(room) if cells else text, _role(name, plan, dim))]
    return line


def _role(name: str, plan: PlanSummary, dim: bool) -> Role:
    if name == "memory" and (plan.memory_share or 0) > FULL_SHARE:
        return "bad" if (plan.memory_share or 0) > 1 else "warn"
    return "dim" if dim else "text"


def _marked(number: Planned[Any], text_of: Callable[[Any], str]) -> str:
    return f"{'' if number.exact or number.value is None else '~'}{text_of(number.value)}"


def _steps(count: int) -> str:
    return format_count(count) if count >= 100_000 else f"{count:,}"
