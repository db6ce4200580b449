"""Facts in words, as rows of a label and a text: what `diagnose` prints and the Hardware screen draws.

All texts are safe to be shown. Rows that are always there keep their number, so that a screen does not move.
"""

from pathlib import Path

from tui_trainer.hardware.diagnosis import MachineDiagnosis, process_words
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.hardware.gpu_models import MAKERS_WORDS, Abilities, Card, dotted
from tui_trainer.hardware.processor import BF16_FLAGS, training_threads
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import GIB, format_bytes

Row = tuple[str, str]

NOT_REPORTED = "not reported"
# What a processor has besides is implied by these, or is of no use to training.
_TOLD_FLAGS = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def device_rows(diagnosis: MachineDiagnosis, hardware: Hardware, profile: Row) -> list[Row]:
    """What training runs on, how many threads, and the hardware profile (its name, and why)."""
    name, why = profile
    return [
        ("device", diagnosis.device_reason if diagnosis.device == "cuda" else f"CPU: {diagnosis.device_reason}"),
        ("threads", threads_words(hardware)),
        ("hw profile", one_line(f"{name}: {why}" if name else why)),
    ]


def gpu_rows(diagnosis: MachineDiagnosis, hardware: Hardware) -> list[Row]:
    """The card that would be used: what it is and can do, its driver, and who is on it. Empty without one."""
    gpu = diagnosis.gpu
    if gpu is None:
        return driver_rows(hardware)
    kind = dotted(gpu.capability) if gpu.capability else NOT_REPORTED
    size = f"memory {NOT_REPORTED}" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.1f} GiB"
    rows = [
        ("card", f"{full_name(gpu)}, {size}, compute capability {kind}"),
        ("chosen", diagnosis.gpu_reason),
        ("computes", precision_words(gpu.abilities)),
        ("attention", attention_words(gpu.abilities)),
        ("peak", peak_words(gpu.card)),
    ]
    return [*rows, *driver_rows(hardware), *process_rows(gpu)]


def driver_rows(hardware: Hardware) -> list[Row]:
    """The NVIDIA driver and the CUDA of torch; nothing where there is no sign of either."""
    driver = hardware.driver
    if driver is None:
        return []
    built = f"torch is built for CUDA {dotted(hardware.torch_cuda)}" if hardware.torch_cuda else "torch is a CPU build"
    if driver.problem:
        return [("driver", f"{one_line(driver.problem)}; {built}")]
    serves = f"CUDA {dotted(driver.cuda)}" if driver.cuda else "an unreported CUDA version"
    return [("driver", f"{one_line(driver.version or NOT_REPORTED)}, supports {serves}; {built}")]


def process_rows(gpu: Gpu) -> list[Row]:
    if gpu.processes is None:
        return [("used by", NOT_REPORTED)]
    if not gpu.processes:
        return [("used by", "nobody")]
    biggest_first = sorted(gpu.processes, key=lambda process: -(process.memory_bytes or 0))
    return [("" if index else "used by", process_words(process)) for index, process in enumerate(biggest_first)]


def processor_rows(hardware: Hardware) -> list[Row]:
    """The processor: name, what it computes natively, and its instruction sets."""
    flags = hardware.cpu_flags
    return [
        ("model", one_line(hardware.cpu_name)),
        ("computes", cpu_precision_words(flags)),
        # In the order of their age.
        ("vectors", " ".join(flag for flag in _TOLD_FLAGS if flag in flags) or ("none" if flags else NOT_REPORTED)),
    ]


def threads_words(hardware: Hardware) -> str:
    """How many threads train, and of how many cores; what is not reported is left out."""
    threads = training_threads(hardware.usable_cores)
    how = "one per core" if threads == hardware.usable_cores else f"leaving one of {hardware.usable_cores} cores free"
    counts = ((hardware.physical_cores, "physical"), (hardware.logical_cores, "logical"))
    cores = ", ".join(f"{count} {kind}" for count, kind in counts if count is not None)
    return f"{threads}, {how}" + (f" ({cores})" if cores else "")


