"""What the plan says of a config, in one line: memory, time, disk, steps. `~` stands before what is estimated."""

from __future__ import annotations

from dataclasses import dataclass

from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.ui.screens.config_memory import MemoryUse
from tui_trainer.ui.spans import Line, Role, Span
from tui_trainer.units import format_bytes, format_count, format_seconds

LABEL_CELLS = 8
# A share of the memory from which a run may meet its end, and one where it surely does not.
FULL_SHARE = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of the plan; None when it is not known."""

    value: float | None
    exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """Bytes, seconds and steps of a plan; `memory_share` of what is free where it computes, or None when not known."""

    memory_bytes: Figure
    memory_share: float | None
    duration_seconds: Figure
    disk_bytes: Figure
    total_steps: Figure
    memory_use: MemoryUse | None = None

    @classmethod
    def of(cls, plan: Plan, room: MemoryBudget) -> PlanSummary:
        """The summary of a plan beside the memory of its card, or of the machine."""
        memory = plan.memory_bytes
        return cls(
            memory_bytes=Figure(value=memory.value, exact=memory.exact),
            memory_share=memory.value / room.free_bytes if room.free_bytes else None,
            duration_seconds=Figure(value=plan.duration_seconds.value, exact=plan.duration_seconds.exact),
            disk_bytes=Figure(value=plan.disk_bytes.value, exact=plan.disk_bytes.exact),
            total_steps=Figure(value=plan.total_steps.value, exact=plan.total_steps.exact),
            memory_use=MemoryUse.of([(part.name, part.bytes) for part in plan.memory_parts], room),
        )

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of each number."""
        share = "" if self.memory_share is None else f" {_percent(self.memory_share)}"
        return (
            ("memory", _marked(self.memory_bytes, format_bytes(self.memory_bytes.value)) + share),
            ("time", _marked(self.duration_seconds, format_seconds(self.duration_seconds.value))),
            ("disk", _marked(self.disk_bytes, format_bytes(self.disk_bytes.value))),
            ("steps", _marked(self.total_steps, _steps(self.total_steps.value))),
        )


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


def _marked(figure: Figure, text: str) -> str:
    return text if figure.exact or figure.value is None else f"~{text}"


def _steps(count: float | None) -> str:
    return format_count(count) if count is None or count >= 100_000 else f"{int(count):,}"
