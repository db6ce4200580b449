"""What the plan says of a config: memory, time, disk, steps; and its memory by part as one bar against that of the
card, or of the machine. `~` stands before what is estimated.

Kinds of parts have a sign and a colour each, so that the bar is read without colours as well.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.automatic_values import Target
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.planned import Planned
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, Span
from tui_trainer.units import format_bytes, format_count, format_seconds

LABEL_CELLS = 8
# A share of the memory from which a run may meet its end, and one where it surely does not.
FULL_SHARE = 0.9
_COLUMN_CELLS = (25, 18, 16, 0)
_NO_PLAN = "none yet: the problems come first"


@dataclass(frozen=True, slots=True)
class Kind:
    """Parts that are drawn as one: name, sign in Unicode and in ASCII, colour."""

    name: str
    sign: str
    ascii_sign: str
    role: Role

    def drawn(self, glyphs: Glyphs) -> str:
        return self.ascii_sign if glyphs.ascii else self.sign


WEIGHTS = Kind("weights", "█", "#", "accent")
GRADIENTS = Kind("gradients", "▚", "%", "chart_raw")
OPTIMIZER = Kind("optimizer", "▓", "+", "warn")
ACTIVATIONS = Kind("activations", "▒", "=", "good")
HEAD = Kind("head and loss", "▞", "o", "chart_smooth")
REST = Kind("the rest", "░", ":", "dim")
OTHERS = Kind("in use", "/", "/", "rule")
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, HEAD, REST)
_KIND_OF = {
    "weights": WEIGHTS, "16-bit copies": WEIGHTS, "gradients": GRADIENTS, "optimizer": OPTIMIZER, "update": OPTIMIZER,
    "activations": ACTIVATIONS, "one layer": ACTIVATIONS, "temporaries": ACTIVATIONS, "backward pass": ACTIVATIONS,
    "head and loss": HEAD,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes by kind in the order of the bar, and the memory that they are taken from."""

    kinds: tuple[tuple[Kind, int], ...]
    budget: MemoryBudget

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int]], budget: MemoryBudget) -> "MemoryUse":
        """Parts of a plan (name, bytes); a name that is not known is part of the rest."""
        sums = dict.fromkeys(KINDS, 0)
        for name, count in parts:
            sums[_KIND_OF.get(name, REST)] += count
        return cls(tuple((kind, count) for kind, count in sums.items() if count), budget)

    @property
    def others_bytes(self) -> int:
        """What other programs hold, as far as that is reported."""
        total, free = self.budget.total_bytes, self.budget.free_bytes
        return 0 if total is None or free is None else max(total - free, 0)


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """`cells`: (name, text) of each number; `memory_share` of what is free where it computes, None when not known."""

    cells: tuple[tuple[str, str], ...]
    memory_share: float | None
    memory_use: MemoryUse

    @classmethod
    def of(cls, plan: Plan, budget: MemoryBudget) -> "PlanSummary":
        """The summary of a plan beside the memory of its card, or of the machine."""
        share = plan.memory_bytes.value / budget.free_bytes if budget.free_bytes else None
        percent = "" if share is None else " <1%" if 0 < share < 0.01 else f" {share:.0%}"
        cells = tuple((name, text + percent * (name == "memory")) for name, text in figures(plan).items())
        return cls(cells, share, MemoryUse.of([(part.name, part.bytes) for part in plan.memory_parts], budget))

    def role_of(self, name: str, usual: Role) -> Role:
        """More memory than there is stands out."""
        if name == "memory" and (self.memory_share or 0) > FULL_SHARE:
            return "bad" if (self.memory_share or 0) > 1 else "warn"
        return usual


def figures(plan: Plan) -> dict[str, str]:
    """What it takes; `~` stands before what is estimated."""
    steps = plan.total_steps.value
    texts: list[tuple[str, Planned[Any], str]] = [
        ("memory", plan.memory_bytes, format_bytes(plan.memory_bytes.value)),
        ("time", plan.duration_seconds, format_seconds(plan.duration_seconds.value)),
        ("disk", plan.disk_bytes, format_bytes(plan.disk_bytes.value)),
        ("steps", plan.total_steps, format_count(steps) if steps >= 100_000 else f"{steps:,}"),
    ]
    return {name: text if number.exact or number.value is None else f"~{text}" for name, number, text in texts}


def memory_budget(plan: Plan, hardware: Hardware, memory_free_bytes: int | None) -> MemoryBudget:
    """The memory where a plan computes: of its card, or of the machine with what is free there now."""
    gpu = next((card for card in hardware.gpus if card.cuda_uuid == plan.gpu_uuid), None)
    if plan.device == "cuda" and gpu is not None:
        return MemoryBudget.of(hardware, Target(device="cuda", reason=plan.device_reason, gpu=gpu))
    machine = MemoryBudget.of(hardware, Target(device="cpu", reason=plan.device_reason, gpu=None))
    return replace(machine, free_bytes=memory_free_bytes)


