"""The parts of the Hardware screen, each drawn into a column of any width. Pure.

A label has its own column, long texts continue below themselves, nothing is cut.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.hardware import describe
from tui_trainer.hardware.diagnosis import Diagnosis
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gauges import Gauges, GpuGauge
from tui_trainer.hardware.problems import HardwareProblem, Severity
from tui_trainer.launching.trial import Trial, trial_problems, trial_rows
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.screens.gauges_view import TRAIL_MINUTES, target_words
from tui_trainer.ui.spans import Line, Role, Span, hanging, labelled, pad, paragraph, title_rule, width_of
from tui_trainer.units import GIB

Section = list[Line]
LABEL = 11
_BAR = 10
_LIBRARY_GAP = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What is drawn, into a column of `width` cells. `profile` is the hardware profile's name and why.

    `wide`: beside other columns, where some facts have a section of their own.
    """

    diagnosis: Diagnosis
    hardware: Hardware
    gauges: Gauges | None
    profile: tuple[str, str]
    wide: bool
    width: int
    glyphs: Glyphs
    trial: Trial | None = None
    """What was tried of it, newest; None where nothing was."""
    try_key: str = "m"

    def titled(self, title: str, lines: list[Line]) -> Section:
        return [title_rule(title, self.width, self.glyphs), *lines]

    def hanging(self, start: Line, text: str, role: Role = "text") -> list[Line]:
        """The text behind `start`, continued below itself."""
        return hanging(start, paragraph(text, self.width - width_of(start), role))

    def row(self, label: str, text: str, role: Role = "text") -> list[Line]:
        return labelled(label, text, LABEL, self.width, role)

    def rows(self, title: str, rows: list[describe.Row]) -> Section:
        lines = [line for label, text in rows for line in self.row(label, text)]
        return self.titled(title, lines) if rows else []


def device_section(machine: Machine) -> Section:
    """What training runs on; when nothing is wrong, also that."""
    rows = describe.device_rows(machine.diagnosis, machine.hardware, machine.profile)
    roles: list[Role] = ["bold", "text", "text"]
    lines = [line for row, role in zip(rows, roles, strict=True) for line in machine.row(*row, role)]
    if not machine.diagnosis.problems:
        lines.append([(pad("problems", LABEL), "dim"), (f"{machine.glyphs.good} ", "good"), ("none found", "text")])
    return machine.titled("training", lines)


def problems_section(machine: Machine) -> Section:
    found = machine.diagnosis.problems
    return machine.titled(f"problems: {len(found)}", _problem_lines(machine, found)) if found else []


def trial_section(machine: Machine) -> Section:
    """What was tried, with what is wrong with that; that nothing was, and which key does."""
    trial = machine.trial
    if trial is None:
        return machine.titled("tried", machine.row("not yet", f"{machine.try_key} tries it, in some seconds", "dim"))
    lines = [line for label, text in trial_rows(trial, machine.hardware) for line in machine.row(label, one_line(text))]
    return machine.titled("tried, not guessed", [*lines, *_problem_lines(machine, trial_problems(trial))])


def _problem_lines(machine: Machine, found: Sequence[HardwareProblem]) -> list[Line]:
    glyphs = machine.glyphs
    marks: dict[Severity, tuple[str, Role]] = {
        "bad": (glyphs.bad, "bad"), "warn": (glyphs.warn, "warn"), "info": (glyphs.dot, "dim"),
    }  # fmt: skip
    lines: list[Line] = []
    for problem in found:
        sign, role = marks[problem.severity]
        lines += machine.hanging([(pad(sign, 3), role)], problem.sentence)
        if problem.remedy:
            lines += machine.hanging([(f"   {glyphs.arrow} ", "dim")], problem.remedy, "accent")
    return lines


def gpu_table(machine: Machine) -> Section:
    """One line a card. Columns that do not fit are left out for all cards alike."""
    gpus, used = machine.hardware.gpus, machine.diagnosis.gpu
    if not gpus:
        return []
    names = [describe.short_name(gpu) for gpu in gpus]
    name_width, digits = max(map(cell_len, names)), len(str(len(gpus)))
    room = machine.width - 3 - digits - name_width
    # What the probe saw is not shown as what a card does now: it may be long ago.
    gauges = {gauge.index: gauge for gauge in (machine.gauges.gpus if machine.gauges else ())}
    lines: list[Line] = []
    for gpu, name in zip(gpus, names, strict=True):
        is_used = used is not None and gpu.index == used.index
        start: Line = [(f"{machine.glyphs.pointer if is_used else ' '} ", "accent")]
        start.append((f"{gpu.index:>{digits}} {pad(name, name_width)}", "bold" if is_used else "text"))
        if trouble := gpu.problem or ("" if gpu.visible else "hidden by CUDA_VISIBLE_DEVICES"):
            lines += machine.hanging([*start, ("  ", "text")], one_line(trouble), "bad" if gpu.problem else "dim")
        else:
            gauge = gauges.get(gpu.index, GpuGauge(index=gpu.index, memory_bytes=gpu.memory_bytes))
            lines.append([*start, *_columns(gauge, machine.glyphs, room)])
    return machine.titled(f"GPUs: {len(gpus)}, how busy and memory in use", lines)


