"""What a run says about itself: one class per kind of event. How they are written: `event_lines.py`.

Losses are in nats, durations in seconds of a monotonic clock, `at` is the wall clock (UTC) and only for people.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

from tui_trainer.units import utc_now

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(Event):
    """What the exact plan says; the whole of it is in plan.json.

    `eval_every_steps` and `save_every_steps` are 0 where it happens only at the end; None in journals without them.
    `base_model` is empty for a model from scratch, `lora_rank` None where all weights are trainable. `targets` are
    those of [targets] that were set, `metric` is `evaluation.metric_for_best_model`. From `precision` on: settings as
    they came out, for what judges the run later; `best_precision` is what `training.mixed_precision = "auto"` takes
    here. Empty or None in journals without them.
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
    eval_rows: int | None = None
    eval_every_steps: int | None = None
    save_every_steps: int | None = None
    sample_every_steps: int | None = None
    trained_parameters: int | None = None
    base_model: str = ""
    lora_rank: int | None = None
    targets: dict[str, float] = field(default_factory=dict)
    metric: str = "loss"
    precision: str = ""
    best_precision: str = ""
    packing: bool | None = None
    group_by_length: bool | None = None
    torch_compile: bool | None = None
    loader_workers: int | None = None
    logging_steps: int | None = None
    empty_cache_steps: int | None = None
    learning_rate: float | None = None
    most_learning_rate: float | None = None
    memory_budget_bytes: int | None = None
    processes: int = 1
    command: str = ""
    """What starts the processes, where there are several."""
    attention: str = ""
    """Which kernel computes it, and why."""
    best_samples_per_second: float | None = None
    """Of earlier runs with steps of the same shape on this machine."""


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
class Unknown(Event):
    """A kind that a newer version writes. `data` is all of it but `event`, `at` and `step`."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


KINDS: Final[dict[str, type[Event]]] = {
    "Problem" if kind is RunProblem else kind.__name__: kind
    for kind in (
        RunStarted, PhaseChanged, Progress, DataPrepared, PlanMade, LibrariesLoaded, BaselinesMeasured, StepDone,
        BetweenSteps, RanksTimed, EvalDone, EpochDone, CheckpointSaved, GaugesRead, TextSampled, RunProblem,
        MicroBatchReduced, ControlApplied, RunFinished, RunFailed,
    )
}  # fmt: skip
