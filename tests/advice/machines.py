"""Machines that are made up, with the cards that the checks are asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.units import GIB

_LIBRARIES = {
    "torch": "2.15.0", "pip": "26.0", "peft": "0.18", "bitsandbytes": None, "triton": "3.4", "flash-attn": None,
}  # fmt: skip
CPU = Hardware(
    cpu_name="Test CPU",
    usable_cores=4,
    memory_bytes=16 * GIB,
    memory_available_bytes=8 * GIB,
    platform="Linux",
    python_version="3.11",
)


def machine(name: str, capability: tuple[int, int], gib: float, **libraries: str | None) -> Hardware:
    """A machine with one idle card, and a torch that serves it."""
    memory = int(gib * GIB)
    card = Gpu(index=0, name=name, capability=capability, memory_bytes=memory, memory_free_bytes=int(0.97 * memory))
    return replace(
        CPU,
        usable_cores=8,
        memory_bytes=64 * GIB,
        memory_available_bytes=60 * GIB,
        gpus=(card,),
        driver=Driver(version="580", cuda=(13, 0)),
        torch_cuda=(12, 6) if capability < (7, 5) else (13, 0),
        libraries=_LIBRARIES | libraries,
    )


def with_card(machine: Hardware, **facts: Any) -> Hardware:
    """The machine with other facts about its first card."""
    return replace(machine, gpus=(replace(machine.gpus[0], **facts),))


GTX_1080 = machine("NVIDIA GeForce GTX 1080 Ti", (6, 1), 11)
T4 = machine("Tesla T4", (7, 5), 15)
V100 = machine("Tesla V100", (7, 0), 32)
A10 = machine("NVIDIA A10", (8, 6), 22.5)
RTX_4090 = machine("NVIDIA GeForce RTX 4090", (8, 9), 24)
H100 = machine("NVIDIA H100", (9, 0), 80)
H200 = machine("NVIDIA H200", (9, 0), 141)
T4_WITH_BITSANDBYTES = machine("Tesla T4", (7, 5), 15, bitsandbytes="0.48")
RTX_5090_WITH_BITSANDBYTES = machine("NVIDIA GeForce RTX 5090", (12, 0), 31.8, bitsandbytes="0.48")
