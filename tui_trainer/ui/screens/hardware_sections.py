"""The parts of the Hardware screen, each drawn into a column of any width. Rows keep their number while gauges change.

A label has its own column, long texts continue below themselves, nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

from tui_trainer.hardware import describe
from tui_trainer.hardware.facts import Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.problems import Severity
from tui_trainer.ui.glyphs import bar
from tui_trainer.ui.screens.hardware_gpus import card_section, gpu_table, others_section, peak_section
from tui_trainer.ui.screens.hardware_rows import (
    BAR,
    LABEL,
    Machine,
    Section,
    gib_of,
    hanging,
    percent,
    row_of,
    rows_of,
    titled,
)
from tui_trainer.ui.spans import Line, Role, pad

_LIBRARY_GAP = 2


def sections_of(machine: Machine) -> list[Section]:
    """All sections in the order of their importance: what is used, what is wrong, then what there is."""
    drawn = [part(machine) for part in _PARTS]
    if machine.glyphs.ascii:
        drawn = [[[(_plain(text), role) for text, role in line] for line in section] for section in drawn]
    return [section for section in drawn if section]


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def _device(machine: Machine) -> Section:
    """What training runs on; when nothing is wrong, also that."""
    rows = describe.device_rows(machine.diagnosis, machine.hardware, machine.profile)
    roles: list[Role] = ["bold", "text", "text"]
    lines = [
        line for (label, text), role in zip(rows, roles, strict=True) for line in row_of(machine, label, text, role)
    ]
    if not machine.diagnosis.problems:
        lines.append([(pad("problems", LABEL), "dim"), (f"{machine.glyphs.good} ", "good"), ("none found", "text")])
    return [*titled(machine, "training", lines), *_problems(machine)]


def _problems(machine: Machine) -> Section:
    glyphs = machine.glyphs
    found = machine.diagnosis.problems
    if not found:
        return []
    marks: dict[Severity, tuple[str, Role]] = {
        "bad": (glyphs.bad, "bad"),
        "warn": (glyphs.warn, "warn"),
        "info": (glyphs.dot, "dim"),
    }
    lines: list[Line] = []
    for problem in found:
        sign, role = marks[problem.severity]
        lines += hanging([(pad(sign, 3), role)], problem.sentence, machine.width, "text")
        if problem.remedy:
            lines += hanging([(f"   {glyphs.arrow} ", "dim")], problem.remedy, machine.width, "accent")
    return titled(machine, f"problems: {len(found)}", lines)


def _system(machine: Machine) -> Section:
    return titled(machine, "system", rows_of(machine, describe.system_rows(machine.hardware))) if machine.wide else []


def processor_section(machine: Machine) -> Section:
    gauges = machine.gauges or Gauges()
    rows = rows_of(machine, describe.processor_rows(machine.hardware))
    busy: Line = [(pad("busy", LABEL), "dim"), (bar(gauges.cpu_share, BAR, machine.glyphs), "accent")]
    busy.append((f"  {percent(gauges.cpu_share)}", "text"))
    return titled(machine, "processor", [*rows, busy, _memory_line(machine, gauges)])


def _memory_line(machine: Machine, gauges: Gauges) -> Line:
    used, total = gauges.memory_used_bytes, gauges.memory_bytes or machine.hardware.memory_bytes
    share = used / total if used is not None and total else None
    line: Line = [(pad("memory", LABEL), "dim"), (bar(share, BAR, machine.glyphs), "accent")]
    return [*line, (f"  {percent(share)}  {gib_of(used, total)} used", "text")]


def _disk(machine: Machine) -> Section:
    places = machine.hardware.places
    if not places:
        return []
    label_width = max(len(place.label) for place in places) + 2
    room_width = max(len(describe.room_words(place)) for place in places) + 2
    lines = [line for place in places for line in _place(machine, place, label_width, room_width)]
    return titled(machine, "disk", lines)


def _place(machine: Machine, place: Place, label_width: int, room_width: int) -> Section:
    """One line where the path fits beside the figures, else two."""
    start: Line = [(pad(place.label, label_width), "dim")]
    start.append((pad(describe.room_words(place), room_width), "bad" if place.writable is False else "text"))
    path = describe.place_path(place)
    if label_width + room_width + cell_len(path) <= machine.width:
        return [[*start, (path, "dim")]]
    return [start, *hanging([(pad("", label_width), "text")], path, machine.width, "dim")]


def _libraries(machine: Machine) -> Section:
    """Installed ones in columns, the others named in one paragraph."""
    installed, missing = describe.library_words(machine.hardware)
    if not installed and not missing:
        return []
    lines: list[Line] = []
    if installed:
        name_width = max(cell_len(name) for name, _ in installed) + 1
        cell = name_width + max(cell_len(version) for _, version in installed) + _LIBRARY_GAP
        across = max((machine.width + _LIBRARY_GAP) // cell, 1)
        down = -(-len(installed) // across)
        for row in range(down):
            line: Line = []
            for name, version in installed[row::down]:
                line += [(pad(name, name_width), "dim"), (pad(version, cell - name_width), "text")]
            lines.append(line)
    if missing:
        lines += hanging([(pad("not here", LABEL), "dim")], ", ".join(missing), machine.width, "dim")
    return titled(machine, "libraries", lines)


_PARTS: tuple[Callable[[Machine], Section], ...] = (
    *(_device, gpu_table, card_section, peak_section, others_section),
    *(processor_section, _disk, _libraries, _system),
)
