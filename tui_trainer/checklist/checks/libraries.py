"""Do the installed torch, the driver and the card speak the same CUDA?"""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned
from tui_trainer.hardware.abilities import dotted
from tui_trainer.hardware.diagnosis import choose_gpu
from tui_trainer.hardware.problems import torch_problem


def look(context: Context) -> Verdict:
    hardware = context.hardware
    torch = hardware.libraries.get("torch")
    named = f"torch {torch}" if torch else "torch"
    if hardware.driver is None:
        return not_applicable(f"no NVIDIA driver on this machine: {named} only has to work on the CPU")
    gpu, _ = choose_gpu(hardware.gpus, None)
    if gpu is None:
        return not_applicable(f"no GPU of this machine can be used now: {named} only has to work on the CPU")
    if problem := torch_problem(hardware, gpu):
        found = f"{problem.sentence} ({named})" if torch else problem.sentence
        return warned(found, advice=problem.remedy or "train on the CPU, or on a newer card")
    built, served = hardware.torch_cuda, hardware.driver.cuda
    if built is None or served is None:
        return not_applicable(f"the driver does not say which CUDA it serves; {named} is not compared with it")
    newer = "; within one major version a newer build works" if built > served else ""
    return passed(f"{named} is built for CUDA {dotted(built)}, the driver serves {dotted(served)}{newer}")


CHECK = Check(
    name="libraries",
    order=30,
    title="torch fits the driver",
    guides=("E diagnostic tool", "E still slow 3"),
    claim="",
    why="A torch that does not fit the driver falls back to the CPU without a word.",
    look=look,
    needs_plan=False,
)
