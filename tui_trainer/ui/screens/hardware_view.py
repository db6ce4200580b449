"""The Hardware screen as lines: what would be used, what is wrong, what the machine has. Pure.

Sections stand below one another at 80 columns and side by side from 120 on; all columns scroll together.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

from rich.cells import cell_len

from tui_trainer.hardware import describe
from tui_trainer.hardware.diagnosis import Diagnosis
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.hardware_gpus import gpu_table
from tui_trainer.ui.screens.hardware_rows import Machine, Section
from tui_trainer.ui.screens.hardware_sections import processor_section, sections_of
from tui_trainer.ui.spans import Line, fit
from tui_trainer.units import GIB

_COLUMNS_FROM = ((180, 3), (120, 2), (0, 1))
_GAP = 3


def draw_hardware(
    diagnosis: Diagnosis,
    hardware: Hardware,
    gauges: Gauges | None,
    *,
    profile: tuple[str, str],
    scroll: int,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Line]:
    """The whole body. `profile` is the hardware profile's name and why.

    `scroll` counts lines from the top, see `most_scroll`.
    """
    columns = _columns(diagnosis, hardware, gauges, profile, width, height, glyphs)
    column_width, longest = _column_width(width), max(map(len, columns))
    room = height if longest <= height else height - 1
    top = min(max(scroll, 0), max(longest - room, 0))
    shown = [_cut(column, top, room) for column in columns]
    lines = [_across([column[row] for column in shown], column_width, width, glyphs) for row in range(room)]
    if room < height:
        lines.append(fit([(_position(top, longest - top - room, glyphs), "dim")], width, glyphs.ellipsis))
    return lines


def most_scroll(
    diagnosis: Diagnosis,
    hardware: Hardware,
    *,
    profile: tuple[str, str],
    width: int,
    height: int,
    glyphs: Glyphs,
) -> int:
    """The furthest that `draw_hardware` scrolls; 0 when everything fits. Gauges change no heights."""
    longest = max(map(len, _columns(diagnosis, hardware, None, profile, width, height, glyphs)))
    return 0 if longest <= height else longest - (height - 1)


def live_lines(
    diagnosis: Diagnosis, hardware: Hardware, gauges: Gauges | None, *, width: int, glyphs: Glyphs
) -> list[Line]:
    """The lines with gauges in them, as `draw_hardware` draws them: nothing else changes by itself."""
    machine = Machine(
        diagnosis=diagnosis,
        hardware=hardware,
        gauges=gauges,
        profile=("", ""),
        width=_column_width(width),
        wide=_column_count(width) > 1,
        glyphs=glyphs,
    )
    return [*gpu_table(machine), *processor_section(machine)]


def machine_summary(hardware: Hardware, width: int) -> str:
    """`1x H200 140 GiB`, or `CPU, 2 cores, 24 GiB`: the longest form that fits into `width` cells."""
    cores = f"{hardware.usable_cores} core" + ("" if hardware.usable_cores == 1 else "s")
    memory = f", {hardware.memory_bytes / GIB:.0f} GiB" if hardware.memory_bytes is not None else ""
    forms = [f"CPU, {cores}{memory}", f"CPU, {cores}", "CPU"]
    if hardware.gpus:
        sizes = Counter(describe.short_name(gpu) + _gib(gpu) for gpu in hardware.gpus)
        names = Counter(describe.short_name(gpu) for gpu in hardware.gpus)
        forms = [" + ".join(f"{count}x {name}" for name, count in kinds.items()) for kinds in (sizes, names)]
        forms += [f"{len(hardware.gpus)} GPU" + ("s" if len(hardware.gpus) > 1 else "")]
    return next((form for form in forms if cell_len(form) <= width), "")


def _gib(gpu: Gpu) -> str:
    return "" if gpu.memory_bytes is None else f" {gpu.memory_bytes / GIB:.0f} GiB"


def _columns(
    diagnosis: Diagnosis,
    hardware: Hardware,
    gauges: Gauges | None,
    profile: tuple[str, str],
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Section]:
    machine = Machine(
        diagnosis=diagnosis,
        hardware=hardware,
        gauges=gauges,
        profile=profile,
        width=_column_width(width),
        wide=_column_count(width) > 1,
        glyphs=glyphs,
    )
    sections = sections_of(machine)
    airy = _balanced(sections, _column_count(width), [[]])
    return airy if max(map(len, airy)) <= height else _balanced(sections, _column_count(width), [])


def _column_count(width: int) -> int:
    return next(count for least, count in _COLUMNS_FROM if width >= least)


def _column_width(width: int) -> int:
    count = _column_count(width)
    return (width - _GAP * (count - 1)) // count


def _balanced(sections: list[Section], count: int, between: Section) -> list[Section]:
    """The sections in their order, cut into columns so that the longest is as short as can be."""
    choices = []
    for cuts in combinations(range(1, len(sections)), count - 1):
        edges = (0, *cuts, len(sections))
        choices.append([_stacked(sections[start:end], between) for start, end in pairwise(edges)])
    return min(choices, key=lambda columns: sorted(map(len, columns), reverse=True))


def _stacked(sections: list[Section], between: Section) -> Section:
    first, *rest = sections
    return [*first, *(line for section in rest for line in (*between, *section))]


def _cut(column: Section, top: int, room: int) -> Section:
    """`room` lines of a column; one that is shorter than the scroll stops at its end."""
    start = min(top, max(len(column) - room, 0))
    part = column[start : start + room]
    return [*part, *([[]] * (room - len(part)))]


def _across(parts: list[Line], column_width: int, width: int, glyphs: Glyphs) -> Line:
    line: Line = []
    for index, part in enumerate(parts):
        line += [(" " * _GAP, "text")] if index else []
        line += fit(part, column_width, glyphs.ellipsis)
    return fit(line, width, glyphs.ellipsis)


def _position(above: int, below: int, glyphs: Glyphs) -> str:
    up, down = ("Up", "Down") if glyphs.ascii else ("\u2191", "\u2193")
    words = [f"{down} {below} more below"] if below else []
    return "   ".join(([f"{up} {above} above"] if above else []) + words)