def cpu_precision_words(flags: frozenset[str]) -> str:
    """What the processor computes without emulating it."""
    if not flags:
        return f"fp32; its instruction sets are {NOT_REPORTED}"
    native = sorted(flags & BF16_FLAGS)
    return f"fp32, and bf16 natively ({', '.join(native)})" if native else "fp32; bf16 only emulated, slower than fp32"


def precision_words(can: Abilities | None) -> str:
    """What the card computes natively."""
    if can is None:
        return NOT_REPORTED
    fp16 = "fp16 on tensor cores" if can.fp16_tensor_cores else "fp16 without tensor cores"
    native = [name for name, has in (("bf16", can.bf16), ("tf32", can.tf32), ("fp8", can.fp8)) if has]
    lacking = "" if can.bf16 else "; no bf16"
    return ", ".join(["fp32", fp16, *native]) + lacking


def attention_words(can: Abilities | None) -> str:
    """Which kernels of scaled dot product attention there are."""
    if can is None:
        return NOT_REPORTED
    return "flash attention" if can.flash_attention else "memory-efficient; flash needs compute capability 8.0"


def peak_words(card: Card | None) -> str:
    """The maker's rates with their source."""
    if card is None:
        return "this GPU is not in the catalogue: measure a step to learn its speed"
    rates = ", ".join(f"{name} {rate:g}" for name, rate in reversed(card.teraflops.known().items()) if name != "int8")
    return f"{rates} TFLOP/s; memory {card.gigabytes_per_second:,.0f} GB/s ({card.source})"


def other_process_rows(hardware: Hardware, gpu: Gpu | None) -> list[Row]:
    """Who is on the cards that would not be used."""
    rows = []
    for other in hardware.gpus:
        if other.processes and (gpu is None or other.index != gpu.index):
            rows += [(f"GPU {other.index}" if label else "", words) for label, words in process_rows(other)]
    return rows


def system_rows(hardware: Hardware) -> list[Row]:
    """What a bug report begins with."""
    return [
        ("host", one_line(hardware.host) or NOT_REPORTED),
        ("system", one_line(hardware.platform)),
        ("python", one_line(hardware.python_version)),
    ]


def full_name(gpu: Gpu) -> str:
    return one_line(gpu.name) if gpu.name else f"unnamed GPU (GPU {gpu.index})"


def short_name(gpu: Gpu) -> str:
    """`RTX 4090` of `NVIDIA GeForce RTX 4090`."""
    words = one_line(gpu.name or "").split()
    return " ".join(word for word in words if word.lower() not in MAKERS_WORDS) or "GPU"


def memory_words(gpu: Gpu) -> str:
    """`12.3 of 24.0 GiB free`."""
    if gpu.memory_bytes is None:
        return f"memory {NOT_REPORTED}"
    free = "--" if gpu.memory_free_bytes is None else f"{gpu.memory_free_bytes / GIB:.1f}"
    return f"{free} of {gpu.memory_bytes / GIB:.1f} GiB free"


def room_words(place: Place) -> str:
    """`70.0 GiB free of 252.0 GiB`, and whether it can be written to."""
    if place.writable is False:
        return "not writable"
    if place.free_bytes is None:
        return NOT_REPORTED
    return f"{format_bytes(place.free_bytes)} free of {format_bytes(place.total_bytes)}"


def place_path(place: Place) -> str:
    """The path, with `~` for the home folder."""
    path = Path(place.path)
    try:
        home = Path.home()
    except RuntimeError:
        return one_line(place.path)
    return one_line(f"~/{path.relative_to(home)}" if home in path.parents else str(path))


def library_words(hardware: Hardware) -> tuple[list[Row], list[str]]:
    """Name and version of what is installed, and the names of what is not. pip only matters to remedies."""
    shown = {name: version for name, version in hardware.libraries.items() if name != "pip"}
    installed = [(name, one_line(version)) for name, version in shown.items() if version is not None]
    return installed, [name for name, version in shown.items() if version is None]
