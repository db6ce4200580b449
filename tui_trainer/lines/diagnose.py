"""`tui-trainer diagnose`: the machine, the device for training, and problems, as lines or JSON."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, InputError, name_hint
from tui_trainer.hardware import describe
from tui_trainer.hardware.describe import Row
from tui_trainer.hardware.diagnosis import GpuChoice, HardwareProblem, MachineDiagnosis, diagnose
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.measure.trial import Trial, kept_trial, trial_problems, trial_rows
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.planning.records import KINDS, KindCount, clear_records, count_kinds, damaged_files
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, quantity

_LABEL_WIDTH = 15
_LEAST_WIDTH = 40
_ALL = "all"
_MARKS = {"bad": "bad ", "warn": "warn", "info": "note"}


def print_diagnosis(*, gpu: GpuChoice, as_json: bool) -> int:
    """Print the diagnosis. Return 1 if there is a serious problem, else 0. Raises InputError for an unknown GPU."""
    hardware = probe()
    diagnosis = diagnose(hardware, gpu)
    chosen_profile, reason = choose_hardware_profile("auto", hardware, gpu)
    profile = (chosen_profile.name if chosen_profile else "", reason)
    trial, kind_counts = kept_trial(hardware, gpu), count_kinds()
    if as_json:
        measured = {
            it.kind: {"records": it.count, "newest_at": it.newest_at, "newest": asdict(it.newest)} for it in kind_counts
        }
        document = as_document(hardware, diagnosis, profile) | {"tried": trial, "measured": measured}
        print(json.dumps(document, indent=1))
    else:
        width = max(shutil.get_terminal_size((100, 24)).columns, _LEAST_WIDTH)
        print("\n".join(diagnosis_lines(hardware, diagnosis, profile, width, trial, _record_rows(kind_counts))))
    return EXIT_FAILED if diagnosis.is_bad else EXIT_DONE


def diagnosis_lines(
    hardware: Hardware,
    diagnosis: MachineDiagnosis,
    profile: Row,
    width: int,
    trial: Trial | None = None,
    measured: Sequence[Row] = (),
) -> list[str]:
    """Return the diagnosis as lines of at most `width` characters, except for longer words, which stay whole."""
    benchmarks = [("not run", "tui-trainer diagnose --try runs quick tests (a few seconds)")]
    if trial is not None:
        benchmarks = [*trial_rows(trial, hardware), *_problem_rows(trial_problems(trial))]
    sections: list[tuple[str, Sequence[Row]]] = [*_sections(hardware, diagnosis, profile), ("benchmarks", benchmarks)]
    sections += [("measured", measured)] if measured else []
    return [line for title, rows in sections for line in _section(title, rows, width)]


def _sections(hardware: Hardware, diagnosis: MachineDiagnosis, profile: Row) -> Iterator[tuple[str, list[Row]]]:
    device_rows = describe.device_rows(diagnosis, hardware, profile)
    # The device comes first, because training on the CPU by accident is the most common mistake.
    yield "training", device_rows
    empty_row = [("none", "no problems found")]
    yield "problems", list(_problem_rows(diagnosis.problems)) or empty_row
    if hardware.gpus:
        yield "GPUs", [(f"GPU {gpu.index}", _gpu_words(gpu)) for gpu in hardware.gpus]
    if rows := describe.gpu_rows(diagnosis, hardware):
        yield f"GPU {diagnosis.gpu.index}" if diagnosis.gpu else "NVIDIA driver", rows
    memory_text = f"{format_bytes(hardware.memory_available_bytes)} available of {format_bytes(hardware.memory_bytes)}"
    yield "processor", [*describe.processor_rows(hardware), ("memory", memory_text)]
    disk_texts = [f"{describe.room_words(disk)}, {describe.place_path(disk)}" for disk in hardware.places]
    yield "disk", list(zip((disk.label for disk in hardware.places), disk_texts, strict=True))
    if other_rows := describe.other_process_rows(hardware, diagnosis.gpu):
        yield "processes on the other GPUs", other_rows
    installed_rows, missing_names = describe.library_words(hardware)
    yield "libraries", [*installed_rows, ("not installed", ", ".join(missing_names) or "none")]
    yield "system", describe.system_rows(hardware)


def clear_measured(names: Sequence[str]) -> str:
    """Delete the stored measurements of these kinds, or of `all`, and return a message. Raises InputError."""
    allowed_names = [*KINDS, _ALL]
    for name in names:
        if name not in allowed_names:
            raise InputError(f"unknown kind of measurement {one_line(name, 40)!r}", hint=name_hint(name, allowed_names))
    count = clear_records(KINDS if _ALL in names else names)
    return f"cleared {quantity(count, 'record')}: {', '.join(names)}"


def _record_rows(kinds: Sequence[KindCount]) -> list[Row]:
    """Return a row for each kind of stored measurements: how many there are, and when and what was measured last."""
    rows = []
    for kind in kinds:
        subject = ", ".join(filter(None, (kind.newest.task, kind.newest.shape, kind.newest.device)))
        newest_time = kind.newest_at[:16].replace("T", " ")
        count_text = quantity(kind.count, "record")
        rows.append((kind.kind, one_line(f"{count_text}, latest {newest_time} UTC: {subject}", 200)))
    rows += [("damaged", f"the damaged file is kept as {one_line(str(path))}") for path in damaged_files()]
    if find_spec("_sqlite3") is None:
        rows.append(("not kept", "this Python was built without sqlite3, so measurements are not stored"))
    return rows or [("none yet", "runs and the commands rehearse, tune and check --measure add measurements")]


def _problem_rows(problems: Iterable[HardwareProblem]) -> Iterator[Row]:
    for problem in problems:
        yield _MARKS[problem.severity], problem.sentence
        if problem.remedy:
            yield "  fix", problem.remedy


def _gpu_words(gpu: Gpu) -> str:
    if gpu.problem:
        return f"{describe.full_name(gpu)}: {one_line(gpu.problem)}"
    busy_text = "" if gpu.utilisation_share is None else f", {gpu.utilisation_share:.0%} busy"
    hidden_text = "" if gpu.visible else ", hidden by CUDA_VISIBLE_DEVICES"
    return f"{describe.full_name(gpu)}, {describe.memory_words(gpu)}{busy_text}{hidden_text}"


def _section(title: str, rows: Iterable[Row], width: int) -> Iterator[str]:
    yield title
    for label, text in rows:
        line_start = f"  {label:{_LABEL_WIDTH}} "
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=line_start,
            subsequent_indent=" " * len(line_start),
            # Commands and paths must stay whole, because users copy them.
            break_long_words=False,
            break_on_hyphens=False,
        ) or [line_start.rstrip()]


_FACTS = (
    "host", "platform", "python_version", "nvidia_pci_devices", "memory_bytes", "memory_available_bytes",
    "machine_memory_bytes", "torch_cuda",
)  # fmt: skip


def as_document(hardware: Hardware, diagnosis: MachineDiagnosis, profile: Row) -> dict[str, Any]:
    """Return the diagnosis for JSON. All keys are always present. Shares are 0 to 1, and unreported values are None."""
    return {name: getattr(hardware, name) for name in _FACTS} | {
        "device": diagnosis.device,
        "device_reason": diagnosis.device_reason,
        "hardware_profile": profile[0] or None,
        "hardware_reason": profile[1],
        "problems": [asdict(problem) for problem in diagnosis.problems],
        "gpu": diagnosis.gpu.index if diagnosis.gpu else None,
        "gpu_reason": diagnosis.gpu_reason or None,
        # `abilities` has the GPU's features, and `card` the vendor's rates in 10^12 operations per second.
        "gpus": [
            asdict(gpu)
            | {"abilities": asdict(gpu.abilities) if gpu.abilities else None}
            | {"card": asdict(gpu.card) if gpu.card else None}
            for gpu in hardware.gpus
        ],
        "driver": asdict(hardware.driver) if hardware.driver else None,
        "cpu": {
            "name": hardware.cpu_name,
            "usable_cores": hardware.usable_cores,
            "physical_cores": hardware.physical_cores,
            "logical_cores": hardware.logical_cores,
            "flags": sorted(hardware.cpu_flags),
        },
        "libraries": dict(hardware.libraries),
        "places": [asdict(disk) for disk in hardware.places],
    }
