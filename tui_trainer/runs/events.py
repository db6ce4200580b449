"""The events that a run writes to its journal, one class for each kind, and their lines of JSON.

Losses are in nats, and durations in seconds of a monotonic clock. `at` is the wall clock (UTC), only for display.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from statistics import fmean
from typing import Any, Final, get_type_hints

from tui_trainer.runs import json_fields
from tui_trainer.units import Figure, utc_now

LEFT_OUT_EMPTY: Final = {"left_out_empty": True}
"""Field metadata: omit the field from the journal's line if the field is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events: the time of the event, and the number of optimizer steps done by then."""

    at: str = field(default_factory=utc_now)
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The start of a run, or its continuation from a checkpoint, which discards events after `resumed_from_step`."""

    name: str
    task: str
    device: str
    pid: int
    total_steps: int
    resumed_from_step: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """The beginning of a phase: `preparing`, `loading`, `training`, `paused`, or `saving` (of the final model)."""

    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """Progress of a long operation, counted in `unit`. `total` is None while it is not known."""

    what: str
    done: float
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPrepared(Event):
    """Counts of the prepared data. The fields `eval_*` count the held-out data, the others the training data."""

    from_cache: bool
    rows: int
    eval_rows: int
    tokens: int
    eval_tokens: int
    documents: int
    eval_documents: int
    vocabulary: int
    seconds: float
    notes: list[str] = field(default_factory=list)
    choices: int = 0
    """Number of tokens or classes that a cross-entropy loss chooses among; 0 for other losses and in older journals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRates:
    """Reference rates for the speed of training, in floating-point operations per second of one process.

    `row_flops` is the number of operations for training on one row. `measured` is the rate of large matmuls on this
    machine, and `measured_of` names them. `maker` is the GPU's rate according to `maker_source`. A rate is None if it
    is not known. `usual_share` is the share of a rate that training usually reaches at this width of the model: of
    `maker` on a GPU, of `measured` on a CPU. `starting_seconds` is the fixed time to launch the operations of one
    pass; older journals have 0.
    """

    row_flops: float
    usual_share: float
    starting_seconds: float = 0.0
    measured: float | None = None
    measured_of: str = ""
    maker: float | None = None
    maker_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(Event):
    """An extract of the exact plan. The whole plan is in plan.json.

    A field that `Plan` also has holds the plan's value. `figures` has the values of those fields of `Plan` that are
    declared with `Figure.in_journal`, keyed by field.

    `eval_every_steps` and `save_every_steps` are 0 if evaluation or saving happens only at the end. `base_model` is
    empty for a model from scratch, and `came_from` if no run trained the model before. `lora_rank` is None if all
    weights are trainable. `targets` has the values that [targets] sets, and `metric` is
    `evaluation.metric_for_best_model`. The fields from `precision` on are resolved settings, which diagnosis of the run
    needs. `best_precision` is the value that `training.mixed_precision = "auto"` resolves to on this machine. Fields
    that an older journal lacks are empty or None.
    """

    total_steps: int
    steps_per_epoch: int
    effective_batch_size: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    parameters: int
    memory_bytes: int
    disk_bytes: int
    duration_seconds: float | None
    beginning_seconds: float | None = None
    """Part of `duration_seconds` for the work before the first step."""
    eval_rows: int | None = None
    eval_every_steps: int | None = None
    save_every_steps: int | None = None
    sample_every_steps: int | None = None
    trained_parameters: int | None = None
    base_model: str = ""
    came_from: str = ""
    lora_rank: int | None = None
    targets: dict[str, float] = field(default_factory=dict)
    metric: str = "loss"
    early_stopping_patience: int | None = None
    """Number of consecutive evaluations without improvement that ends the run; 0 without early stopping."""
    precision: str = ""
    best_precision: str = ""
    packing: bool | None = None
    group_by_length: bool | None = None
    torch_compile: bool | None = None
    loader_workers: int | None = None
    logging_steps: int | None = None
    empty_cache_steps: int | None = None
    learning_rate: float | None = None
    usual_learning_rate: float | None = None
    """Learning rate to which `auto` resolves for this model, tuning method and effective batch."""
    most_learning_rate: float | None = None
    memory_budget_bytes: int | None = None
    kernel_bytes: int | None = None
    """Part of the planned memory for kernels that a CPU compiles for each size of a pass; 0 if it compiles none."""
    processes: int = 1
    command: str = ""
    """Command that starts the processes, for a run with several processes."""
    attention: str = ""
    """Attention kernel, and why it was chosen."""
    best_samples_per_second: float | None = None
    """Highest speed, in rows per second, of earlier runs with steps of this shape on this machine."""
    gradient_checkpointing: bool | None = None
    tuning_method: str = ""
    warmup_steps: int | None = None
    max_grad_norm: float | None = None
    seed: int | None = None
    """Value of `training.seed`, which determines the order of the rows."""
    precision_gain: float | None = None
    """Speed in `best_precision` relative to `precision`, measured on this machine with steps, or else with matmuls."""
    precision_gain_of: str = ""
    compute_rates: ComputeRates | None = None
    step_seconds: float | None = None
    step_seconds_reason: str = ""
    has_measured_steps: bool = True
    """Whether the planned time comes from steps of this model that were measured on this machine."""
    hardware_settings: list[str] = field(default_factory=list)
    """Settings whose values come from the hardware profile."""
    user_settings: list[str] | None = None
    """Settings that the user wrote; None in older journals."""
    busy_words: str = ""
    """Sentence about other programs' load during planning and its effect on the planned times; empty if none."""
    cpu_threads: int | None = None
    """Threads of each process."""
    merged_bytes: int | None = None
    """Size of the model with its adapter merged, as it is deployed; None for a run without an adapter."""
    figures: dict[str, float] = field(default_factory=dict, metadata=LEFT_OUT_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrariesLoaded(Event):
    """The state of the process after the import of torch and transformers, before it loads the model.

    `resident_bytes` is the memory of the process at this time. The planned memory of a run on a CPU comes on top of it.
    On a GPU `resident_bytes` is None, because the plan counts GPU memory. `threads` are the threads of torch's kernels.
    """

    resident_bytes: int | None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinesMeasured(Event):
    """Held-out losses (nats per `unit`) and scores of simple models such as trigrams, which serve as baselines."""

    losses: dict[str, float]
    eval_tokens: int
    unit: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """One optimizer step. `step_seconds` is the time of the whole step and includes its four parts.

    `loss_sum` is in nats, summed over the `tokens` that count in the loss, over all micro-batches and processes.
    `input_tokens` counts the tokens read without padding, `positions` those with padding; 0 in older journals.

    If the loss has several terms, or the task computes scores in training, `sums` has the sum of each term or score by
    name, and `counts` the divisor of that sum. `loss_sum` is then the loss times `tokens`.
    """

    epoch: float
    loss_sum: float
    tokens: int
    samples: int
    lr: float
    grad_norm: float
    step_seconds: float
    data_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    tokens_per_second: float
    samples_per_second: float
    peak_memory_bytes: int
    input_tokens: int = 0
    positions: int = 0
    sums: dict[str, float] = field(default_factory=dict, metadata=LEFT_OUT_EMPTY)
    counts: dict[str, int] = field(default_factory=dict, metadata=LEFT_OUT_EMPTY)

    @property
    def loss(self) -> float:
        """Loss in nats per token; NaN if no token counted."""
        return self.loss_sum / self.tokens if self.tokens else math.nan

    @property
    def scores(self) -> dict[str, float]:
        """Mean of each named sum in `sums`. Sums with a count of 0 are left out."""
        return {name: total / self.counts[name] for name, total in self.sums.items() if self.counts.get(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenSteps(Event):
    """Time spent between the steps since the previous BetweenSteps. One is written every few seconds.

    `journal_seconds` went into writing to the journal, and `empty_cache_seconds` into `training.empty_cache_steps`.
    `other_seconds` is the unexplained rest. Evaluations, checkpoints and samples have their own events.
    """

    steps: int
    journal_seconds: float
    empty_cache_seconds: float
    other_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksTimed(Event):
    """Mean seconds per step that each process spent in communication since the previous RanksTimed.

    These seconds include waiting for the other processes, so the slowest process has the fewest.
    """

    communication_seconds: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDone(Event):
    """The held-out loss, the scores of the task, and a table with a row for each class, if there are classes.

    `scheduled` is false if the user requested the evaluation. `best` is true if no earlier evaluation was better in
    `evaluation.metric_for_best_model`.
    """

    loss_sum: float
    tokens: int
    loss: float
    seconds: float
    scheduled: bool
    best: bool
    scores: dict[str, float] = field(default_factory=dict)
    table_title: str = ""
    table_columns: list[str] = field(default_factory=list)
    table_rows: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDone(Event):
    """The end of one pass over the training data."""

    epoch: int
    mean_loss: float
    seconds: float
    samples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A complete checkpoint at `path`, relative to the run folder. Training waited `seconds` while it was saved."""

    path: str
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A reading of one of the run's GPUs or MIG instances. `index` is the driver's number of it; shares are 0 to 1.

    `memory_used_bytes` counts all processes on the GPU, `process_memory_bytes` those of the run. `clock_share` is
    relative to the highest clock. `slowed_by` is `heat`, `power`, or empty if neither limits the clock. Values that the
    driver does not report are None.
    """

    index: int
    utilization_share: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    process_memory_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    clock_share: float | None = None
    slowed_by: str | None = None


_COMBINE_GPUS: Final[dict[str, Callable[[list[float]], float]]] = {"utilization_share": fmean, "power_watts": sum}
GAUGES: Final[Mapping[str, Figure]] = {
    "process_memory_bytes": Figure(title="process memory", unit="bytes"),
    "memory_used_bytes": Figure(title="GPU memory", unit="bytes"),
    "process_cpu_share": Figure(title="CPU use", unit="share"),
    "utilization_share": Figure(title="GPU use", unit="share"),
    "power_watts": Figure(title="GPU power, W", unit="number"),
    "temperature_celsius": Figure(title="GPU temperature, C", unit="number"),
}
"""The readings that Train, the report and trackers show, by field of `GaugesRead` or of `GpuReading`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugesRead(Event):
    """Resource use of the run's process, read every few seconds. Values that the system does not report are None.

    Shares are 0 to 1, over the time since the previous reading. `process_cpu_share` (of the run's process) and
    `machine_cpu_share` (of all processes) are relative to `usable_cores`. The threads of the run's process waited for a
    core during `core_wait_share` of the time in which they could have run. `disk_read_bytes` counts bytes read from
    storage, and some process of the machine waited for storage during `io_stall_share` of the time.
    """

    process_memory_bytes: int | None = None
    process_cpu_share: float | None = None
    usable_cores: float | None = None
    machine_cpu_share: float | None = None
    core_wait_share: float | None = None
    disk_read_bytes: int | None = None
    io_stall_share: float | None = None
    memory_available_bytes: int | None = None
    gpus: list[GpuReading] = field(default_factory=list)

    def figure(self, name: str) -> float | None:
        """Return a figure of this reading by name. Figures of several GPUs are combined: the mean of their use, the sum
        of their power, the maximum of other figures."""
        if hasattr(self, name):
            return getattr(self, name)  # type: ignore[no-any-return]
        values = [value for gpu in self.gpus if (value := getattr(gpu, name)) is not None and math.isfinite(value)]
        return _COMBINE_GPUS.get(name, max)(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSampled(Event):
    """A sample: the model's continuation of `prompt`. Training waited `seconds`. Show it only through `safe_text`."""

    prompt: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProblem(Event):
    """A problem that does not end the run. Its name in the journal is `Problem`."""

    kind: str
    message: str
    hint: str = ""


ATTENTION_CHANGED: Final = "attention changed"
PACKED_WITH_MASK: Final = "packed rows are masked"
"""`RunProblem.kind` if attention does not use the planned kernel: in general, and for packed rows."""
NO_GRADIENT: Final = "no gradient"
"""`RunProblem.kind` if trainable weights have a gradient of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReduced(RunProblem):
    """The reduction of the rows per pass after memory ran out at `step`.

    `what` ran out of memory: training or evaluation. `longest_row` is in tokens. Memory is that of the GPU, or that of
    the machine for a run on a CPU. Values that are not known are None.
    """

    what: str
    rows_before: int
    rows: int
    passes: int
    longest_row: int | None = None
    peak_memory_bytes: int | None = None
    free_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApplied(Event):
    """The confirmation that the run executed a request of control.json."""

    action: str
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The end of a run that did not fail. `reason` is `done`, `early stopping`, or `stopped` (on request).

    `model_path` is relative to the run folder. `model_step` is the step from which the final model has its weights: the
    best step with early stopping, None without a model and in older journals. `eval_loss` and `scores` describe these
    weights; of a classifier, `scores` has also those of its calibration, whose temperature changes the held-out loss to
    `calibrated_loss`. `model_files` has fingerprints of the model's files by name; it is empty in older journals.
    """

    reason: str
    loss: float | None
    eval_loss: float | None
    seconds: float
    model_path: str | None = None
    model_bytes: int | None = None
    model_step: int | None = None
    scores: dict[str, float] = field(default_factory=dict)
    model_files: dict[str, str] = field(default_factory=dict)
    calibrated_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """The end of a run by an error."""

    message: str
    log_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMeasured(Event):
    """Rows per second that the trained model answers in batches, as `bench RUN` measured it after the run's end."""

    samples_per_second: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """An event of a kind that only a newer version knows. `data` has all fields except `event`, `at` and `step`."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


KINDS: Final[dict[str, type[Event]]] = {
    "Problem" if kind is RunProblem else kind.__name__: kind
    for kind in (
        RunStarted, PhaseChanged, Progress, DataPrepared, PlanMade, LibrariesLoaded, BaselinesMeasured, StepDone,
        BetweenSteps, RanksTimed, EvalDone, EpochDone, CheckpointSaved, GaugesRead, TextSampled, RunProblem,
        MicroBatchReduced, ControlApplied, RunFinished, RunFailed, InferenceMeasured,
    )
}  # fmt: skip


# One line of JSON per event.
#
# A line is ASCII and never contains a line break, whatever text is in the event, so that data cannot forge a line.
# Numbers that are not finite are written as the strings "NaN", "Infinity" and "-Infinity": bare NaN is not JSON.

LINE_LIMIT_BYTES: Final = 1_000_000
_SHAPES_LIMIT: Final = 64
_read_text: Final = json_fields.make_reader(str)


def to_line(event: Event) -> str:
    """Return the event as one line of JSON, without the line break. Shortens texts if it exceeds `LINE_LIMIT_BYTES`."""
    data = _as_dict(event)
    line = _dumps(data)
    return line if len(line) < LINE_LIMIT_BYTES else _dumps(json_fields.shorten_values(data))


def from_line(line: str | bytes) -> Event:
    """Return the event in a line of the journal. Raises ValueError if a field is missing or has the wrong type.

    Fields that this version does not know are ignored. An event of an unknown kind becomes `Unknown`.
    """
    try:
        data = json_fields.parsed(line.encode() if isinstance(line, str) else line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("not one JSON object")
    return _event(data)


def _event(data: dict[str, Any]) -> Event:
    kind = data.pop("event", None)
    if not isinstance(kind, str):
        raise ValueError("the field `event` is missing")
    if (table := _TABLES.get(kind)) is None:
        timestamp, step = _read_text(data.pop("at", "")), json_fields.read_whole_number(data.pop("step", 0))
        return Unknown(kind=kind, at=timestamp, step=step, data=data)
    shape = (*data, *map(type, data.values()))
    setters = table.setters.get(shape)
    if setters is None or any(abs(data[name]) >= json_fields.WHOLE_LIMIT for name in table.whole_numbers):
        return table.read(data, shape)
    # An earlier line with these names and types was checked. Filling slots takes a third of a frozen __init__'s time.
    event: Event = object.__new__(table.cls)
    for set_value, value in zip(setters, data.values()):  # noqa: B905 - strict costs 10 % here, and the shape is equal
        set_value(event, value)
    for set_value in table.set_empty:
        set_value(event, {})
    return event


def _as_dict(event: Event) -> dict[str, Any]:
    """Return the event's fields in the order of a journal line: `event`, `at`, `step`, then the others."""
    if isinstance(event, Unknown):
        other_fields = {key: value for key, value in event.data.items() if key not in ("event", "at", "step")}
        return {"event": event.kind, "at": event.at, "step": event.step, **other_fields}
    table = _TABLES[_NAMES[type(event)]]
    data = {"event": table.kind, **dict(zip(table.readers, table.values(event), strict=True))}
    for name in table.left_out_empty:
        if not data[name]:
            del data[name]
    return data


def _dumps(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, allow_nan=False, default=_as_finite_dict)
    except ValueError:
        return json.dumps(json_fields.replace_non_finite(data), allow_nan=False, default=_as_finite_dict)


def _as_finite_dict(record: Any) -> Any:
    return json_fields.replace_non_finite(asdict(record))


class _Table:
    """Readers and writers for the fields of one kind of event, looked up once per process instead of once per line."""

    def __init__(self, kind: str, cls: type[Event]) -> None:
        self.kind, self.cls = kind, cls
        hints = get_type_hints(cls)
        self.readers = {item.name: json_fields.make_reader(hints[item.name]) for item in fields(cls)}
        self.values: Callable[[Event], tuple[Any, ...]] = attrgetter(*self.readers)
        self.left_out_empty = [item.name for item in fields(cls) if item.metadata.get("left_out_empty")]
        self.set_empty = [getattr(cls, name).__set__ for name in self.left_out_empty]
        read_whole_number = json_fields.read_whole_number
        self.whole_numbers = [name for name, read_field in self.readers.items() if read_field is read_whole_number]
        self.setters: dict[tuple[Any, ...], list[Callable[[Event, Any], None]]] = {}

    def read(self, data: dict[str, Any], shape: tuple[Any, ...]) -> Event:
        """Return the event in `data` after checking every field. Remembers `shape` if later lines need no check."""
        known_fields = {"at": "", **{key: value for key, value in data.items() if key in self.readers}}
        values = {key: self.readers[key](value) for key, value in known_fields.items()}
        try:
            event = self.cls(**values)
        except TypeError as error:
            raise ValueError(f"{self.kind}: {error}") from error
        has_only_numbers = all(key == "at" or isinstance(value, int | float) for key, value in data.items())
        required_fields = self.readers.keys() - self.left_out_empty
        if has_only_numbers and data.keys() == required_fields and len(self.setters) < _SHAPES_LIMIT:
            self.setters[shape] = [getattr(self.cls, key).__set__ for key in data]
        return event


_TABLES: Final = {kind: _Table(kind, cls) for kind, cls in KINDS.items()}
_NAMES: Final = {cls: kind for kind, cls in KINDS.items()}
