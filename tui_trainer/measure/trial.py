"""Test quickly, in a separate process, how fast a machine really is. Results are stored with machine and date."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module, metadata
from itertools import starmap
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import psutil

from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.diagnosis import SEVERITIES, GpuChoice, HardwareProblem, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gpu_models import FLASH_KERNELS, Card
from tui_trainer.hardware.nvml import gpu_reports, session
from tui_trainer.hardware.processor import training_threads
from tui_trainer.hardware.storage import read_rate, write_rate
from tui_trainer.planning.records import TRIAL, Key, keep_record, records_of_device, trial_device
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import GIB, MIB, format_bytes, format_rate, utc_now
from tui_trainer.worker.asking import WorkerFailed, ask
from tui_trainer.worker.questions import Report

# Limits the wait for a driver that does not answer.
_TIMEOUT_SECONDS = 600.0
_SHM = Path("/dev/shm")
# torch's data loaders and NCCL use shared memory there. A Docker container gets 64 MiB by default.
_LITTLE_SHM_BYTES = GIB
# Shares of the maker's figures. A healthy GPU reaches two thirds or more in large matmuls, and nine tenths in copies.
_LEAST_RATE_SHARE, _LEAST_BANDWIDTH_SHARE = 0.5, 0.6
_SLOW_DISK_BYTES_PER_SECOND = 50e6
_SLOW_LOADER_TOKENS_PER_SECOND = 5e6
_MAX_SLOWDOWN = 1.3
_BUSY_COMMAND = "top   (are other programs busy?)"
Trial = dict[str, Any]


def try_machine(hardware: Hardware, chosen: GpuChoice = None, notify: Callable[[str], None] = lambda _: None) -> Trial:
    """Test each part of the machine, and store and return the results. `notify` gets the name of each part.

    If the worker crashes or does not answer, that is a problem in the result, and earlier parts are kept. Raises
    InputError if there is no such GPU."""
    gpu, device = _gpu_and_device(hardware, chosen)
    modules = [kernels.module for kernels in FLASH_KERNELS.values() if hardware.libraries.get(kernels.distribution)]
    question = {
        "device": device,
        "threads": training_threads(hardware.usable_cores),
        "uuid": gpu.cuda_uuid if gpu else "",
        "places": {place.label: place.path for place in hardware.places if place.writable},
        "attention_packages": modules if gpu else [],
    }
    trial: Trial = {
        "at": utc_now(),
        "device": device,
        "name": (gpu.name or "") if gpu else hardware.cpu_name,
        "torch": hardware.libraries.get("torch") or "",
        "ended": "",
    }
    part_name = "the start of a process"

    def record_part(report: dict[str, Any]) -> None:
        nonlocal part_name
        part_name = str(report["part"])
        if "found" in report:
            trial[part_name] = report["found"]
        else:
            notify(part_name)

    try:
        ask("try_machine", question, timeout_seconds=_TIMEOUT_SECONDS, sees_gpus=gpu is not None, progress=record_part)
    except WorkerFailed as error:
        trial["ended"] = f"trying {part_name} {error}"
    # These figures need no worker.
    limits, nvml = read_limits(), session()
    trial |= {
        "shm_bytes": psutil.disk_usage(str(_SHM)).total if _SHM.is_dir() else None,
        "limit_memory_bytes": limits.memory_bytes,
        "limit_cores": limits.cores,
        "ecc": nvml.ecc(gpu.index) if nvml and gpu else None,
        "kernel_reports": gpu_reports() if gpu else [],
    }
    trial["problems"] = [asdict(problem) for problem in problems_of(trial, hardware, gpu)]
    keep_record(TRIAL, Key(device=trial_device(hardware, gpu), versions=f"torch {trial['torch']}"), trial)
    return trial


def kept_trial(hardware: Hardware, chosen: GpuChoice = None) -> Trial | None:
    """Return the newest stored trial of this machine and GPU; None if there is none."""
    records = records_of_device(TRIAL, trial_device(hardware, _gpu_and_device(hardware, chosen)[0]))
    return records[-1].figures if records else None


def _gpu_and_device(hardware: Hardware, chosen: GpuChoice) -> tuple[Gpu | None, str]:
    """Return (GPU or None, device by torch's name) for training with this choice."""
    gpu = choose_gpu(hardware, chosen)[0]
    device = training_device(hardware, gpu, chosen)[0]
    return (gpu if device == "cuda" else None), device


def problems_of(trial: Trial, hardware: Hardware, gpu: Gpu | None) -> list[HardwareProblem]:
    """Return a problem for each result that is worse than expected, with a command that helps."""
    index = gpu.index if gpu else 0
    return [
        *_problems_of_worker(trial),
        *_problems_of_rates(trial, gpu.card if gpu else None, index),
        *_problems_of_storage(trial),
        *_problems_of_card(trial, index),
        *starmap(_warning, version_conflicts(hardware.libraries)),
    ]


_warning = partial(HardwareProblem, "warn")


def _problems_of_worker(trial: Trial) -> Iterator[HardwareProblem]:
    if trial["ended"]:
        compute_code = '; torch.ones(8, device="cuda").sum()' if trial["device"] == "cuda" else ""
        yield HardwareProblem("bad", one_line(trial["ended"], 300), f"python -c 'import torch{compute_code}'")
    attention_figures = _figures_of(trial, "attention")
    for kernels in FLASH_KERNELS.values():
        if reason := attention_figures.get(kernels.module, {}).get("reason"):
            sentence = f"{kernels.module} is installed, but cannot be imported: {one_line(str(reason), 120)}"
            yield _warning(sentence, f"uv pip install --reinstall --no-build-isolation {kernels.distribution}")


def _problems_of_rates(trial: Trial, card: Card | None, index: int) -> Iterator[HardwareProblem]:
    command = f"nvidia-smi -q -d CLOCK,POWER,PERFORMANCE -i {index}"
    for name, peak in (card.teraflops.known() if card else {}).items():
        precision = _figures_of(trial, "precisions").get(name, {})
        tflops = precision.get("teraflops", peak)
        if reason := precision.get("reason"):
            sentence = f"{name} failed, although this GPU supports it: {one_line(str(reason), 120)}"
            yield _warning(sentence, "tui-trainer diagnose")
        elif tflops < _LEAST_RATE_SHARE * peak:
            yield _warning(f"{name} matmuls reach {tflops:.1f} of {peak:.0f} TFLOP/s ({tflops / peak:.0%})", command)
    bandwidth = _figures_of(trial, "memory").get("gigabytes_per_second")
    if card and bandwidth and bandwidth < _LEAST_BANDWIDTH_SHARE * card.gigabytes_per_second:
        sentence = f"the GPU's memory reaches only {bandwidth:,.0f} of {card.gigabytes_per_second:,.0f} GB/s"
        yield _warning(sentence, command)
    load = _figures_of(trial, "long")
    slow_factor = load.get("slower_at_the_end", 1.0)
    if by := load.get("slowed_by"):
        sentence = f"under load, the GPU slows down to {load.get('clock_share') or 0:.0%} of its clock because of {by}"
        yield _warning(sentence, f"nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -i {index}")
    elif slow_factor > _MAX_SLOWDOWN:
        sentence = f"matmuls took {slow_factor:.1f} times as long at the end of a short test as at its start"
        yield _warning(sentence, _BUSY_COMMAND)


def _problems_of_storage(trial: Trial) -> Iterator[HardwareProblem]:
    remedies = {"runs": "--set output.runs_dir=FOLDER", "prepared data": "export TUI_TRAINER_HOME=FOLDER"}
    for disk in _listed(trial, "disks"):
        path = one_line(disk["path"])
        for verb in ("read", "write"):
            bytes_per_second = disk[f"{verb}_bytes_per_second"]
            if bytes_per_second is not None and bytes_per_second < _SLOW_DISK_BYTES_PER_SECOND:
                sentence = f"the disk of {path} {verb}s only {format_bytes(bytes_per_second)}/s"
                yield _warning(sentence, remedies.get(disk["label"], f"df -h {path}"))
    shm_bytes = trial.get("shm_bytes")
    if shm_bytes is not None and shm_bytes < _LITTLE_SHM_BYTES:
        sentence = f"/dev/shm has {format_bytes(shm_bytes)}, which is little for data loader processes"
        yield HardwareProblem("info", sentence, "docker run --shm-size=8g ...")
    tokens_per_second = _figures_of(trial, "loader").get("tokens_per_second")
    if tokens_per_second is not None and tokens_per_second < _SLOW_LOADER_TOKENS_PER_SECOND:
        yield _warning(f"batches are prepared at only {format_rate(tokens_per_second, 'tokens')}", _BUSY_COMMAND)


def _problems_of_card(trial: Trial, index: int) -> Iterator[HardwareProblem]:
    ecc = trial.get("ecc") or {}
    if ecc.get("uncorrected"):
        sentence = f"the GPU's memory had {ecc['uncorrected']} errors that could not be corrected (ECC)"
        yield HardwareProblem("bad", sentence, f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {index}")
    if ecc.get("remapping_pending"):
        sentence = "rows of the GPU's memory are waiting to be remapped, which needs a reset of the GPU"
        yield _warning(sentence, f"sudo nvidia-smi --gpu-reset -i {index}")
    for report in trial.get("kernel_reports") or []:
        yield _warning(f"kernel log: {one_line(report, 160)}", "sudo dmesg | grep -i xid")


def version_conflicts(libraries: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield (conflict, command to solve it), for example `peft 0.20 needs transformers>=5, installed: 4.57`."""
    from packaging.requirements import InvalidRequirement, Requirement

    for name in (name for name, version in libraries.items() if version is not None):
        with suppress(metadata.PackageNotFoundError):
            library = metadata.distribution(name)
            for line in library.requires or ():
                with suppress(InvalidRequirement, metadata.PackageNotFoundError):
                    demand = Requirement(line)
                    if demand.marker and not demand.marker.evaluate():
                        continue
                    version = metadata.version(demand.name)
                    if not demand.specifier.contains(version, prereleases=True):
                        needed = f"{demand.name}{demand.specifier}"
                        sentence = f"{name} {library.version} needs {needed}, installed: {version}"
                        yield sentence, f"uv pip install '{needed}'"


def _figures_of(trial: Trial, part: str) -> dict[str, Any]:
    """Return the figures of a part of a stored trial; {} if the part failed or its record is damaged."""
    figures = trial.get(part)
    return figures if isinstance(figures, dict) and not isinstance(figures.get("reason"), str) else {}


def _listed(trial: Trial, part: str) -> list[Any]:
    return figures if isinstance(figures := trial.get(part), list) else []


def trial_problems(trial: Trial) -> list[HardwareProblem]:
    """Return the problems of a stored trial. Damaged records are left out."""
    problems = []
    for entry in _listed(trial, "problems"):
        with suppress(TypeError):
            problem = HardwareProblem(**entry)
            if problem.severity in SEVERITIES:
                problems.append(problem)
    return problems


def trial_rows(trial: Trial, hardware: Hardware) -> list[tuple[str, str]]:
    """Return (label, result in words) of each part, with the maker's figure beside that of a GPU."""
    gpu = next((gpu for gpu in hardware.gpus if gpu.name == trial.get("name")), None)
    card = gpu.card if gpu and trial.get("device") == "cuda" else None
    date_words, torch_version = str(trial.get("at", ""))[:16].replace("T", " "), one_line(str(trial.get("torch")), 40)
    rows = [("tried", f"{date_words} UTC, torch {torch_version}")]
    if figures_by_precision := _figures_of(trial, "precisions"):
        rate_words = [_rate_words(name, precision, card) for name, precision in figures_by_precision.items()]
        rows.append(("matmuls", "; ".join(filter(None, rate_words))))
    if bandwidth := _figures_of(trial, "memory").get("gigabytes_per_second"):
        peak_words = f" of {card.gigabytes_per_second:,.0f}" if card else ""
        rows.append(("bandwidth", f"{bandwidth:,.1f}{peak_words} GB/s"))
    if results := _figures_of(trial, "attention"):
        times = [f"{name} {result['seconds'] * 1e3:.1f} ms" for name, result in results.items() if "seconds" in result]
        times += [name for name, result in results.items() if not result]
        missing_names = ", ".join(name for name, result in results.items() if result.get("reason"))
        rows.append(("attention", ", ".join(times) + (f"; not available: {missing_names}" if missing_names else "")))
    for disk in _listed(trial, "disks"):
        read_words, write_words = (format_bytes(disk[f"{verb}_bytes_per_second"]) for verb in ("read", "write"))
        rows.append(("disk", f"reads {read_words}/s, writes {write_words}/s ({disk['label']})"))
    if tokens_per_second := _figures_of(trial, "loader").get("tokens_per_second"):
        rows.append(("loader", format_rate(tokens_per_second, "tokens")))
    rows.append(("limits", _limit_words(trial)))
    if (ecc := trial.get("ecc")) is not None:
        rows.append(("ECC", f"{ecc['corrected']} corrected, {ecc['uncorrected']} uncorrected"))
    return rows


def _rate_words(name: str, figures: dict[str, Any], card: Card | None) -> str:
    """Return the speed of a precision: `bf16 712 of 989 TFLOP/s`; empty if the processor does not support it."""
    if "teraflops" not in figures:
        return f"{name} failed" if card and name in card.teraflops.known() else ""
    teraflops = figures["teraflops"]
    peak_words = f" of {card.teraflops.known()[name]:.0f}" if card and name in card.teraflops.known() else ""
    return f"{name} {teraflops:.0f}{peak_words} TFLOP/s" if teraflops >= 10 else f"{name} {teraflops * 1e3:.0f} GFLOP/s"


def _limit_words(trial: Trial) -> str:
    memory_bytes, cores, shm_bytes = trial.get("limit_memory_bytes"), trial.get("limit_cores"), trial.get("shm_bytes")
    words = [f"memory {format_bytes(memory_bytes)}" if memory_bytes else "", f"{cores:g} cores" if cores else ""]
    words.append(f"/dev/shm {format_bytes(shm_bytes)}" if shm_bytes is not None else "")
    return ", ".join(filter(None, words)) or "none"


# The rest of this file runs in a worker, which loads torch and uses GPUs. A driver can then crash only the worker.

_SECONDS = {"cpu": 0.4, "cuda": 0.6}
_LONG_SECONDS = 1.5
# Size of the square matrices: large enough to fill a GPU, and small enough for a CPU core.
_SIDE = {"cpu": 1024, "cuda": 8192}
_TRIAL_BYTES = 128 * MIB
_HEADS, _LENGTH, _HEAD_SIZE = 8, 1024, 64
_PRECISIONS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_KERNELS = {"flash": "FLASH_ATTENTION", "memory-efficient": "EFFICIENT_ATTENTION", "cuDNN": "CUDNN_ATTENTION",
            "plain": "MATH"}  # fmt: skip


def try_parts(question: dict[str, Any], report: Report) -> None:
    """Test the parts. Report the name of each part when it begins, and again with its results.

    `question` has device, threads, uuid, places and attention_packages. A part that fails does not stop the others."""
    attempts: dict[str, Callable[[dict[str, Any]], Any]] = {
        "disks": measure_disks,
        "loader": measure_loader,
        "precisions": measure_precisions,
        "memory": measure_memory_speed,
        "attention": measure_attention,
        "long": measure_throttling,
    }
    for name, attempt in attempts.items():
        report(part=name)
        report(part=name, found=_result_or_reason(partial(attempt, question)))


def measure_disks(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the speeds of each file system, in bytes per second: of writing with sync, and of reading again."""
    disk_figures, devices = [], set()
    for label, path in question["places"].items():
        folder = next((parent for parent in (Path(path), *Path(path).parents) if parent.is_dir()), Path("/"))
        if (device := folder.stat().st_dev) in devices:
            continue
        devices.add(device)
        write_bytes_per_second, read_result = write_rate(folder, most_bytes=_TRIAL_BYTES), None
        with suppress(OSError), TemporaryDirectory(dir=folder, prefix=".tui-trainer-") as trial_folder:
            file = Path(trial_folder, "trial")
            file.write_bytes(bytes(range(256)) * (64 * MIB // 256))
            with file.open("rb") as opened_file:
                os.fsync(opened_file.fileno())
            read_result = read_rate(file, seconds=1.0)
        read_bytes_per_second = read_result and read_result.bytes_per_second
        figures = {"label": label, "path": str(folder), "read_bytes_per_second": read_bytes_per_second}
        disk_figures.append({**figures, "write_bytes_per_second": write_bytes_per_second})
    return disk_figures


def measure_loader(_: dict[str, Any]) -> dict[str, float]:
    """Return the tokens per second with which batches are made from a memory-mapped file, as a run does."""
    import numpy as np

    with TemporaryDirectory(prefix="tui-trainer-") as folder:
        token_file = Path(folder, "tokens")
        np.arange(4 << 20, dtype=np.int32).tofile(token_file)
        tokens = np.memmap(token_file, dtype=np.int32, mode="r")
        total_rows = len(tokens) // _LENGTH
        order = np.random.default_rng(0).permutation(total_rows)
        row_count, started_at = 0, perf_counter()
        while perf_counter() - started_at < _SECONDS["cpu"]:
            chosen_rows = order[row_count % total_rows : row_count % total_rows + 8]
            batch = np.stack([tokens[row * _LENGTH : (row + 1) * _LENGTH] for row in chosen_rows]).astype(np.int64)
            row_count += len(batch)
        return {"tokens_per_second": row_count * _LENGTH / (perf_counter() - started_at)}


def measure_precisions(question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the TFLOP/s of a large matmul, keyed by precision, or the `reason` why it cannot be computed."""
    return {name: _result_or_reason(partial(_matmul_rate, question, name)) for name in _PRECISIONS} | (
        {"fp8": _result_or_reason(lambda: _fp8_rate(question))} if question["device"] == "cuda" else {}
    )


def measure_memory_speed(question: dict[str, Any]) -> dict[str, float]:
    """Return the memory speed of the device, in GB/s: bytes that a copy of a large tensor reads and writes."""
    torch = _torch(question)
    is_on_gpu = question["device"] == "cuda"
    source = torch.ones((1024 if is_on_gpu else 64) * MIB // 4, device=question["device"])
    target = torch.empty_like(source)
    seconds = _fastest_seconds(question, lambda: target.copy_(source))
    return {"gigabytes_per_second": 2 * source.numel() * 4 / seconds / 1e9}


def measure_attention(question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the seconds of each of torch's attention kernels, and why packages with other kernels cannot be loaded."""
    torch = _torch(question)
    from torch.nn.attention import SDPBackend

    dtype = torch.bfloat16 if question["device"] == "cuda" else torch.float32
    kernels = {
        name: _result_or_reason(partial(_attention_seconds, question, dtype, getattr(SDPBackend, backend)))
        for name, backend in _KERNELS.items()
        if hasattr(SDPBackend, backend)
    }
    package_names = question["attention_packages"]
    return kernels | {package: _result_or_reason(partial(_import_package, package)) for package in package_names}


def measure_throttling(question: dict[str, Any]) -> dict[str, Any]:
    """Compute matmuls for some seconds. Return how much slower they get, and whether the GPU was slowed down."""
    torch, is_on_cpu = _torch(question), question["device"] == "cpu"
    side, dtype = (_SIDE["cpu"] // 2, torch.float32) if is_on_cpu else (_SIDE["cuda"], torch.float16)
    matrix = torch.ones(side, side, device=question["device"], dtype=dtype)
    seconds = _call_seconds(question, lambda: matrix @ matrix, _LONG_SECONDS)
    quarter_calls = len(seconds) // 4 or 1
    slow_factor = median(seconds[-quarter_calls:]) / median(seconds[:quarter_calls])
    if is_on_cpu:
        return {"slower_at_the_end": slow_factor, "slowed_by": ""}
    nvml = session()
    reading = nvml.gpu_in_use(question["uuid"], 0) if nvml else None
    gpu = reading[0] if reading else None
    return {
        "slower_at_the_end": slow_factor,
        "slowed_by": (gpu and gpu.slowed_by) or "",
        "clock_share": gpu and gpu.clock_share,
        "temperature_celsius": gpu and gpu.temperature_celsius,
    }


def _torch(question: dict[str, Any]) -> Any:
    import torch

    if question["device"] == "cpu":
        torch.set_num_threads(question["threads"])
    else:
        from tui_trainer.hardware.visible_gpus import card_index

        torch.cuda.set_device(card_index(question["uuid"]))
    return torch


def _matmul_rate(question: dict[str, Any], precision: str) -> dict[str, float]:
    torch = _torch(question)
    device, side = question["device"], _SIDE[question["device"]]
    if precision == "tf32" and device == "cpu":
        raise RuntimeError("only on a GPU")
    if precision != "fp32" and device == "cpu":
        side //= 2  # emulated precisions are slow
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    matrix = torch.randn(side, side, device=device).to(getattr(torch, _PRECISIONS[precision]))
    seconds = _fastest_seconds(question, lambda: matrix @ matrix)
    if not bool(torch.isfinite((matrix @ matrix).float()).all()):
        raise RuntimeError("the result of a matmul is not finite")
    return {"teraflops": 2 * side**3 / seconds / 1e12}


def _fp8_rate(question: dict[str, Any]) -> dict[str, float]:
    torch, side = _torch(question), _SIDE["cuda"]
    matrix = torch.randn(side, side, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.ones((), device="cuda")
    options = {"scale_a": scale, "scale_b": scale, "out_dtype": torch.bfloat16}
    seconds = _fastest_seconds(question, lambda: torch._scaled_mm(matrix, matrix.t(), **options))
    return {"teraflops": 2 * side**3 / seconds / 1e12}


def _attention_seconds(question: dict[str, Any], dtype: Any, backend: Any) -> dict[str, float]:
    torch = _torch(question)
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    attend: Any = scaled_dot_product_attention
    shape = (4 if question["device"] == "cuda" else 1, _HEADS, _LENGTH, _HEAD_SIZE)
    q, k, v = (torch.randn(shape, device=question["device"], dtype=dtype, requires_grad=True) for _ in range(3))

    def forward_and_backward() -> None:
        attend(q, k, v, is_causal=True).sum().backward()

    with sdpa_kernel(backend):
        return {"seconds": _fastest_seconds(question, forward_and_backward)}


def _import_package(package: str) -> dict[str, Any]:
    import_module(package)
    return {}


def _result_or_reason(attempt: Callable[[], Any]) -> Any:
    try:
        return attempt()
    except Exception as error:  # drivers, kernels, disks and libraries all raise errors of their own
        return {"reason": one_line((str(error).strip().splitlines() or [type(error).__name__])[0], 160)}


def _fastest_seconds(question: dict[str, Any], work: Callable[[], Any]) -> float:
    """Call `work` several times, and return the seconds of the fastest call. Other programs can only slow a call."""
    return min(_call_seconds(question, work, _SECONDS[question["device"]]))


def _call_seconds(question: dict[str, Any], work: Callable[[], Any], seconds: float) -> list[float]:
    finish = _torch(question).cuda.synchronize if question["device"] == "cuda" else lambda: None
    work()
    finish()
    durations, started_at = [], perf_counter()
    while perf_counter() - started_at < seconds:
        call_start = perf_counter()
        work()
        finish()
        durations.append(perf_counter() - call_start)
    return durations
