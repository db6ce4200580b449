"""The cards on the Hardware screen: one line each, the one that would be used in full, and who is on the others."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

from tui_trainer.hardware import describe
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import GpuGauge
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.screens.gauges_view import TRAIL_MINUTES, target_words
from tui_trainer.ui.screens.hardware_rows import BAR, LABEL, Machine, Section, gib_of, hanging, percent, rows_of, titled
from tui_trainer.ui.spans import Line, pad


def gpu_table(machine: Machine) -> Section:
    """One line a card. Columns that do not fit are left out for all cards alike."""
    gpus = machine.hardware.gpus
    if not gpus:
        return []
    names = [describe.short_name(gpu) for gpu in gpus]
    name_width = max(map(cell_len, names))
    room = machine.width - 3 - len(str(len(gpus))) - name_width
    columns = [column for column, least in _GPU_COLUMNS if room >= least]
    used = machine.diagnosis.gpu.index if machine.diagnosis.gpu else None
    lines: list[Line] = []
    for gpu, name in zip(gpus, names, strict=True):
        pointed = gpu.index == used
        start: Line = [(f"{machine.glyphs.pointer if pointed else ' '} ", "accent")]
        start.append((f"{gpu.index:>{len(str(len(gpus)))}} {pad(name, name_width)}", "bold" if pointed else "text"))
        if trouble := gpu.problem or ("" if gpu.visible else "hidden by CUDA_VISIBLE_DEVICES"):
            lines += hanging(
                [*start, ("  ", "text")], one_line(trouble), machine.width, "bad" if gpu.problem else "dim"
            )
        else:
            gauge = _gauge_of(machine, gpu)
            lines.append([*start, *((f"  {column(gauge, machine.glyphs)}", "text") for column in columns)])
    return titled(machine, f"GPUs: {len(gpus)}, how busy and memory in use", lines)


def _gauge_of(machine: Machine, gpu: Gpu) -> GpuGauge:
    """What the card does now. What the probe saw is not shown for it: that may be long ago."""
    for gauge in machine.gauges.gpus if machine.gauges else ():
        if gauge.index == gpu.index:
            return gauge
    return GpuGauge(index=gpu.index, memory_bytes=gpu.memory_bytes)


def _use_column(gauge: GpuGauge, glyphs: Glyphs) -> str:
    return percent(gauge.utilisation_share)


def _bar_column(gauge: GpuGauge, glyphs: Glyphs) -> str:
    return bar(gauge.utilisation_share, BAR, glyphs)


def _memory_column(gauge: GpuGauge, glyphs: Glyphs) -> str:
    return gib_of(gauge.memory_used_bytes, gauge.memory_bytes)


def _heat_column(gauge: GpuGauge, glyphs: Glyphs) -> str:
    return f"{_whole(gauge.temperature_celsius):>3} C"


def _power_column(gauge: GpuGauge, glyphs: Glyphs) -> str:
    return f"{_whole(gauge.power_watts):>4} of {_whole(gauge.power_limit_watts):>4} W"


def card_section(machine: Machine) -> Section:
    rows = describe.gpu_rows(machine.diagnosis, machine.hardware)
    gpu = machine.diagnosis.gpu
    which = "that you chose" if machine.diagnosis.gpu_is_chosen else "that would be used"
    title = f"GPU {gpu.index}: the card {which}" if gpu else "NVIDIA driver"
    if machine.wide and gpu:
        rows = rows[: len(rows) - len(describe.process_rows(gpu))]
    if machine.wide and machine.diagnosis.card:
        rows = [row for row in rows if row[0] != "peak"]
    return titled(machine, title, rows_of(machine, rows)) if rows else []


def peak_section(machine: Machine) -> Section:
    """The maker's rates as bars, the fastest first."""
    card = machine.diagnosis.card
    if card is None or not machine.wide:
        return []
    rates = card.teraflops.known()
    fastest = max(rates.values())
    lines: list[Line] = []
    for name, rate in sorted(rates.items(), key=lambda pair: -pair[1]):
        drawn = bar(rate / fastest, 2 * BAR, machine.glyphs)
        unit = "TOP/s" if name == "int8" else "TFLOP/s"
        lines.append([(pad(name, LABEL), "dim"), (drawn, "accent"), (f"  {rate:>6,.4g} {unit}", "text")])
    lines += rows_of(machine, [("memory", f"{card.gigabytes_per_second:,.0f} GB/s"), ("source", card.source)])
    return titled(machine, f"{card.title}: peak rates, dense", lines)


def trail_title(machine: Machine) -> Section:
    """What stands above the curves of the card that would be used."""
    gpu, words = machine.diagnosis.gpu, f"the last {TRAIL_MINUTES} minutes, {target_words(machine.glyphs)}"
    return titled(machine, f"GPU {gpu.index}: {words}", []) if gpu else []


def users_section(machine: Machine) -> Section:
    """Who is on which card; in one column only on the others, where the card's own section says the rest."""
    if not machine.wide:
        rows = describe.other_process_rows(machine.hardware, machine.diagnosis.gpu)
        return titled(machine, "on the other GPUs", rows_of(machine, rows)) if rows else []
    rows = [
        ("" if label == "" else f"GPU {gpu.index}", words)
        for gpu in machine.hardware.gpus
        for label, words in describe.process_rows(gpu)
    ]
    return titled(machine, "who uses which GPU", rows_of(machine, rows)) if rows else []


def _whole(value: float | None) -> str:
    return "--" if value is None else f"{value:.0f}"


# With the cells that a card's line must have for it: use, memory, heat, power and the bar come in this order.
_GPU_COLUMNS: tuple[tuple[Callable[[GpuGauge, Glyphs], str], int], ...] = (
    (_use_column, 7),
    (_bar_column, 62),
    (_memory_column, 27),
    (_heat_column, 34),
    (_power_column, 50),
)
