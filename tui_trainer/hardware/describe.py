"""Descriptions of hardware, as rows of a label and a text, for `diagnose` and the Hardware screen.

All texts are safe for a terminal. The number of fixed rows never changes, so that a screen does not move."""

from pathlib import Path

from tui_trainer.hardware.diagnosis import MachineDiagnosis, process_words
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.hardware.gpu_models import MAKERS_WORDS, Abilities, Card, version_text
from tui_trainer.hardware.processor import BF16_FLAGS, training_threads
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import GIB, format_bytes

Row = tuple[str, str]

NOT_REPORTED = "not reported"
# Instruction sets that are shown, oldest first. Others are implied by these or do not help training.
_SHOWN_FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def device_rows(diagnosis: MachineDiagnosis, hardware: Hardware, profile: Row) -> list[Row]:
    """Return the device that training runs on, the number of threads, and the hardware profile (name and reason)."""
    profile_name, reason = profile
    return [
        ("device", diagnosis.device_reason if diagnosis.device == "cuda" else f"CPU: {diagnosis.device_reason}"),
        ("threads", threads_words(hardware)),
        ("hw profile", one_line(f"{profile_name}: {reason}" if profile_name else reason)),
    ]


def gpu_rows(diagnosis: MachineDiagnosis, hardware: Hardware) -> list[Row]:
    """Return rows on the GPU that would be used, its driver and its processes. Without a GPU, only on the driver."""
    gpu = diagnosis.gpu
    if gpu is None:
        return driver_rows(hardware)
    capability_text = version_text(gpu.capability) if gpu.capability else NOT_REPORTED
    memory_text = f"memory {NOT_REPORTED}" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.1f} GiB"
    rows = [
        ("card", f"{full_name(gpu)}, {memory_text}, compute capability {capability_text}"),
        ("chosen", diagnosis.gpu_reason),
        ("computes", precision_words(gpu.abilities)),
        ("attention", attention_words(gpu.abilities)),
        ("peak", peak_words(gpu.card)),
    ]
    return [*rows, *driver_rows(hardware), *process_rows(gpu)]


def driver_rows(hardware: Hardware) -> list[Row]:
    """Return rows on the NVIDIA driver and the CUDA version of torch; none if there is no driver."""
    driver = hardware.driver
    if driver is None:
        return []
    cuda = hardware.torch_cuda
    build_text = f"torch is built for CUDA {version_text(cuda)}" if cuda else "torch is a CPU build"
    if driver.problem:
        return [("driver", f"{one_line(driver.problem)}; {build_text}")]
    supported_text = f"CUDA {version_text(driver.cuda)}" if driver.cuda else "an unreported CUDA version"
    return [("driver", f"{one_line(driver.version or NOT_REPORTED)}, supports {supported_text}; {build_text}")]


def process_rows(gpu: Gpu) -> list[Row]:
    if gpu.processes is None:
        return [("used by", NOT_REPORTED)]
    if not gpu.processes:
        return [("used by", "nobody")]
    biggest_first = sorted(gpu.processes, key=lambda process: -(process.memory_bytes or 0))
    return [("" if index else "used by", process_words(process)) for index, process in enumerate(biggest_first)]


def processor_rows(hardware: Hardware) -> list[Row]:
    """Return the name of the processor, the types that it computes natively, and its instruction sets."""
    flags = hardware.cpu_flags
    return [
        ("model", one_line(hardware.cpu_name)),
        ("computes", cpu_precision_words(flags)),
        ("vectors", " ".join(flag for flag in _SHOWN_FLAGS if flag in flags) or ("none" if flags else NOT_REPORTED)),
    ]


def threads_words(hardware: Hardware) -> str:
    """Return the number of training threads and of cores. Counts that are not reported are omitted."""
    threads = training_threads(hardware.usable_cores)
    rule = "one per core" if threads == hardware.usable_cores else f"leaving one of {hardware.usable_cores} cores free"
    counts = ((hardware.physical_cores, "physical"), (hardware.logical_cores, "logical"))
    cores_text = ", ".join(f"{count} {kind}" for count, kind in counts if count is not None)
    return f"{threads}, {rule}" + (f" ({cores_text})" if cores_text else "")


