"""What a machine really does, tried in a process of its own within seconds, and kept by machine with its date."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tui_trainer.hardware.catalogue import Card
from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.kernel_log import gpu_reports
from tui_trainer.hardware.nvml import session
from tui_trainer.hardware.problems import SEVERITIES, HardwareProblem
from tui_trainer.hardware.processor import training_threads
from tui_trainer.planning.records import TRIAL, Key, keep_record, records_of_device
from tui_trainer.planning.step_key import device_key
from tui_trainer.safe_text import one_line
from tui_trainer.units import GIB, format_bytes, format_count, utc_now
from tui_trainer.worker.asking import WorkerFailed, ask

# A driver that does not answer is what is looked for.
_TIMEOUT_SECONDS = 600.0
_SHM = Path("/dev/shm")
# torch's loaders and NCCL put what processes share there; a container of Docker gets 64 MiB.
_LITTLE_SHM_BYTES = GIB
# Of the maker's figure: large matmuls reach two thirds and more of it, copies nine tenths.
_LEAST_RATE_SHARE, _LEAST_BANDWIDTH_SHARE = 0.5, 0.6
_SLOW_DISK_BYTES_PER_SECOND = 50e6
_SLOW_LOADER_TOKENS_PER_SECOND = 5e6
_MOST_SLOWER = 1.3
_CHECKED = ("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "bitsandbytes", "torchao",
            "liger-kernel", "triton", "flash-attn", "huggingface-hub", "safetensors")  # fmt: skip
_ATTENTION_PACKAGES = {"flash-attn": "flash_attn", "flash-attn-3": "flash_attn_interface"}
_WHO_COMPUTES = "top   (who else computes here?)"
Trial = dict[str, Any]


def try_machine(hardware: Hardware, chosen: GpuChoice = None, told: Callable[[str], None] = lambda part: None) -> Trial:
    """Try it, and keep what came out. `told` hears what is being tried. Raises InputError for a card that is not here.

    What ends the worker is a problem like others, as is one that does not answer; the parts before it stand.
    """
    gpu, device = _where(hardware, chosen)
    packages = [module for name, module in _ATTENTION_PACKAGES.items() if hardware.libraries.get(name)]
    question = {
        "device": device,
        "threads": training_threads(hardware.usable_cores),
        "uuid": gpu.cuda_uuid if gpu else "",
        "places": {place.label: place.path for place in hardware.places if place.writable},
        "attention_packages": packages if gpu else [],
    }
    trial: Trial = {"at": utc_now(), "device": device, "name": (gpu.name or "") if gpu else hardware.cpu_name}
    trial["torch"], part = hardware.libraries.get("torch") or "", "its start"
    trial["ended"] = ""

    def hear(line: dict[str, Any]) -> None:
        nonlocal part
        part = str(line["part"])
        if "found" in line:
            trial[part] = line["found"]
        else:
            told(part)

    try:
        ask("try_machine", question, timeout_seconds=_TIMEOUT_SECONDS, sees_gpus=gpu is not None, progress=hear)
    except WorkerFailed as error:
        trial["ended"] = f"trying {part} {error}"
    trial |= _read_here(gpu)
    trial["problems"] = [asdict(problem) for problem in problems_of(trial, hardware, gpu)]
    keep_record(TRIAL, Key(device=_device(hardware, gpu), versions=f"torch {trial['torch']}"), trial)
    return trial


def kept_trial(hardware: Hardware, chosen: GpuChoice = None) -> Trial | None:
    """The newest of this machine and its card; None where nothing was tried yet."""
    tried = records_of_device(TRIAL, _device(hardware, _where(hardware, chosen)[0]))
    return tried[-1].figures if tried else None


def _where(hardware: Hardware, chosen: GpuChoice) -> tuple[Gpu | None, str]:
    """The card, where one computes, and the device by torch's name."""
    gpu = choose_gpu(hardware, chosen)[0]
    device = training_device(hardware, gpu, chosen)[0]
    return (gpu if device == "cuda" else None), device


def _device(hardware: Hardware, gpu: Gpu | None) -> str:
    name = f"{gpu.name} {gpu.cuda_uuid}" if gpu else ""
    return f"{hardware.host}: {device_key(hardware.cpu_name, training_threads(hardware.usable_cores), name)}"


def _read_here(gpu: Gpu | None) -> Trial:
    """What needs no computing: limits, shared memory, and what driver and kernel have noted of the card."""
    limits, nvml = read_limits(), session()
    return {
        "shm_bytes": psutil.disk_usage(str(_SHM)).total if _SHM.is_dir() else None,
        "limit_memory_bytes": limits.memory_bytes,
        "limit_cores": limits.cores,
        "ecc": nvml.ecc(gpu.index) if nvml and gpu else None,
        "kernel_reports": gpu_reports() if gpu else [],
    }


