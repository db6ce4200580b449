"""The share of a run's planned time that is not training: evaluations, checkpoints, text samples, the journal."""

from dataclasses import dataclass, replace

from tui_trainer.checklist.contract import Context
from tui_trainer.runs.cadence import times
from tui_trainer.runs.remaining import EVALUATION_SHARE

# Until a run on this machine has measured them. A checkpoint of 9.8 MB took 16 to 33 ms, one of 456 MB 0.5 to 2.5 s
# (hashed, and safe on the disk); a text of 160 tokens 0.2 to 0.3 s with four layers (2 cores of an AMD EPYC).
ASSUMED_SAVE_BYTES_PER_SECOND = 400e6
# On a GPU a layer is a dozen kernels, each about 10 microseconds to start, for each of 160 tokens.
ASSUMED_SAMPLE_SECONDS_A_LAYER = {"cpu": 0.07, "cuda": 0.02}
# tests/benchmarks/journal.py: 10 microseconds a step in groups of ten, nearly all of it once a group.
JOURNAL_GROUP_SECONDS = 1e-4
_EVAL, _SAVE = "evaluation.eval_steps", "checkpoint.save_steps"
_SAMPLE, _LOG = "logging.sample_steps", "logging.logging_steps"


@dataclass(frozen=True, slots=True)
class Overhead:
    """One kind of interruption: how often on the way (the one at the end is made anyway) and how long each takes."""

    key: str
    name: str
    every_steps: int
    count: int
    each_seconds: float
    source: str

    @property
    def seconds(self) -> float:
        return self.count * self.each_seconds


def training_seconds(context: Context) -> float | None:
    """Planned seconds of all optimizer steps; None where only a measured step can tell."""
    step = context.step_seconds
    return None if step is None else context.planned.total_steps.value * step


def overheads(context: Context) -> list[Overhead]:
    """Every kind of interruption of this plan."""
    plan, earlier = context.planned, context.earlier
    total = plan.total_steps.value
    rate = earlier.save_bytes_per_second if earlier and earlier.save_bytes_per_second else None
    sample = earlier.sample_seconds if earlier and earlier.sample_seconds else None
    measured = f"measured in run {earlier.name}" if earlier else ""
    a_layer = ASSUMED_SAMPLE_SECONDS_A_LAYER[context.basis.target.device]

    def kind(key: str, name: str, every_steps: int, each_seconds: float, source: str) -> Overhead:
        return Overhead(key, name, every_steps, on_the_way(key, total, every_steps), each_seconds, source)

    eval_source = measured if earlier and earlier.evaluation_share else "a third of a training step for each row"
    eval_seconds = evaluation_seconds(context, plan.eval_rows.value)
    evaluations = kind(_EVAL, "evaluations", plan.eval_every_steps.value, eval_seconds, eval_source)
    save_seconds = plan.checkpoint_bytes.value / (rate or ASSUMED_SAVE_BYTES_PER_SECOND)
    save_source = measured if rate else "at 400 MB/s, not measured here yet"
    sample_source = measured if sample else f"{1000 * a_layer:.0f} ms a layer, not measured here yet"
    sample_seconds, logging_steps = sample or a_layer * context.basis.shape.layers, context.config.logging.logging_steps
    return [
        evaluations if plan.eval_rows.value else replace(evaluations, count=0),
        kind(_SAVE, "checkpoints", plan.save_every_steps.value, save_seconds, save_source),
        kind(_SAMPLE, "text samples", plan.sample_every_steps.value, sample_seconds, sample_source),
        kind(_LOG, "journal", logging_steps, JOURNAL_GROUP_SECONDS, "0.1 ms a group of steps"),
    ]


def on_the_way(key: str, total_steps: int, every_steps: int) -> int:
    """How often it interrupts; the evaluation and the checkpoint at the end are no interruptions."""
    if key in (_EVAL, _SAVE):
        return times(total_steps, every_steps) - 1
    return total_steps // every_steps if every_steps else 0


def evaluation_seconds(context: Context, rows: int) -> float:
    """Seconds of one evaluation of so many rows, as the plan reckons them; 0 where a step's are not known."""
    plan = context.planned
    step_rows = min(plan.effective_batch_size.value, plan.train_rows.value)
    share = context.earlier.evaluation_share if context.earlier else None
    return (context.step_seconds or 0.0) / step_rows * rows * (share or EVALUATION_SHARE)
