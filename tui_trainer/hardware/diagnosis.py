"""Diagnosis of a machine: the device for training, the GPU to use, and problems with their remedies.

Problems and remedies are safe for a terminal: text from elsewhere in them has passed `one_line`."""

import os
import shlex
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tui_trainer.errors import InputError
from tui_trainer.hardware import nvml
from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess, Hardware, Place
from tui_trainer.hardware.gpu_models import build_problem, fitting_wheel, too_old_reason, version_text
from tui_trainer.hardware.visible_gpus import VARIABLE
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import GIB, format_bytes

Severity = Literal["bad", "warn", "info"]

SEVERITIES: tuple[Severity, ...] = ("bad", "warn", "info")
_LITTLE_FREE_GPU_SHARE = 0.2
_LITTLE_DISK_BYTES = 10 * GIB
_NEARLY_NO_DISK_BYTES = GIB
_LITTLE_MEMORY_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class HardwareProblem:
    """Problem of a machine. `bad`: training fails or leaves hardware unused; `warn`: this may happen; `info`: a remark.

    `remedy` is a command if there is one, otherwise a sentence or empty."""

    severity: Severity
    sentence: str
    remedy: str = ""


def machine_problems(hardware: Hardware, gpu: Gpu | None) -> tuple[HardwareProblem, ...]:
    """Return all problems, worst first. `gpu` is the GPU that would be used."""
    problems = [
        *_driver_problems(hardware),
        *_gpu_problems(hardware),
        *filter(None, [torch_problem(hardware, gpu) if gpu else None]),
        *(_memory_use_problems(gpu) if gpu else ()),
        *_place_problems(hardware),
        *_memory_problems(hardware),
        *_processor_problems(hardware),
        *_bytecode_problems(hardware),
    ]
    return tuple(sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity)))


def _driver_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    driver, card_count = hardware.driver, hardware.nvidia_pci_devices or 0
    if driver is None:
        if card_count:
            gpus_are = "GPU is" if card_count == 1 else "GPUs are"
            sentence = f"{card_count} NVIDIA {gpus_are} on the PCI bus, but no NVIDIA driver was found"
            yield HardwareProblem("bad", sentence, f"{_IN_A_CONTAINER}; on Ubuntu: sudo ubuntu-drivers install")
    elif driver.problem:
        # In container images, the driver's library may exist although the machine has no GPU.
        severity: Severity = "warn" if card_count == 0 and driver.error_code in _NO_HARDWARE else "bad"
        remedy = _DRIVER_REMEDIES.get(driver.error_code or 0, "nvidia-smi")
        yield HardwareProblem(severity, one_line(driver.problem), remedy)
    elif not hardware.gpus:
        sentence = "the NVIDIA driver responds, but shows no GPU to this process"
        yield HardwareProblem("bad", sentence, _IN_A_CONTAINER) if card_count else HardwareProblem("warn", sentence)


_IN_A_CONTAINER = "if this is a container, start it with `docker run --gpus all`"
_NO_HARDWARE = (nvml.DRIVER_NOT_LOADED, nvml.LIBRARY_NOT_FOUND)
_DRIVER_REMEDIES = {
    nvml.NO_PERMISSION: "ls -l /dev/nvidia*   (ask the administrator to add you to the group that may use these files)",
    nvml.DRIVER_NOT_LOADED: "sudo modprobe nvidia",
    nvml.LIBRARY_NOT_FOUND: _IN_A_CONTAINER,
    nvml.GPU_IS_LOST: "sudo reboot",
    nvml.VERSION_MISMATCH: "sudo reboot",
}


def _gpu_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    for gpu in hardware.gpus:
        if gpu.problem:
            remedy = f"sudo nvidia-smi --gpu-reset -i {gpu.index}" if "reset" in gpu.problem else "sudo reboot"
            yield HardwareProblem("bad", f"GPU {gpu.index} {one_line(gpu.problem)}", remedy)
        elif gpu.mig_enabled:
            yield _mig_problem(gpu)
    hidden_indices = [str(gpu.index) for gpu in hardware.gpus if not gpu.visible]
    if hidden_indices:
        severity: Severity = "info" if len(hidden_indices) < len(hardware.gpus) else "warn"
        yield HardwareProblem(severity, f"{VARIABLE} hides GPU {', '.join(hidden_indices)}", f"unset {VARIABLE}")


