"""The parts of the Hardware screen, each drawn into a column of any width. Pure.

A label has its own column, long texts continue below themselves, nothing is cut.
"""

from __future__ import annotations

from collections import Counter

from rich.cells import cell_len

from tui_trainer.hardware import describe
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.hardware.problems import Severity
from tui_trainer.ui.screens.hardware_rows import LABEL, Machine, Section, hanging, row_of, rows_of, titled
from tui_trainer.ui.spans import Line, Role, pad
from tui_trainer.units import GIB

_LIBRARY_GAP = 2


def device_section(machine: Machine) -> Section:
    """What training runs on; when nothing is wrong, also that."""
    rows = describe.device_rows(machine.diagnosis, machine.hardware, machine.profile)
    roles: list[Role] = ["bold", "text", "text"]
    lines = [
        line for (label, text), role in zip(rows, roles, strict=True) for line in row_of(machine, label, text, role)
    ]
    if not machine.diagnosis.problems:
        lines.append([(pad("problems", LABEL), "dim"), (f"{machine.glyphs.good} ", "good"), ("none found", "text")])
    return titled(machine, "training", lines)


def problems_section(machine: Machine) -> Section:
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


def system_section(machine: Machine) -> Section:
    return titled(machine, "system", rows_of(machine, describe.system_rows(machine.hardware))) if machine.wide else []


def processor_section(machine: Machine) -> Section:
    return titled(machine, "processor", rows_of(machine, describe.processor_rows(machine.hardware)))


def disk_section(machine: Machine) -> Section:
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


def libraries_section(machine: Machine) -> Section:
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
