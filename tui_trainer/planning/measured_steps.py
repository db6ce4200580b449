"""Measurements of steps, and the key of everything that decides how long a step takes and how much memory it needs."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from statistics import median
from typing import Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tui_trainer.config.load import ResolvedLoaded, all_settings, value_of
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY, Config, step_rows
from tui_trainer.hardware.describe import full_name
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import records
from tui_trainer.planning.memory.parts import MemoryPart
from tui_trainer.planning.planned import StepGrade
from tui_trainer.planning.records import Key
from tui_trainer.planning.training_setup import MeasuredPeak, TrainingSetup
from tui_trainer.runs.wording import split_words
from tui_trainer.units import MIB, format_bytes, format_seconds, quantity


@dataclass(frozen=True, slots=True)
class StepKey:
    """Conditions of a measured step, except the device (`device_key`).

    `model` is the task, the model's shape with its precision, and the libraries: `TASK SHAPE, VERSIONS`. `setup` is the
    way of training. `cut` is the rows of a pass and of a step and the tokens of a row: `8of32x512`.
    """

    model: str
    setup: str
    cut: str

    def __str__(self) -> str:
        return " | ".join((self.model, self.setup, self.cut))

    @classmethod
    def read(cls, text: object) -> "StepKey | None":
        """Return the key that `str(key)` wrote; None for keys of older versions, which had no task and libraries."""
        parts = text.split(" | ") if isinstance(text, str) else []
        return cls(*parts) if len(parts) == 3 else None

    def record_key(self, device: str, data: str = "") -> Key:
        """Return the key of records on a device: for all cuts, or if `data` is given, for this cut of that data."""
        task_and_shape, _, versions = self.model.partition(", ")
        task, _, shape = task_and_shape.partition(" ")
        return Key(task, shape, f"{self.setup} | {self.cut} | {data}" if data else self.setup, device, versions)

    def has_setup_of(self, other: "StepKey") -> bool:
        """Return whether both keys are of the same model trained in the same way, whatever their rows."""
        return (self.model, self.setup) == (other.model, other.setup)


def step_key(
    config: Config,
    libraries: Mapping[str, str | None],
    shape: ModelShape,
    setup: TrainingSetup,
    micro_batch: int,
    effective_batch: int,
    row_tokens: int,
    processes: int = 1,
) -> StepKey:
    """Return the key of a step, with all that affects its speed. `effective_batch` counts the rows of one process."""
    model_sizes = [shape.hidden_size, shape.layers, shape.attention_heads, shape.key_value_heads, shape.mlp_size]
    model = "-".join(map(str, [shape.model_type, *model_sizes, shape.vocabulary, shape.parameters, setup.precision]))
    if shape.head != CAUSAL:
        model += f"-{shape.head}"
    versions = [f"{name} {libraries.get(name) or 'unknown'}" for name in ("torch", "transformers")]
    features_in_use = {
        setup.provider: setup.provider != "transformers",
        f"{processes}processes": processes > 1,
        f"{setup.trained_parameters}trained": setup.freezes_layers or bool(setup.lora_parameters),
        "routers": setup.router_logits > 0,
        "ckpt": setup.gradient_checkpointing,
        "packed": setup.packed,
        "offloaded": setup.cpu_offload,
        "rows": setup.trained_tokens > 0,
        "towers on the host": setup.towers_on_host,
        "compiled": setup.compiled,
        "dropout": bool(shape.attention_dropout),
        f"answers{setup.target_tokens}": setup.target_tokens > 0,
    }
    method = setup.method if setup.method == "full" else f"{setup.method}{setup.lora_rank}"
    features = [word for word, is_used in features_in_use.items() if is_used]
    keys = [key for key, setting in all_settings().items() if setting.in_step_key]
    other_settings = json.dumps([value_of(config, key) for key in keys], default=str).encode()
    return StepKey(
        model=", ".join((f"{config.task.type} {model}", *versions)),
        setup="-".join([method, *features, sha256(other_settings).hexdigest()[:8]]),
        cut=f"{micro_batch}of{effective_batch}x{row_tokens}",
    )


# Speeds that earlier runs on this machine reached.
#
# Each of the last runs has a record (`records.py`) under the key of its steps: their floating-point operations, the
# seconds of a step and the load of programs that slowed it down. Rates of another model or setup are not used.
# Other programs only slow a run down. So the fastest quarter of the runs on a calm machine counts, else of all runs.

# With more runnable tasks of other programs for each training thread, or in all, a run is a poor measurement.
_CALM_LOAD, _LEAST_LOAD = 0.25, 0.5
# A tiny step is mostly overhead, so its rate does not hold for a large one: steps must be of similar work.
_SIMILAR_FACTOR = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Measured speed: `step_seconds` of the same step, `flops_per_second` of the most similar step of the model.

    Both are None if not measured. `runs` is the count of runs behind `step_seconds` or, if that is None, behind the
    rate; a resumed run counts once. `load` is that of other programs, if they slowed down all of these runs, and
    otherwise 0.
    """

    step_seconds: float | None = None
    flops_per_second: float | None = None
    runs: int = 0
    load: float = 0.0

    @property
    def grade(self) -> StepGrade:
        if self.step_seconds is not None:
            return StepGrade.MEASURED
        return StepGrade.ESTIMATED if self.flops_per_second is None else StepGrade.OTHER_ROWS