def _mig_problem(gpu: Gpu) -> HardwareProblem:
    if gpu.mig_uuid:
        sentence = f"GPU {gpu.index} is partitioned (MIG): memory shown is that of instance {one_line(gpu.mig_uuid)}"
        return HardwareProblem("info", sentence, "nvidia-smi -L")
    sentence = f"GPU {gpu.index} is partitioned (MIG), and none of its instances is visible"
    return HardwareProblem("warn", sentence, f"nvidia-smi mig -i {gpu.index} -lgi")


def torch_problem(hardware: Hardware, gpu: Gpu) -> HardwareProblem | None:
    """Return why torch would train on the CPU although this GPU exists; None if it can use the GPU."""
    if gpu.capability and (reason := too_old_reason(gpu.capability)):
        sentence = f"GPU {gpu.index} (compute capability {version_text(gpu.capability)}) is too old: {reason}"
        return HardwareProblem("bad", sentence)
    if reason := _torch_reason(hardware, gpu):
        return HardwareProblem("bad", reason, _torch_remedy(hardware, gpu))
    return None


def _torch_reason(hardware: Hardware, gpu: Gpu) -> str:
    cuda, driver = hardware.torch_cuda, hardware.driver or Driver()
    if (torch_version := hardware.libraries.get("torch")) is None:
        return "torch is not installed" if hardware.libraries else ""
    if cuda is None:
        return "torch is built without CUDA, so training runs on the CPU"
    if driver.cuda and cuda[0] > driver.cuda[0]:
        cause = f"torch is built for CUDA {version_text(cuda)}, but the driver supports {version_text(driver.cuda)}"
        return f"{cause}, so training is on the CPU"
    reason = build_problem(gpu.capability, cuda, torch_version) if gpu.capability else ""
    return f"torch is built for CUDA {version_text(cuda)}, which cannot use GPU {gpu.index}: {reason}" if reason else ""


def _torch_remedy(hardware: Hardware, gpu: Gpu) -> str:
    driver_cuda = hardware.driver.cuda if hardware.driver else None
    wheel = fitting_wheel(driver_cuda, gpu.capability) if driver_cuda else None
    if wheel is None:
        return "install a newer NVIDIA driver: torch 2.9 and newer need one that supports CUDA 12"
    index_option = f"--index-url https://download.pytorch.org/whl/{wheel}"
    if hardware.libraries.get("pip"):
        return f"pip install --force-reinstall torch {index_option}"
    # `uv run` alone would reinstall the locked build.
    return f"uv pip install --reinstall-package torch torch {index_option} && uv run --no-sync tui-trainer diagnose"


def _memory_use_problems(gpu: Gpu) -> Iterator[HardwareProblem]:
    free_bytes, total_bytes = gpu.memory_free_bytes, gpu.memory_bytes
    if free_bytes is None or not total_bytes or free_bytes >= _LITTLE_FREE_GPU_SHARE * total_bytes:
        return
    biggest_process = max(gpu.processes or (), key=lambda process: process.memory_bytes or 0, default=None)
    cause = f": {process_words(biggest_process)}" if biggest_process else ""
    sentence = f"GPU {gpu.index} has only {format_bytes(free_bytes)} of {format_bytes(total_bytes)} free{cause}"
    yield HardwareProblem("warn", sentence, f"nvidia-smi -i {gpu.index}")


def process_words(process: GpuProcess) -> str:
    """Return `python of anna (pid 4711) holds 12.3 GiB`, without facts that are not reported."""
    name_text = one_line(process.name, 40) if process.name else "a process"
    owner_text = f" of {one_line(process.user, 40)}" if process.user else ""
    memory_text = f" holds {format_bytes(process.memory_bytes)}" if process.memory_bytes is not None else ""
    return f"{name_text}{owner_text} (pid {process.pid}){memory_text}"


