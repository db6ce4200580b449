"""What a run says about itself: one class per kind of event.

Losses are in nats, durations in seconds of a monotonic clock, `at` is the wall clock (UTC) and only for people.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from statistics import fmean
from typing import Any, Final, get_type_hints

from tui_trainer.runs.json_fields import WHOLE_LIMIT, finite, parsed, reader, shortened, whole
from tui_trainer.units import Figure, utc_now

LEFT_OUT_EMPTY: Final = {"left_out_empty": True}
"""Of fields that are not written where there is nothing in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have: when it happened, and after how many optimizer steps."""

    at: str = field(default_factory=utc_now)
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run begins, or goes on from a checkpoint: then what came after `resumed_from_step` no longer counts."""

    name: str
    task: str
    device: str
    pid: int
    total_steps: int
    resumed_from_step: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """`preparing`, `loading`, `training`, `paused`, `saving` (the final model)."""

    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Event):
    """How far long work has come, in `unit`s; `total` is None while it is not known."""

    what: str
    done: float
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPrepared(Event):
    """What the run learns from, counted; `eval_*` is the held-out part."""

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
    """Of how many tokens or classes a label is one, where the loss is the cross-entropy of that choice; 0: it is not,
    or the journal does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRates:
    """What a rate of training is measured by, in floating-point operations a second of one process; None: not known.

    `row_flops`: operations of one row in a step. `measured`: of large matmuls on this machine, `measured_of` which.
    `maker`: what `maker_source` says of the card. `usual_share`: what training in a model of this width reaches, of the
    maker's rate on a card and of the measured one on a CPU. `starting_seconds`: what starting the operations of one
    pass takes, however little they compute; 0 in journals without it.
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
    """What the exact plan says; the whole of it is in plan.json.

    Fields with the name of a field of `Plan` have its value, and `figures` those that are declared for the journal
    (`Figure.in_journal`), by their names.

    `eval_every_steps` and `save_every_steps` are 0 where it happens only at the end; None in journals without them.
    `base_model` is empty for a model from scratch, `came_from` where no run trained it before, `lora_rank` None where
    all weights are trainable. `targets` are those of [targets] that were set, `metric` is
    `evaluation.metric_for_best_model`. From `precision` on: settings as they came out, for what judges the run later;
    `best_precision` is what `training.mixed_precision = "auto"` takes here. Empty or None in journals without them.
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
    """Of them, what is computed once before the first step."""
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
    """Evaluations in a row without a better one that end the run; 0 where none does."""
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
    """What `auto` takes for this method and size of model."""
    most_learning_rate: float | None = None
    memory_budget_bytes: int | None = None
    kernel_bytes: int | None = None
    """Of the memory, what a CPU compiles for the sizes of passes; 0 where it compiles for none."""
    processes: int = 1
    command: str = ""
    """What starts the processes, where there are several."""
    attention: str = ""
    """Which kernel computes it, and why."""
    best_samples_per_second: float | None = None
    """Of earlier runs with steps of the same shape on this machine."""
    gradient_checkpointing: bool | None = None
    tuning_method: str = ""
    warmup_steps: int | None = None
    max_grad_norm: float | None = None
    seed: int | None = None
    """Of the order of the rows, as `training.seed` gives it."""
    precision_gain: float | None = None
    """How many times as fast steps in `best_precision` were, or else matmuls, measured on this machine."""
    precision_gain_of: str = ""
    compute_rates: ComputeRates | None = None
    step_seconds: float | None = None
    step_seconds_reason: str = ""
    has_measured_steps: bool = True
    """Whether the planned time comes from steps of this model that were measured on this machine."""
    hardware_settings: list[str] = field(default_factory=list)
    """Settings whose values come from the hardware profile."""
    user_settings: list[str] | None = None
    """Settings that the user wrote; None in journals of before they were noted."""
    busy_words: str = ""
    """What others took of this machine when the plan was made, and what that makes of its times; empty: nothing."""
    cpu_threads: int | None = None
    """Of each process."""
    merged_bytes: int | None = None
    """Of the weights with an adapter merged into them, which is what is deployed; None for a run without one."""
    figures: dict[str, float] = field(default_factory=dict, metadata=LEFT_OUT_EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrariesLoaded(Event):
    """torch and transformers are there, the model is not yet.

    `resident_bytes` is what the process holds now: on a CPU the plan's memory is what training adds to it. None on a
    GPU, where the plan's memory is that of the card. `threads` are those that torch's kernels may use.
    """

    resident_bytes: int | None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinesMeasured(Event):
    """What simpler models reach, by name: held-out loss in nats per `unit`, or a score as in `EvalDone`."""

    losses: dict[str, float]
    eval_tokens: int
    unit: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Event):
    """One optimizer step. `step_seconds` is the whole step; the four parts are within it.

    `loss_sum` is in nats over the `tokens` that count, over all micro-batches and processes; `input_tokens` are all
    that the model read, without padding; with it they are `positions`. 0 in journals without them.

    Where a loss has several parts, or scores beside it, `sums` are theirs by name, and `counts`, by the same names,
    what they are divided by; `loss_sum` is then the loss times `tokens`. Left out of the line where there are none.
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
        """Nats per token; NaN when no token counted."""
        return self.loss_sum / self.tokens if self.tokens else math.nan

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each sum; those of which nothing counted are left out."""
        return {name: total / self.counts[name] for name, total in self.sums.items() if self.counts.get(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenSteps(Event):
    """Where the time between steps went since the last such event, once in a few seconds.

    `journal_seconds` were spent on writing steps, `empty_cache_seconds` on `training.empty_cache_steps`. Evaluations,
    checkpoints and text samples have events of their own; `other_seconds` is what nothing accounts for.
    """

    steps: int
    journal_seconds: float
    empty_cache_seconds: float
    other_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksTimed(Event):
    """What each of several processes spent in a step on what they do together, as a mean since the last such event.

    It counts the time in which it waited for others: the slowest process waits least.
    """

    communication_seconds: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDone(Event):
    """The held-out loss, and what else the task measures. `scheduled` is false when a person asked for it; `best` when
    none before was better by `evaluation.metric_for_best_model`. The table has one row for each class, if any."""

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
    """The training data was seen once more."""

    epoch: int
    mean_loss: float
    seconds: float
    samples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Event):
    """A complete checkpoint; `path` is relative to the run folder, `seconds` is how long training waited."""

    path: str
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A card that the run uses, or its MIG instance. `index` is the driver's, the share 0 to 1.

    `memory_used_bytes` is of all processes on it, `process_memory_bytes` of the run's. `clock_share` is of its highest
    clock, `slowed_by` `heat` or `power`, empty when neither holds it back. None: not reported.
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


_OF_SEVERAL: Final[dict[str, Callable[[list[float]], float]]] = {"utilization_share": fmean, "power_watts": sum}


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
    """What the run's process uses, once in a few seconds. None: not reported.

    `process_cpu_share` and `machine_cpu_share` (of all processes) are 0 to 1 of the `usable_cores`, since the reading
    before; `core_wait_share` is 0 to 1 of the time in which its threads could have computed, and waited for a core.
    `disk_read_bytes` came from storage since then, `io_stall_share` of the time something on the machine waited for it.
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
        """Return a figure of this reading: of the process, or of all its GPUs together."""
        return getattr(self, name) if hasattr(self, name) else self.over_gpus(name)

    def over_gpus(self, name: str) -> float | None:
        """Return one figure of all GPUs: their mean use, their total power, otherwise that of the highest one."""
        values = [value for gpu in self.gpus if (value := getattr(gpu, name)) is not None and math.isfinite(value)]
        return _OF_SEVERAL.get(name, max)(values) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSampled(Event):
    """What the model writes after `prompt`, and how long training waited. Foreign text: show it through `safe_text`."""

    prompt: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProblem(Event):
    """Something went wrong and the run goes on. `"Problem"` in the journal."""

    kind: str
    message: str
    hint: str = ""


