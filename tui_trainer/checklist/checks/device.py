"""A run that was meant for a card and lands on the CPU takes ten to a hundred times as long."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.hardware.diagnosis import torch_problem
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.visible_gpus import VARIABLE
from tui_trainer.units import format_bytes


@check(
    order=20,
    title="The GPU is there and used",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    hardware = context.hardware
    gpu, device = context.gpu, context.device
    cpu = f"{hardware.cpu_name}, {hardware.usable_cores} usable cores"
    if device == "cuda" and gpu:
        others = [other for other in hardware.gpus if other is not gpu]
        more = f"; a run uses one card, {len(others)} more here" if others else ""
        return passed(f"trains on GPU {gpu.index}: {_described(gpu)}{more}", *map(_described, others))
    if hardware.gpus and context.chosen_gpu == "none":
        sentence = f"the GPU stays idle, as --gpu none asks: trains on the CPU ({cpu})"
        return warned(sentence, advice="leave out --gpu none")
    if hardware.gpus:
        return _idle(hardware, gpu, cpu)
    if hardware.driver and hardware.driver.problem:
        sentence = f"an NVIDIA driver is there but does not answer ({hardware.driver.problem}); trains on the CPU"
        return warned(f"{sentence} ({cpu})", advice="see what the driver says: nvidia-smi")
    if hardware.driver is None and hardware.nvidia_pci_devices:
        sentence = f"{hardware.nvidia_pci_devices} NVIDIA cards on the PCI bus and no driver: trains on the CPU ({cpu})"
        return failed(sentence, advice="see what to install: tui-trainer diagnose")
    return not_applicable(f"no GPU on this machine: trains on the CPU ({cpu})")


def _idle(hardware: Hardware, gpu: Gpu | None, cpu: str) -> Verdict:
    count = len(hardware.gpus)
    idle = "1 GPU stays idle" if count == 1 else f"{count} GPUs stay idle"
    shown = _described(gpu or hardware.gpus[0])
    cards = tuple(map(_described, hardware.gpus))
    if gpu and (problem := torch_problem(hardware, gpu)):
        advice = problem.remedy or "train on a newer card: none of today's CUDA serves this one"
        return failed(f"{idle} ({shown}): {problem.sentence}; trains on the CPU ({cpu})", *cards, advice=advice)
    if all(not card.visible for card in hardware.gpus):
        sentence = f"{idle} ({shown}): {VARIABLE} hides what is there; trains on the CPU ({cpu})"
        return warned(sentence, *cards, advice=f"unset {VARIABLE}")
    wrong = next((card.problem for card in hardware.gpus if card.problem), "none can be used now")
    sentence = f"{idle} ({shown}): {wrong}; trains on the CPU ({cpu})"
    return failed(sentence, *cards, advice="see what is wrong with it: tui-trainer diagnose")


def _described(gpu: Gpu) -> str:
    name = gpu.name or f"card {gpu.index}"
    return name if gpu.memory_bytes is None else f"{name}, {format_bytes(gpu.memory_bytes)}"