def _place_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    for place in hardware.places:
        folder_text = f"the folder for {place.label} ({one_line(place.path)})"
        if place.writable is False:
            yield HardwareProblem("bad", f"{folder_text} is not writable", _move_remedy(place))
        elif place.free_bytes is None:
            yield HardwareProblem("warn", f"{folder_text} does not report its free space")
        elif place.free_bytes < _LITTLE_DISK_BYTES:
            severity: Severity = "bad" if place.free_bytes < _NEARLY_NO_DISK_BYTES else "warn"
            sentence = f"{folder_text} has only {format_bytes(place.free_bytes)} free"
            yield HardwareProblem(severity, sentence, _move_remedy(place))


def _move_remedy(place: Place) -> str:
    return {
        "runs": "tui-trainer --set output.runs_dir=/path/with/room",
        "prepared data": "export TUI_TRAINER_HOME=/path/with/room",
        "model cache": "export HF_HOME=/path/with/room",
        "temporary": "export TMPDIR=/path/with/room",
    }.get(place.label, f"df -h {shlex.quote(one_line(place.path))}")


def _memory_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    usable_bytes, machine_bytes = hardware.memory_bytes, hardware.machine_memory_bytes
    if usable_bytes is not None and usable_bytes < _LITTLE_MEMORY_BYTES:
        sentence = f"{format_bytes(usable_bytes)} of memory is very little: loading torch alone takes about half a GiB"
        yield HardwareProblem("warn", sentence, "tui-trainer --set training.per_device_train_batch_size=4")
    if usable_bytes is not None and machine_bytes is not None and usable_bytes < machine_bytes:
        allowed, present = format_bytes(usable_bytes), format_bytes(machine_bytes)
        yield HardwareProblem("info", f"a container or job limit allows {allowed} of the machine's {present}")


def _processor_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    usable_cores, physical_cores = hardware.usable_cores, hardware.physical_cores
    if physical_cores is not None and usable_cores < physical_cores:
        sentence = f"a quota or CPU affinity allows {usable_cores} of the machine's {physical_cores} cores"
        yield HardwareProblem("info", sentence, "nproc; cat /sys/fs/cgroup/cpu.max")
    if "sse4_2" in hardware.cpu_flags and "avx2" not in hardware.cpu_flags:
        sentence = "the processor has no AVX2, which torch's fast CPU kernels need, so training is several times slower"
        yield HardwareProblem("warn", sentence)


def _bytecode_problems(hardware: Hardware) -> Iterator[HardwareProblem]:
    # Imports of torch and transformers take 19.8 s without bytecode and 9.0 s with it, on 2 cores of an Intel Xeon.
    sentence = "Python recompiles its libraries at every start, which takes about 10 s"
    if hardware.bytecode_obstacle == "variable":
        remedy = "unset PYTHONDONTWRITEBYTECODE"
        yield HardwareProblem("info", f"{sentence}, because PYTHONDONTWRITEBYTECODE is set", remedy)
    elif hardware.bytecode_obstacle == "folder":
        remedy = "export PYTHONPYCACHEPREFIX=~/.cache/python"
        yield HardwareProblem("info", f"{sentence}, because the folder of torch is not writable", remedy)


Device = Literal["cpu", "cuda"]
GpuChoice = int | Literal["none"] | None
"""Number of a GPU as the driver counts, "none" for the CPU, or None for the GPU with the most free memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineDiagnosis:
    """Device for training and problems, worst first. `gpu` is the GPU that would be used; None if none is usable."""

    device: Device
    device_reason: str
    gpu: Gpu | None = None
    gpu_reason: str = ""
    gpu_is_chosen: bool = False
    """Whether the user chose the GPU by its number."""
    problems: tuple[HardwareProblem, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether there is a problem of severity `bad`."""
        return any(problem.severity == "bad" for problem in self.problems)


def training_device(hardware: Hardware, gpu: Gpu | None, chosen: GpuChoice = None) -> tuple[Device, str]:
    """Return the device for training, and the reason. The device is the GPU if the installed torch can use it.

    `gpu` is the result of `choose_gpu` for `chosen`."""
    if chosen == "none":
        return "cpu", "requested with --gpu none"
    if gpu is not None and (problem := torch_problem(hardware, gpu)):
        return "cpu", one_line(problem.sentence)
    if gpu is not None:
        return "cuda", f"GPU {gpu.index}, {one_line(gpu.name)}" if gpu.name else f"GPU {gpu.index}"
    if hardware.gpus:
        return "cpu", "no GPU of this machine is usable now"
    if hardware.driver and hardware.driver.problem:
        return "cpu", "the NVIDIA driver does not respond"
    return "cpu", "no NVIDIA GPU was found on this machine"


