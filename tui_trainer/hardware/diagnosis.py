"""What this machine means for training: the device, the card that would be used, what is wrong and how to mend it."""

from dataclasses import dataclass
from typing import Literal

from tui_trainer.errors import InputError
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.problems import HardwareProblem, machine_problems, torch_problem
from tui_trainer.hardware.visible_gpus import VARIABLE
from tui_trainer.safe_text import one_line

Device = Literal["cpu", "cuda"]
GpuChoice = int | Literal["none"] | None
"""A card by the driver's number, none (the CPU), or None: the freest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """`gpu` is the card that would be used, with `gpu_reason`; None without a usable one. Worst problems come first."""

    device: Device
    device_reason: str
    gpu: Gpu | None = None
    gpu_reason: str = ""
    gpu_is_chosen: bool = False
    """True when its number was asked for, False while the freest is taken."""
    problems: tuple[HardwareProblem, ...] = ()

    @property
    def is_bad(self) -> bool:
        """True when something is wrong that training would suffer from."""
        return any(problem.severity == "bad" for problem in self.problems)


def training_device(hardware: Hardware, gpu: Gpu | None, chosen: GpuChoice = None) -> tuple[Device, str]:
    """What training runs on, and why: the GPU wherever the installed torch can compute on it.

    `gpu` is what `choose_gpu` found for `chosen`.
    """
    if chosen == "none":
        return "cpu", "asked for with --gpu none"
    if gpu is not None and (why_not := torch_problem(hardware, gpu)):
        return "cpu", one_line(why_not.sentence)
    if gpu is not None:
        return "cuda", f"GPU {gpu.index}, {one_line(gpu.name)}" if gpu.name else f"GPU {gpu.index}"
    if hardware.gpus:
        return "cpu", "no GPU of this machine can be used now"
    if hardware.driver and hardware.driver.problem:
        return "cpu", "the NVIDIA driver does not answer"
    return "cpu", "no NVIDIA GPU was found on this machine"


def diagnose(hardware: Hardware, chosen_gpu: GpuChoice = None) -> Diagnosis:
    """Looks at the facts only. Raises InputError when there is no GPU `chosen_gpu`, or it is hidden.

    A chosen card that does not answer is taken all the same: it is one of the problems then.
    """
    gpu, gpu_reason = choose_gpu(hardware, chosen_gpu)
    device, device_reason = training_device(hardware, gpu, chosen_gpu)
    return Diagnosis(
        device=device,
        device_reason=device_reason,
        gpu=gpu,
        gpu_reason=gpu_reason,
        gpu_is_chosen=gpu is not None and chosen_gpu is not None,
        problems=machine_problems(hardware, gpu),
    )


def usable_gpus(hardware: Hardware) -> list[Gpu]:
    """Those that torch can compute on."""
    return [gpu for gpu in hardware.gpus if gpu.visible and not gpu.problem and not torch_problem(hardware, gpu)]


def choose_gpu(hardware: Hardware, chosen: GpuChoice) -> tuple[Gpu | None, str]:
    """The chosen card, else of those that torch can compute on the one with the most free memory, then the least used.
    Where it can on none, one of them all the same: it is what is wrong with the machine. Raises InputError.
    """
    gpus = hardware.gpus
    if chosen == "none":
        return None, ""
    if chosen is not None:
        return _asked_for(gpus, chosen), "by its number"
    usable = usable_gpus(hardware) or [gpu for gpu in gpus if gpu.visible and not gpu.problem]
    if not usable:
        return None, ""
    freest = min(usable, key=_occupation)
    if len(usable) == 1:
        return freest, "as the only one" if len(gpus) == 1 else "as the only one that can be used"
    if freest.memory_free_bytes is None:
        return freest, "as the first one: free memory is not reported"
    return freest, "as the one with the most free memory"


def _asked_for(gpus: tuple[Gpu, ...], chosen: int) -> Gpu:
    found = next((gpu for gpu in gpus if gpu.index == chosen), None)
    if found is None:
        here = ", ".join(str(gpu.index) for gpu in gpus)
        raise InputError(f"there is no GPU {chosen}", hint=f"GPUs here: {here}" if here else "this machine shows none")
    if not found.visible:
        raise InputError(f"GPU {chosen} is hidden by {VARIABLE}", hint=f"`unset {VARIABLE}`, or choose another")
    return found


def _occupation(gpu: Gpu) -> tuple[float, float, int]:
    """Sorts the freest card first; what is not reported comes after what is."""
    free, use = gpu.memory_free_bytes, gpu.utilisation_share
    return (1.0 if free is None else -free, 2.0 if use is None else use, gpu.index)