def cpu_precision_words(flags: frozenset[str]) -> str:
    """Return the types that the processor computes without emulation."""
    if not flags:
        return f"fp32; the instruction sets are {NOT_REPORTED}"
    native = sorted(flags & BF16_FLAGS)
    return f"fp32, and bf16 natively ({', '.join(native)})" if native else "fp32; bf16 only emulated, slower than fp32"


def precision_words(can: Abilities | None) -> str:
    """Return the types that the GPU computes natively."""
    if can is None:
        return NOT_REPORTED
    fp16_text = "fp16 on tensor cores" if can.fp16_tensor_cores else "fp16 without tensor cores"
    native_types = [name for name, is_native in (("bf16", can.bf16), ("tf32", can.tf32), ("fp8", can.fp8)) if is_native]
    bf16_note = "" if can.bf16 else "; no bf16"
    return ", ".join(["fp32", fp16_text, *native_types]) + bf16_note


def attention_words(abilities: Abilities | None) -> str:
    """Return the attention kernels of torch that the GPU supports."""
    if abilities is None:
        return NOT_REPORTED
    return "flash attention" if abilities.flash_attention else "memory-efficient; flash needs compute capability 8.0"


def peak_words(card: Card | None) -> str:
    """Return the manufacturer's peak rates and their source."""
    if card is None:
        return "this GPU is not in the catalogue: measure a step to learn its speed"
    peaks = ", ".join(f"{kind} {value:g}" for kind, value in reversed(card.teraflops.known().items()) if kind != "int8")
    return f"{peaks} TFLOP/s; memory {card.gigabytes_per_second:,.0f} GB/s ({card.source})"


def other_process_rows(hardware: Hardware, gpu: Gpu | None) -> list[Row]:
    """Return the processes on GPUs that would not be used."""
    rows = []
    for other_gpu in hardware.gpus:
        if other_gpu.processes and (gpu is None or other_gpu.index != gpu.index):
            rows += [(f"GPU {other_gpu.index}" if label else "", words) for label, words in process_rows(other_gpu)]
    return rows


def system_rows(hardware: Hardware) -> list[Row]:
    """Return host, system and Python version, for bug reports."""
    return [
        ("host", one_line(hardware.host) or NOT_REPORTED),
        ("system", one_line(hardware.platform)),
        ("python", one_line(hardware.python_version)),
    ]


def full_name(gpu: Gpu) -> str:
    return one_line(gpu.name) if gpu.name else f"unnamed GPU (GPU {gpu.index})"


def short_name(gpu: Gpu) -> str:
    """Return the name of a GPU without the maker's: `RTX 4090` for `NVIDIA GeForce RTX 4090`."""
    words = one_line(gpu.name or "").split()
    return " ".join(word for word in words if word.lower() not in MAKERS_WORDS) or "GPU"


def memory_words(gpu: Gpu) -> str:
    """Return free and total memory: `12.3 of 24.0 GiB free`."""
    if gpu.memory_bytes is None:
        return f"memory {NOT_REPORTED}"
    free_text = "--" if gpu.memory_free_bytes is None else f"{gpu.memory_free_bytes / GIB:.1f}"
    return f"{free_text} of {gpu.memory_bytes / GIB:.1f} GiB free"


def room_words(place: Place) -> str:
    """Return the free space of a folder, `70.0 GiB free of 252.0 GiB`, or a text that the folder is not writable."""
    if place.writable is False:
        return "not writable"
    if place.free_bytes is None:
        return NOT_REPORTED
    return f"{format_bytes(place.free_bytes)} free of {format_bytes(place.total_bytes)}"


def place_path(place: Place) -> str:
    """Return the path of a folder, with `~` for the home folder."""
    path = Path(place.path)
    try:
        home = Path.home()
    except RuntimeError:
        return one_line(place.path)
    return one_line(f"~/{path.relative_to(home)}" if home in path.parents else str(path))


def library_words(hardware: Hardware) -> tuple[list[Row], list[str]]:
    """Return the installed libraries with their versions, and the names of missing ones. pip is omitted."""
    versions = {name: version for name, version in hardware.libraries.items() if name != "pip"}
    installed_rows = [(name, one_line(version)) for name, version in versions.items() if version is not None]
    return installed_rows, [name for name, version in versions.items() if version is None]