def estimate_lines(plan: PlanSummary | None, preset: PlanSummary | None, planning: bool) -> list[Line]:
    """Two lines: what is planned now, and what the presets alone would give where that differs; else blank."""
    label: Span = (("planning" if planning else "plan").ljust(LABEL_CELLS), "dim")
    if plan is None:
        return [[label, ("" if planning else _NO_PLAN, "dim")], []]
    now = [label, *_figures(plan, "dim" if planning else "text")]
    if preset is None or preset == plan:
        return [now, []]
    return [now, [("presets".ljust(LABEL_CELLS), "dim"), *_figures(preset, "dim")]]


def _figures(plan: PlanSummary, role: Role) -> Line:
    """In columns, so that a number that grows by a digit moves none of the others."""
    line: Line = []
    for (name, text), cells in zip(plan.cells, _COLUMN_CELLS, strict=True):
        room = max(cells - len(name) - 1, len(text) + 1)
        line += [(f"{name} ", "dim"), (text.ljust(room) if cells else text, plan.role_of(name, role))]
    return line


def estimate_column(plan: PlanSummary | None, preset: PlanSummary | None, planning: bool) -> list[Line]:
    """One number a line, with that of the presets beside it where it differs."""
    if plan is None:
        return [[("planning" if planning else _NO_PLAN, "dim")]]
    lines: list[Line] = []
    for (name, text), (_, before) in zip(plan.cells, (preset or plan).cells, strict=True):
        number: Span = (text.ljust(22), plan.role_of(name, "dim" if planning else "text"))
        line: Line = [(name.ljust(LABEL_CELLS), "dim"), number]
        lines.append([*line, (f"presets {before}", "dim")] if before != text else line)
    return [*lines, [("planning" if planning else "~ estimated, until the data is prepared", "dim")]]


def memory_lines(use: MemoryUse | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Two lines, the bar and its legend; blank without a plan, or where nobody says how much memory there is."""
    if use is None or not use.budget.total_bytes:
        return [[], []]
    total_bytes, label = use.budget.total_bytes, "card" if use.budget.where == "the GPU" else "machine"
    size = format_bytes(total_bytes)
    cells = max(width - LABEL_CELLS - len(size) - 1, 1)
    bar: Line = [(label.ljust(LABEL_CELLS), "dim"), *_bar(use, total_bytes, cells, glyphs), (f" {size}", "dim")]
    return [bar, _legend(use, total_bytes, width, glyphs)]


def _bar(use: MemoryUse, total_bytes: int, cells: int, glyphs: Glyphs) -> list[Span]:
    """What others hold, the parts, what stays free; cells beyond the end of the memory stand behind a line."""
    segments = [(OTHERS, use.others_bytes), *use.kinds]
    taken = sum(count for _, count in segments)
    scale = cells / max(total_bytes, taken)
    ends = _ends([count for _, count in segments], scale, cells)
    limit = round(total_bytes * scale)
    drawn: list[tuple[str, Role]] = []
    for (kind, _), start, end in zip(segments, [0, *ends], ends, strict=False):
        drawn += [(kind.drawn(glyphs), kind.role if cell < limit else "bad") for cell in range(start, end)]
    drawn += [(glyphs.bar_empty, "dim")] * (cells - len(drawn))
    if taken > total_bytes:
        drawn[min(limit, cells - 1)] = (glyphs.vertical, "bad")
    return [("".join(sign for sign, _ in run), role) for role, run in groupby(drawn, key=lambda cell: cell[1])]


def _ends(counts: list[int], scale: float, cells: int) -> list[int]:
    """Where each segment ends, in cells. The plan has a cell however little it takes, so that it is seen."""
    ends = [round(total * scale) for total in accumulate(counts)]
    if ends[-1] > ends[0] or len(counts) == 1:
        return ends
    largest = max(range(1, len(counts)), key=counts.__getitem__)
    others = min(ends[0], cells - 1)
    return [others + (place >= largest) for place in range(len(counts))]


def _legend(use: MemoryUse, total_bytes: int, width: int, glyphs: Glyphs) -> Line:
    """What stays free, and the largest kinds as far as there is room for them; what others hold, where it is much."""
    entries = sorted([*use.kinds, (OTHERS, use.others_bytes)], key=lambda pair: -pair[1])
    left = total_bytes - sum(count for _, count in entries)
    end: Line = [(f"{glyphs.bar_empty} ", "dim"), (f"{format_bytes(left)} free", "text")]
    if left < 0:
        end = [(f"{glyphs.bad} {format_bytes(-left)} too much", "bad")]
    line: Line = [(" " * LABEL_CELLS, "dim")]
    room = width - LABEL_CELLS - sum(len(text) for text, _ in end)
    for kind, count in entries:
        words = f"{kind.name} {format_bytes(count)}  "
        if count and len(words) + 2 <= room:
            line += [(f"{kind.drawn(glyphs)} ", kind.role), (words, "text")]
            room -= len(words) + 2
    return [*line, *end]
