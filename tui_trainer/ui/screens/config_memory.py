"""The memory of a plan as one bar against that of the card, or of the machine: by part, with what others hold and what
stays free. Pure: a picture of given numbers.

Kinds of parts have a sign and a colour each, so that the bar is read without colours as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby

from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.automatic_values import Target
from tui_trainer.planning.fit import MemoryBudget
from tui_trainer.planning.plan import Plan
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, Span
from tui_trainer.units import format_bytes

LABEL_CELLS = 8
_GAP = "  "


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
    "weights": WEIGHTS,
    "16-bit copies": WEIGHTS,
    "gradients": GRADIENTS,
    "optimizer": OPTIMIZER,
    "update": OPTIMIZER,
    "activations": ACTIVATIONS,
    "one layer": ACTIVATIONS,
    "temporaries": ACTIVATIONS,
    "backward pass": ACTIVATIONS,
    "head and loss": HEAD,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """Bytes by kind in the order of the bar, and the place that they are taken from; None: not reported."""

    kinds: tuple[tuple[Kind, int], ...]
    total_bytes: int | None
    free_bytes: int | None
    where: str

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int]], room: MemoryBudget) -> MemoryUse:
        """Parts of a plan (name, bytes); a name that is not known is part of the rest."""
        sums = dict.fromkeys(KINDS, 0)
        for name, count in parts:
            sums[_KIND_OF.get(name, REST)] += count
        kinds = tuple((kind, count) for kind, count in sums.items() if count)
        where = "card" if room.where == "the GPU" else "machine"
        return cls(kinds=kinds, total_bytes=room.total_bytes, free_bytes=room.free_bytes, where=where)

    @property
    def needed_bytes(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def others_bytes(self) -> int:
        """What other programs hold."""
        if self.total_bytes is None or self.free_bytes is None:
            return 0
        return max(self.total_bytes - self.free_bytes, 0)

    @property
    def left_bytes(self) -> int | None:
        """What stays free; below 0 what is missing."""
        return None if self.total_bytes is None else self.total_bytes - self.others_bytes - self.needed_bytes


def memory_budget(plan: Plan, hardware: Hardware, memory_free_bytes: int | None) -> MemoryBudget:
    """The memory where a plan computes: of its card, or of the machine with what is free there now."""
    gpu = next((card for card in hardware.gpus if card.cuda_uuid == plan.gpu_uuid), None)
    on_gpu = plan.device == "cuda" and gpu is not None
    target = Target(device="cuda" if on_gpu else "cpu", reason=plan.device_reason, gpu=gpu if on_gpu else None)
    room = MemoryBudget.of(hardware, target)
    if on_gpu:
        return room
    return MemoryBudget(free_bytes=memory_free_bytes, total_bytes=room.total_bytes, where=room.where, share=room.share)


def memory_lines(use: MemoryUse | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Two lines, the bar and its legend; blank without a plan, or where nobody says how much memory there is."""
    if use is None or not use.total_bytes:
        return [[], []]
    label, size = "card" if use.where == "card" else "machine", format_bytes(use.total_bytes)
    cells = max(width - LABEL_CELLS - len(size) - 1, 1)
    bar: Line = [(label.ljust(LABEL_CELLS), "dim"), *_bar(use, use.total_bytes, cells, glyphs), (f" {size}", "dim")]
    return [bar, _legend(use, width, glyphs)]


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


def _legend(use: MemoryUse, width: int, glyphs: Glyphs) -> Line:
    """What stays free, and the largest kinds as far as there is room for them; what others hold, where it is much."""
    left = use.left_bytes or 0
    end: Line = [(f"{glyphs.bar_empty} ", "dim"), (f"{format_bytes(left)} free", "text")]
    if left < 0:
        end = [(f"{glyphs.bad} {format_bytes(-left)} too much", "bad")]
    line: Line = [(" " * LABEL_CELLS, "dim")]
    room = width - LABEL_CELLS - sum(len(text) for text, _ in end)
    largest = sorted([*use.kinds, (OTHERS, use.others_bytes)], key=lambda pair: -pair[1])
    for kind, count in largest:
        told = f"{kind.name} {format_bytes(count)}{_GAP}"
        if count and len(told) + 2 <= room:
            line += [(f"{kind.drawn(glyphs)} ", kind.role), (told, "text")]
            room -= len(told) + 2
    return [*line, *end]