@dataclass(frozen=True, slots=True)
class _RunPart:
    """Steps that one process of a run made: the whole run, or its part until or after it was resumed."""

    flops: PositiveFloat
    step_seconds: PositiveFloat
    load: NonNegativeFloat = 0.0
    """Load of other programs (`load_of_others`); 0 if it was too low to slow the run down (`is_busy`)."""
    folder: str = ""
    """Folder of the run, the same for all its parts; empty in records of earlier versions."""


@dataclass(frozen=True, slots=True)
class _MeasuredCut:
    """Measured runs with the same cut of rows: those on a calm machine, or all if there is none."""

    flops: float
    step_seconds: float
    load: float
    runs: int

    @classmethod
    def of(cls, parts: Sequence[_RunPart]) -> Self:
        calm_parts = [part for part in parts if not part.load]
        counted_parts = sorted(calm_parts or parts, key=lambda part: part.step_seconds)
        fastest_parts = counted_parts[: -(-len(counted_parts) // 4)]
        seconds, load = (median(getattr(part, name) for part in fastest_parts) for name in ("step_seconds", "load"))
        runs = {part.folder or str(number) for number, part in enumerate(counted_parts)}
        return cls(parts[-1].flops, seconds, load, len(runs))

    def distance(self, flops: float) -> float:
        return abs(math.log(self.flops / flops))


def _measured_shapes(device: str, key: StepKey) -> dict[str, _MeasuredCut]:
    """Return the measured runs of the key's model and setup, by cut of rows (`8of32x512`)."""
    parts_by_cut: dict[str, list[_RunPart]] = {}
    for record in records.find_records(records.STEP_SECONDS, key.record_key(device)):
        # Earlier versions stored that other programs kept the machine busy, but not their load.
        if (part := records.figures_as(_RunPart, record.figures)) and not record.figures.get("busy"):
            parts_by_cut.setdefault(record.part, []).append(part)
    return {cut: _MeasuredCut.of(parts) for cut, parts in parts_by_cut.items()}


def read_calibration(device: str, key: StepKey, flops: float) -> Calibration:
    """Return the measured speed on this device for a step with this key, which has `flops` operations."""
    shapes_by_cut = _measured_shapes(device, key)
    same_cut = shapes_by_cut.get(key.cut)
    similar_shapes = [shape for shape in shapes_by_cut.values() if shape.distance(flops) <= math.log(_SIMILAR_FACTOR)]
    nearest_shape = min(similar_shapes, key=lambda shape: (shape.load > 0, shape.distance(flops)), default=None)
    if same_cut and same_cut.load and nearest_shape and not nearest_shape.load:
        same_cut = None  # a calm run with other rows is the better measurement
    source_shape = same_cut or nearest_shape
    return Calibration(
        step_seconds=same_cut.step_seconds if same_cut else None,
        flops_per_second=nearest_shape.flops / nearest_shape.step_seconds if nearest_shape else None,
        runs=source_shape.runs if source_shape else 0,
        load=source_shape.load if source_shape else 0.0,
    )


def measured_row_rates(device: str, key: StepKey) -> dict[int, float]:
    """Return the measured rows per second by the rows of a step in one process, for the same row length as in `key`.

    If several cuts have the same rows, the fastest counts. Steps that other programs slowed down do not count."""
    rates_by_rows: dict[int, float] = {}
    row_length = key.cut.rpartition("x")[2]
    for cut, measured_shape in _measured_shapes(device, key).items():
        rows, _, tokens = cut.partition("of")[2].partition("x")
        if tokens == row_length and rows.isdecimal() and not measured_shape.load:
            rates_by_rows[int(rows)] = max(rates_by_rows.get(int(rows), 0.0), int(rows) / measured_shape.step_seconds)
    return rates_by_rows


def keep_calibration(
    device: str, key: StepKey, *, step_seconds: float, flops: float, load: float = 0.0, folder: str = ""
) -> None:
    """Store the measured seconds of a step of `flops` operations, the load of programs that slowed it down, and the
    run's folder."""
    figures = asdict(_RunPart(flops, step_seconds, load, folder))
    records.keep_record(records.STEP_SECONDS, key.record_key(device), figures, part=key.cut)


def is_busy(load: float | None, threads: int) -> bool:
    """Return whether other programs slow down training threads. `load` counts their runnable tasks; None: False."""
    return load is not None and load > max(_CALM_LOAD * threads, _LEAST_LOAD)


# Micro-batches that `per_device_train_batch_size = "tune"` has measured. A record (`records.py`) is under the key of
# the steps, extended by the other settings that decide their memory and their time.

# These other settings decide which rows are longest, and whose code the model runs.
_MICRO_BATCH_SETTINGS = (MODEL_KEY, DATA_KEY)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMicroBatch:
    """Stored result of tuning: `rows` is the best micro-batch, `step_seconds` has the seconds of a step for each."""

    rows: PositiveInt
    step_rows: int
    step_seconds: Mapping[int, float]

    @property
    def words(self) -> str:
        """Result in words, the fastest first: `measured: 16 rows x 2 at 210 ms/step, 32 rows x 1 at 230 ms`."""
        if not self.step_seconds:
            return f"measured: {self._split(self.rows)} fits in memory, but no micro-batch size was timed"
        fastest_first = sorted(self.step_seconds.items(), key=lambda pair: (pair[0] != self.rows, pair[1], -pair[0]))
        (first_rows, seconds), *slower = fastest_first
        fastest_words = f"measured: {self._split(first_rows)} at {format_seconds(seconds)}/step"
        return ", ".join([fastest_words, *(f"{self._split(size)} at {format_seconds(time)}" for size, time in slower)])

    def _split(self, rows: int) -> str:
        return split_words(rows, -(-self.step_rows // rows))


def micro_batch_key(
    loaded: ResolvedLoaded,
    hardware: Hardware,
    gpu: Gpu | None,
    shape: ModelShape,
    setup: TrainingSetup,
    threads: int,
    processes: int,
) -> Key:
    device = records.device_key(hardware.cpu_name, threads, full_name(gpu) if gpu else "")
    rows = -(-step_rows(loaded.config) // processes)
    step_key_of_rows = step_key(loaded.config, hardware.libraries, shape, setup, 0, rows, setup.longest_row, processes)
    other_values = [value_of(loaded.config, key) for key in _MICRO_BATCH_SETTINGS]
    data = sha256(json.dumps(other_values, default=str).encode()).hexdigest()[:16]
    return step_key_of_rows.record_key(device, data)


def kept_micro_batch(key: Key) -> KeptMicroBatch | None:
    """Return the stored result of tuning the micro-batch; None without a record, or if it is damaged."""
    stored_results = records.find_records(records.MICRO_BATCH, key)
    best = records.figures_as(KeptMicroBatch, stored_results[-1].figures) if stored_results else None
    is_sound = best and best.rows <= best.step_rows and (not best.step_seconds or best.rows in best.step_seconds)
    return best if is_sound else None


def keep_micro_batch(key: Key, rows: int, step_rows: int, step_seconds: Mapping[int, Sequence[float]]) -> None:
    """Store the result of tuning, with the median seconds of each micro-batch. It replaces an earlier result."""
    median_seconds = {micro_batch: median(size_seconds) for micro_batch, size_seconds in step_seconds.items()}
    figures = {"rows": rows, "step_rows": step_rows, "step_seconds": median_seconds}
    records.keep_record(records.MICRO_BATCH, key, figures)


# Memory peaks of runs and rehearsals on this machine, which correct the next plan with the same key.
#
# The last peaks for each number of rows in a pass are records (`records.py`) under `micro_batch_key`.

# Parts whose size is exact.
LASTING_PARTS = ("weights", "towers", "master weights", "gradients", "optimizer")
# Parts of a GPU's memory that torch does not count as allocated.
NOT_ALLOCATED = ("pieces", "context")
# `_CONSTANT` parts do not depend on the rows of a pass, and a measurement does not correct them.
_FIXED_BYTES = 128 * MIB
_CONSTANT = (*LASTING_PARTS, *NOT_ALLOCATED, "libraries")
# The share of a measured difference that counts for passes with other rows, because a CPU's allocator holds more or
# less memory for each size. `memory_grid.py --calibrate` measures half of the rows and plans all of them: 38 of 41
# plans lie within 10 % with a share of 0, 40 with 0.5, and 37 with 1.
_OTHER_ROWS_SHARE = 0.5


def measured_peaks(key: Key) -> tuple[MeasuredPeak, ...]:
    """Return the highest measured peak for each pair of training and evaluation rows; empty if there is none."""
    peaks_by_part: dict[str, list[int]] = {}
    for record in records.find_records(records.PEAK, key):
        if isinstance(peak_bytes := record.figures.get("bytes"), int) and peak_bytes > 0:
            peaks_by_part.setdefault(record.part, []).append(peak_bytes)
    highest_peaks = []
    for part, sizes in peaks_by_part.items():
        with suppress(ValueError):
            rows, eval_rows = map(int, part.split("+"))
            if min(rows, eval_rows) > 0:
                highest_peaks.append(MeasuredPeak(rows=rows, eval_rows=eval_rows, bytes=max(sizes), runs=len(sizes)))
    return tuple(highest_peaks)


def keep_measured_peak(key: Key, rows: int, eval_rows: int, peak_bytes: int) -> None:
    """Store a measured memory peak. On a CPU, `peak_bytes` excludes the libraries, as a plan does."""
    records.keep_record(records.PEAK, key, {"bytes": peak_bytes}, part=f"{rows}+{eval_rows}")


def nearest_peak(peaks: Sequence[MeasuredPeak], rows: int, eval_rows: int) -> MeasuredPeak | None:
    """Return the peak whose passes have the most similar numbers of rows; None without peaks."""

    def distance(peak: MeasuredPeak) -> float:
        return abs(math.log(peak.rows / rows)) + abs(math.log(peak.eval_rows / eval_rows))

    return min(peaks, key=distance, default=None)


def correct_parts(
    parts: tuple[MemoryPart, ...],
    rows: int,
    device: str,
    peak: MeasuredPeak,
    parts_at: Callable[[int, int], tuple[MemoryPart, ...]],
) -> tuple[MemoryPart, ...]:
    """Return `parts`, the planned memory of passes of `rows` rows, corrected by a measured peak.

    The parts that depend on the rows are scaled by the deviation of the peak from the plan of its own passes.
    `parts_at` returns that plan for the rows of a training pass and of an evaluation pass."""
    parts_before = [part for part in parts_at(peak.rows, peak.eval_rows) if part.name not in NOT_ALLOCATED]
    planned_bytes, pass_bytes = _pass_bytes(parts_before), _pass_bytes(parts)
    if not planned_bytes or not pass_bytes:
        return parts
    share = 1.0 if device == "cuda" or peak.rows == rows else _OTHER_ROWS_SHARE
    added_bytes = share * (peak.bytes - sum(part.bytes for part in parts_before))
    # Memory that libraries take at first use does not depend on the rows.
    fixed_bytes = max(-_FIXED_BYTES, min(added_bytes, _FIXED_BYTES))
    scale = max(0.0, pass_bytes * (1 + (added_bytes - fixed_bytes) / planned_bytes) + fixed_bytes) / pass_bytes
    return tuple(
        part
        if part.name in _CONSTANT
        else replace(part, bytes=round(scale * part.bytes), formula=f"{part.formula}; x {scale:.2f}, as measured here")
        for part in parts
    )


def _pass_bytes(parts: Sequence[MemoryPart]) -> int:
    return sum(part.bytes for part in parts if part.name not in _CONSTANT)


def measured_words(peak: MeasuredPeak) -> str:
    """Return a measured peak in words: `1 run here with 8 rows per pass had a peak of 1.2 GiB`."""
    runs_text = f"{quantity(peak.runs, 'run')} here with {quantity(peak.rows, 'row')}"
    return f"{runs_text} per pass had a peak of {format_bytes(peak.bytes)}"