def problems_of(trial: Trial, hardware: Hardware, gpu: Gpu | None) -> list[HardwareProblem]:
    """What came out worse than it should, each with what can be typed."""
    card = gpu.card if gpu else None
    index = gpu.index if gpu else 0
    return [
        *_of_child(trial),
        *_of_rates(trial, card, index),
        *_of_load(trial, index),
        *_of_storage(trial),
        *_of_card(trial, index),
        *(HardwareProblem("warn", *conflict) for conflict in version_conflicts(hardware.libraries)),
    ]


def _of_child(trial: Trial) -> Iterator[HardwareProblem]:
    if trial["ended"]:
        computes = '; torch.ones(8, device="cuda").sum()' if trial["device"] == "cuda" else ""
        yield HardwareProblem("bad", one_line(trial["ended"], 300), f"python -c 'import torch{computes}'")
    tried = _of_part(trial, "attention")
    for package, module in _ATTENTION_PACKAGES.items():
        if reason := tried.get(module, {}).get("reason"):
            sentence = f"{module} is installed and cannot be imported: {one_line(str(reason), 120)}"
            yield HardwareProblem("warn", sentence, f"uv pip install --reinstall --no-build-isolation {package}")


def _of_rates(trial: Trial, card: Card | None, index: int) -> Iterator[HardwareProblem]:
    look = f"nvidia-smi -q -d CLOCK,POWER,PERFORMANCE -i {index}"
    for name, rate in (card.teraflops.known() if card else {}).items():
        found = _of_part(trial, "precisions").get(name, {})
        if found.get("reason"):
            sentence = f"{name} cannot be computed, which this card has: {one_line(str(found['reason']), 120)}"
            yield HardwareProblem("warn", sentence, "tui-trainer diagnose")
        elif found.get("teraflops", rate) < _LEAST_RATE_SHARE * rate:
            reached = found["teraflops"]
            sentence = f"{name} matmuls reach {reached:.1f} of {rate:.0f} TFLOP/s ({reached / rate:.0%})"
            yield HardwareProblem("warn", sentence, look)
    bandwidth = _of_part(trial, "memory").get("gigabytes_per_second")
    if card and bandwidth and bandwidth < _LEAST_BANDWIDTH_SHARE * card.gigabytes_per_second:
        sentence = f"the card's memory moves {bandwidth:,.0f} of {card.gigabytes_per_second:,.0f} GB/s"
        yield HardwareProblem("warn", sentence, look)


def _of_load(trial: Trial, index: int) -> Iterator[HardwareProblem]:
    found = _of_part(trial, "long")
    slower, by = found.get("slower_at_the_end", 1.0), found.get("slowed_by", "")
    if by:
        sentence = f"under load the card is slowed down by {by}, to {found.get('clock_share') or 0:.0%} of its clock"
        yield HardwareProblem("warn", sentence, f"nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -i {index}")
    elif slower > _MOST_SLOWER:
        sentence = f"matmuls took {slower:.1f} times as long at the end of a second of load as at its beginning"
        yield HardwareProblem("warn", sentence, _WHO_COMPUTES)


def _of_storage(trial: Trial) -> Iterator[HardwareProblem]:
    moves = {"runs": "--set output.runs_dir=FOLDER", "prepared data": "export TUI_TRAINER_HOME=FOLDER"}
    for disk in _listed(trial, "disks"):
        for what, verb in (("read", "gives"), ("write", "takes")):
            rate = disk[f"{what}_bytes_per_second"]
            if rate is not None and rate < _SLOW_DISK_BYTES_PER_SECOND:
                sentence = f"the disk of {one_line(disk['path'])} {verb} only {format_bytes(rate)}/s"
                yield HardwareProblem("warn", sentence, moves.get(disk["label"], f"df -h {one_line(disk['path'])}"))
    shared = trial.get("shm_bytes")
    if shared is not None and shared < _LITTLE_SHM_BYTES:
        sentence = f"/dev/shm has {format_bytes(shared)}: little for processes that share batches"
        yield HardwareProblem("info", sentence, "docker run --shm-size=8g ...")
    loaded = _of_part(trial, "loader").get("tokens_per_second")
    if loaded is not None and loaded < _SLOW_LOADER_TOKENS_PER_SECOND:
        yield HardwareProblem("warn", f"batches are cut at {format_count(loaded)} tokens/s only", _WHO_COMPUTES)