def _columns(gauge: GpuGauge, glyphs: Glyphs, room: int) -> Line:
    """What fits of the use, its bar, memory, heat and power: each as wide for every card."""
    share, heat, power, limit = (
        "--" if value is None else f"{value:.0f}"
        for value in (
            None if gauge.utilisation_share is None else 100 * gauge.utilisation_share,
            gauge.temperature_celsius, gauge.power_watts, gauge.power_limit_watts,
        )
    )  # fmt: skip
    memory, whole = (
        "   --" if count is None else f"{count / GIB:5.1f}" for count in (gauge.memory_used_bytes, gauge.memory_bytes)
    )
    columns: list[tuple[int, Span]] = [
        (7, (f"  {share:>3} %", "text")),
        (62, (f"  {bar(gauge.utilisation_share, _BAR, glyphs)}", "accent")),
        (27, (f"  {memory} of {whole} GiB", "text")),
        (34, (f"  {heat:>3} C", "text")),
        (50, (f"  {power:>4} of {limit:>4} W", "text")),
    ]
    return [span for least, span in columns if room >= least]


def card_section(machine: Machine) -> Section:
    """The card that would be used; what has a section of its own beside it is left out."""
    rows = describe.gpu_rows(machine.diagnosis, machine.hardware)
    gpu = machine.diagnosis.gpu
    which = "that you chose" if machine.diagnosis.gpu_is_chosen else "that would be used"
    if machine.wide and gpu:
        rows = rows[: len(rows) - len(describe.process_rows(gpu))]
    if machine.wide and machine.diagnosis.card:
        rows = [row for row in rows if row[0] != "peak"]
    return machine.rows(f"GPU {gpu.index}: the card {which}" if gpu else "NVIDIA driver", rows)


def peak_section(machine: Machine) -> Section:
    """The maker's rates as bars, the fastest first."""
    card = machine.diagnosis.card
    if card is None or not machine.wide:
        return []
    rates = card.teraflops.known()
    lines: list[Line] = []
    for name, rate in sorted(rates.items(), key=lambda pair: -pair[1]):
        drawn = bar(rate / max(rates.values()), 2 * _BAR, machine.glyphs)
        unit = "TOP/s" if name == "int8" else "TFLOP/s"
        lines.append([(pad(name, LABEL), "dim"), (drawn, "accent"), (f"  {rate:>6,.4g} {unit}", "text")])
    lines += machine.row("memory", f"{card.gigabytes_per_second:,.0f} GB/s")
    return machine.titled(f"{card.title}: peak rates, dense", [*lines, *machine.row("source", card.source)])


def trail_title(machine: Machine) -> Section:
    """What stands above the curves of the card that would be used."""
    gpu, words = machine.diagnosis.gpu, f"the last {TRAIL_MINUTES} minutes, {target_words(machine.glyphs)}"
    return machine.titled(f"GPU {gpu.index}: {words}", []) if gpu else []


def users_section(machine: Machine) -> Section:
    """Who is on which card; in one column only on the others, where the card's own section says the rest."""
    if not machine.wide:
        return machine.rows("on the other GPUs", describe.other_process_rows(machine.hardware, machine.diagnosis.gpu))
    rows = [
        ("" if label == "" else f"GPU {gpu.index}", words)
        for gpu in machine.hardware.gpus
        for label, words in describe.process_rows(gpu)
    ]
    return machine.rows("who uses which GPU", rows)


def processor_section(machine: Machine) -> Section:
    return machine.rows("processor", describe.processor_rows(machine.hardware))


def system_section(machine: Machine) -> Section:
    return machine.rows("system", describe.system_rows(machine.hardware) if machine.wide else [])


def disk_section(machine: Machine) -> Section:
    """One line for each place where its path fits beside the figures, else two."""
    places = machine.hardware.places
    label_width = max((len(place.label) for place in places), default=0) + 2
    room_width = max((len(describe.room_words(place)) for place in places), default=0) + 2
    lines: list[Line] = []
    for place in places:
        start: Line = [(pad(place.label, label_width), "dim")]
        start.append((pad(describe.room_words(place), room_width), "bad" if place.writable is False else "text"))
        path = describe.place_path(place)
        if width_of(start) + cell_len(path) <= machine.width:
            lines.append([*start, (path, "dim")])
        else:
            lines += [start, *machine.hanging([(" " * label_width, "text")], path, "dim")]
    return machine.titled("disk", lines) if places else []


def libraries_section(machine: Machine) -> Section:
    """Installed ones in columns, the others named in one paragraph."""
    installed, missing = describe.library_words(machine.hardware)
    name_width = max((cell_len(name) for name, _ in installed), default=0) + 1
    cell = name_width + max((cell_len(version) for _, version in installed), default=0) + _LIBRARY_GAP
    down = -(-len(installed) // max((machine.width + _LIBRARY_GAP) // cell, 1))
    lines: list[Line] = [
        [
            part
            for name, version in installed[row::down]
            for part in ((pad(name, name_width), "dim"), (pad(version, cell - name_width), "text"))
        ]
        for row in range(down)
    ]
    if missing:
        lines += machine.row("not here", ", ".join(missing), "dim")
    return machine.titled("libraries", lines) if lines else []


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