ATTENTION_CHANGED: Final = "attention changed"
PACKED_WITH_MASK: Final = "packed rows are masked"
"""Kinds of the problems that another kernel of attention than planned computes; the second for packed rows."""
NO_GRADIENT: Final = "no gradient"
"""The kind of the problem that weights which should learn have a gradient of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReduced(RunProblem):
    """Memory ran out at `step`: from there on passes have fewer `rows`. `what`: training or evaluation; `longest_row`
    in tokens; the memory is that of the card, or of the machine for a run on a CPU. None: not known."""

    what: str
    rows_before: int
    rows: int
    passes: int
    longest_row: int | None = None
    peak_memory_bytes: int | None = None
    free_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlApplied(Event):
    """A request of control.json was carried out."""

    action: str
    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The end, reached (`done`, `early stopping`) or asked for (`stopped`); `model_path` is relative to the folder.

    `model_step` is the step that the model's weights are of, to which `eval_loss` and `scores` belong: with early
    stopping that of the best evaluation. None for a run without a model, and in journals without it.

    `model_files` are fingerprints of what was written there, by name; empty where an earlier version wrote it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """The end that nobody wanted."""

    message: str
    log_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMeasured(Event):
    """How many rows the trained model answers in a second, in batches. `bench RUN` writes it after the end of a run."""

    samples_per_second: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Event):
    """A kind that a newer version writes. `data` is all of it but `event`, `at` and `step`."""

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
# A line is ASCII and holds no line break whatever text is inside, so that a record cannot be forged or torn by data.
# Numbers that are not finite are written as the strings "NaN", "Infinity" and "-Infinity": bare NaN is not JSON.

LINE_LIMIT_BYTES: Final = 1_000_000
_SHAPES_LIMIT: Final = 64
_read_text: Final = reader(str)


def to_line(event: Event) -> str:
    """One line of JSON without its line break. Texts are cut where the line would pass `LINE_LIMIT_BYTES`."""
    data = _as_dict(event)
    line = _dumps(data)
    return line if len(line) < LINE_LIMIT_BYTES else _dumps(shortened(data))


def from_line(line: str | bytes) -> Event:
    """The event of one line. Raises ValueError when the line is not a whole, well-typed event.

    Fields that a known kind does not have are left out; a kind that is not known becomes `Unknown`.
    """
    try:
        data = parsed(line.encode() if isinstance(line, str) else line)
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
        at, step = _read_text(data.pop("at", "")), whole(data.pop("step", 0))
        return Unknown(kind=kind, at=at, step=step, data=data)
    shape = (*data, *map(type, data.values()))
    setters = table.setters.get(shape)
    if setters is None or any(abs(data[name]) >= WHOLE_LIMIT for name in table.whole_numbers):
        return table.read(data, shape)
    # Names and types were checked on an earlier line. Filling the slots takes a third of the time of a frozen __init__.
    event: Event = object.__new__(table.cls)
    for set_value, value in zip(setters, data.values()):  # noqa: B905 - strict costs 10 % here, and the shape is equal
        set_value(event, value)
    for set_value in table.set_empty:
        set_value(event, {})
    return event


def _as_dict(event: Event) -> dict[str, Any]:
    """In the order of the line: `event`, `at`, `step`, the rest."""
    if isinstance(event, Unknown):
        rest = {key: value for key, value in event.data.items() if key not in ("event", "at", "step")}
        return {"event": event.kind, "at": event.at, "step": event.step, **rest}
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
        return json.dumps(finite(data), allow_nan=False, default=_as_finite_dict)


def _as_finite_dict(record: Any) -> Any:
    return finite(asdict(record))


class _Table:
    """How one kind is read and written: looked up once per process, not once per line."""

    def __init__(self, kind: str, cls: type[Event]) -> None:
        self.kind, self.cls = kind, cls
        hints = get_type_hints(cls)
        self.readers = {item.name: reader(hints[item.name]) for item in fields(cls)}
        self.values: Callable[[Event], tuple[Any, ...]] = attrgetter(*self.readers)
        self.left_out_empty = [item.name for item in fields(cls) if item.metadata.get("left_out_empty")]
        self.set_empty = [getattr(cls, name).__set__ for name in self.left_out_empty]
        self.whole_numbers = [name for name, read in self.readers.items() if read is whole]
        self.setters: dict[tuple[Any, ...], list[Callable[[Event, Any], None]]] = {}

    def read(self, data: dict[str, Any], shape: tuple[Any, ...]) -> Event:
        """Checks every field, and remembers the names and types of a complete line of plain numbers."""
        known = {"at": "", **{key: value for key, value in data.items() if key in self.readers}}
        values = {key: self.readers[key](value) for key, value in known.items()}
        try:
            event = self.cls(**values)
        except TypeError as error:
            raise ValueError(f"{self.kind}: {error}") from error
        plain = all(key == "at" or isinstance(value, int | float) for key, value in data.items())
        written = self.readers.keys() - self.left_out_empty
        if plain and data.keys() == written and len(self.setters) < _SHAPES_LIMIT:
            self.setters[shape] = [getattr(self.cls, key).__set__ for key in data]
        return event


_TABLES: Final = {kind: _Table(kind, cls) for kind, cls in KINDS.items()}
_NAMES: Final = {cls: kind for kind, cls in KINDS.items()}
