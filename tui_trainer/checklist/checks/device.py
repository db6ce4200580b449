"""Is there a card, and is it used? Training on the CPU by accident is the costliest mistake of all."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned
from tui_trainer.hardware.facts import Gpu
from tui_trainer.units import format_bytes

_CPU_ONLY = "this version trains on the CPU only"


def look(context: Context) -> Verdict:
    hardware = context.hardware
    device = context.plan.device if context.plan else "cpu"
    cpu = f"{hardware.cpu_name}, {hardware.usable_cores} usable cores"
    if device != "cpu" and hardware.gpus:
        return passed(f"trains on {device}: {_described(hardware.gpus[0])}", *map(_described, hardware.gpus[1:]))
    if hardware.gpus:
        count = len(hardware.gpus)
        idle = "1 GPU stays idle" if count == 1 else f"{count} GPUs stay idle"
        sentence = f"{idle} ({_described(hardware.gpus[0])}): {_CPU_ONLY} ({cpu})"
        return warned(sentence, *map(_described, hardware.gpus), advice="nothing can be set: GPUs come next")
    if hardware.driver and hardware.driver.problem:
        return warned(
            f"an NVIDIA driver is there but does not answer ({hardware.driver.problem}); trains on the CPU ({cpu})",
            advice="see what the driver says: nvidia-smi",
        )
    return not_applicable(f"no GPU on this machine: trains on the CPU ({cpu})")


def _described(gpu: Gpu) -> str:
    name = gpu.name or f"card {gpu.index}"
    return name if gpu.memory_bytes is None else f"{name}, {format_bytes(gpu.memory_bytes)}"


CHECK = Check(
    name="device",
    order=20,
    title="The GPU is there and used",
    guides=("E diagnostic tool", "E still slow 1", "A GPU selection", "B slow training 1"),
    claim="1x to 5x between cards (guide A)",
    why="A run that was meant for a card and lands on the CPU takes ten to a hundred times as long.",
    look=look,
    needs_plan=False,
)