def diagnose(hardware: Hardware, chosen_gpu: GpuChoice = None) -> MachineDiagnosis:
    """Return the diagnosis of the given facts. Raises InputError if the GPU `chosen_gpu` does not exist or is hidden.

    A chosen GPU that does not respond is still chosen, and is one of the problems."""
    gpu, gpu_reason = choose_gpu(hardware, chosen_gpu)
    device, device_reason = training_device(hardware, gpu, chosen_gpu)
    return MachineDiagnosis(
        device=device,
        device_reason=device_reason,
        gpu=gpu,
        gpu_reason=gpu_reason,
        gpu_is_chosen=gpu is not None and chosen_gpu is not None,
        problems=machine_problems(hardware, gpu),
    )


def usable_gpus(hardware: Hardware) -> list[Gpu]:
    """Return the GPUs that torch can compute on."""
    return [gpu for gpu in hardware.gpus if gpu.visible and not gpu.problem and not torch_problem(hardware, gpu)]


def choose_gpu(hardware: Hardware, chosen: GpuChoice) -> tuple[Gpu | None, str]:
    """Return the GPU to use and the reason: the chosen one, or the one with the most free memory, then the least used.

    If torch can use no GPU, an unusable one is returned, so that its problem is reported. Raises InputError."""
    gpus = hardware.gpus
    if chosen == "none":
        return None, ""
    if chosen is not None:
        return _gpu_by_number(gpus, chosen), "chosen by its number"
    candidates = usable_gpus(hardware) or [gpu for gpu in gpus if gpu.visible and not gpu.problem]
    if not candidates:
        return None, ""
    freest_gpu = min(candidates, key=_occupation)
    if len(candidates) == 1:
        return freest_gpu, "the only GPU" if len(gpus) == 1 else "the only usable GPU"
    if freest_gpu.memory_free_bytes is None:
        return freest_gpu, "the first GPU, because free memory is not reported"
    return freest_gpu, "the GPU with the most free memory"


def _gpu_by_number(gpus: tuple[Gpu, ...], number: int) -> Gpu:
    gpu_by_number = {gpu.index: gpu for gpu in gpus}
    if number not in gpu_by_number:
        hint = f"GPUs here: {', '.join(map(str, gpu_by_number))}" if gpus else "this machine has no GPU"
        raise InputError(f"there is no GPU {number}", hint=hint)
    if not gpu_by_number[number].visible:
        raise InputError(f"GPU {number} is hidden by {VARIABLE}", hint=f"`unset {VARIABLE}`, or choose another GPU")
    return gpu_by_number[number]


def _occupation(gpu: Gpu) -> tuple[float, float, int]:
    """Return a key that sorts the GPU with the most free memory first. Values that are not reported sort last."""
    free_bytes, utilisation = gpu.memory_free_bytes, gpu.utilisation_share
    return (1.0 if free_bytes is None else -free_bytes, 2.0 if utilisation is None else utilisation, gpu.index)


ASSUMED: Final = "assumed"
"""Version of a library that a plan for another machine assumes to be installed."""


def lack_of_compiler(libraries: Mapping[str, str | None], device: Device) -> str:
    """Return which part of the compiler of torch and Triton is missing, as a clause; empty if none is.

    Triton compiles its launcher in C when its first kernel starts. Nothing is imported here.
    Sources: triton/runtime/build.py; _cpp_compiler_search in torch/_inductor/cpp_builder.py."""
    variable, programs, language = "CXX", ("g++", "clang++"), "C++"
    if device == "cuda":
        variable, programs, language = "CC", ("gcc", "clang"), "C"
        if (triton := libraries.get("triton", "")) in (None, ASSUMED):
            return "" if triton else "triton is not installed"
        if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            return "the headers of Python (Python.h) are not installed"
    # The variable may contain options after the program.
    command = os.environ.get(variable, "").split()[:1]
    return "" if any(map(shutil.which, command or programs)) else f"no {language} compiler ({programs[0]}) is installed"