def _of_card(trial: Trial, index: int) -> Iterator[HardwareProblem]:
    ecc = trial.get("ecc") or {}
    if ecc.get("uncorrected"):
        sentence = f"the card's memory had {ecc['uncorrected']} errors that could not be corrected (ECC)"
        yield HardwareProblem("bad", sentence, f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {index}")
    if ecc.get("remapping_pending"):
        sentence = "rows of the card's memory wait to be replaced by spare ones, which a reset does"
        yield HardwareProblem("warn", sentence, f"sudo nvidia-smi --gpu-reset -i {index}")
    for report in trial.get("kernel_reports") or []:
        yield HardwareProblem("warn", f"the kernel noted: {one_line(report, 160)}", "sudo dmesg | grep -i xid")


def version_conflicts(libraries: Any) -> Iterator[tuple[str, str]]:
    """(`peft 0.20 needs transformers>=5, and 4.57 is here`, what to type), by what each library says it needs."""
    from packaging.requirements import InvalidRequirement, Requirement

    for name in _CHECKED:
        if name in libraries and libraries[name] is None:
            continue
        with suppress(metadata.PackageNotFoundError):
            here = metadata.distribution(name)
            for line in here.requires or ():
                with suppress(InvalidRequirement, metadata.PackageNotFoundError):
                    needed = Requirement(line)
                    if needed.name.lower() not in _CHECKED or (needed.marker and not needed.marker.evaluate()):
                        continue
                    version = metadata.version(needed.name)
                    if not needed.specifier.contains(version, prereleases=True):
                        sentence = f"{name} {here.version} needs {needed.name}{needed.specifier}, and {version} is here"
                        yield sentence, f"uv pip install '{needed.name}{needed.specifier}'"


def _of_part(trial: Trial, part: str) -> dict[str, Any]:
    found = trial.get(part)
    return found if isinstance(found, dict) and not isinstance(found.get("reason"), str) else {}


def _listed(trial: Trial, part: str) -> list[Any]:
    found = trial.get(part)
    return found if isinstance(found, list) else []


def trial_problems(trial: Trial) -> list[HardwareProblem]:
    """Those of a trial that was kept; what is damaged is left out."""
    found = []
    for entry in _listed(trial, "problems"):
        with suppress(TypeError):
            problem = HardwareProblem(**entry)
            if problem.severity in SEVERITIES:
                found.append(problem)
    return found


def trial_rows(trial: Trial, hardware: Hardware) -> list[tuple[str, str]]:
    """What was tried, as labels and words; the maker's figures beside those of a card."""
    gpu = next((one for one in hardware.gpus if one.name == trial.get("name")), None)
    card = gpu.card if gpu and trial.get("device") == "cuda" else None
    when, torch = str(trial.get("at", ""))[:16].replace("T", " "), one_line(str(trial.get("torch")), 40)
    rows = [("tried", f"{when} UTC, torch {torch}")]
    rates = _of_part(trial, "precisions")
    words = [_rate_words(name, found, card) for name, found in rates.items()]
    rows += [("matmuls", "; ".join(filter(None, words)))] if rates else []
    if bandwidth := _of_part(trial, "memory").get("gigabytes_per_second"):
        of = f" of {card.gigabytes_per_second:,.0f}" if card else ""
        rows.append(("bandwidth", f"{bandwidth:,.1f}{of} GB/s"))
    kernels = _of_part(trial, "attention")
    works = [f"{name} {found['seconds'] * 1e3:.1f} ms" for name, found in kernels.items() if "seconds" in found]
    works += [name for name, found in kernels.items() if not found]
    missing = ", ".join(name for name, found in kernels.items() if found.get("reason"))
    if kernels:
        rows.append(("attention", ", ".join(works) + (f"; not here: {missing}" if missing else "")))
    for disk in _listed(trial, "disks"):
        read, write = (format_bytes(disk[f"{what}_bytes_per_second"]) for what in ("read", "write"))
        rows.append(("disk", f"reads {read}/s, writes {write}/s ({disk['label']})"))
    if loaded := _of_part(trial, "loader").get("tokens_per_second"):
        rows.append(("loader", f"{format_count(loaded)} tokens/s"))
    rows.append(("limits", _limit_words(trial)))
    if (ecc := trial.get("ecc")) is not None:
        rows.append(("ECC", f"{ecc['corrected']} corrected, {ecc['uncorrected']} not"))
    return rows


def _rate_words(name: str, found: dict[str, Any], card: Card | None) -> str:
    """`bf16 712 of 989 TFLOP/s`; what a processor has not at all is left out."""
    if "teraflops" not in found:
        return f"{name} cannot be computed" if card and name in card.teraflops.known() else ""
    rate = found["teraflops"]
    of = f" of {card.teraflops.known()[name]:.0f}" if card and name in card.teraflops.known() else ""
    return f"{name} {rate:.0f}{of} TFLOP/s" if rate >= 10 else f"{name} {rate * 1e3:.0f} GFLOP/s"


def _limit_words(trial: Trial) -> str:
    memory, cores, shared = trial.get("limit_memory_bytes"), trial.get("limit_cores"), trial.get("shm_bytes")
    parts = [f"memory {format_bytes(memory)}" if memory else "", f"{cores:g} cores" if cores else ""]
    parts.append(f"/dev/shm {format_bytes(shared)}" if shared is not None else "")
    return ", ".join(filter(None, parts)) or "none"
