"""Events of a journal as metrics, under the names that trackers show in groups."""

import math
from datetime import datetime

from tui_trainer.runs.events import EvalDone, Event, GaugesRead, StepDone
from tui_trainer.tracking.contract import Metrics
from tui_trainer.units import GIB

_OF_STEPS = ("loss", "grad_norm", "epoch", "step_seconds", "tokens_per_second", "samples_per_second")


def metrics_of(event: Event) -> Metrics | None:
    """None for an event that measures nothing. What is not finite is left out: not every tracker takes it."""
    match event:
        case StepDone():
            values: dict[str, float | None] = {f"train/{name}": getattr(event, name) for name in _OF_STEPS}
            values |= {"train/learning_rate": event.lr, "train/peak_memory_gib": event.peak_memory_bytes / GIB}
        case EvalDone():
            values = {"eval/loss": event.loss, **{f"eval/{name}": value for name, value in event.scores.items()}}
        case GaugesRead():
            values = {
                "gauges/process_memory_gib": _gib(event.process_memory_bytes),
                "gauges/process_cpu_share": event.process_cpu_share,
            }
            for gpu in event.gpus:
                values |= {
                    f"gauges/gpu{gpu.index}_utilization_share": gpu.utilization_share,
                    f"gauges/gpu{gpu.index}_memory_gib": _gib(gpu.memory_used_bytes),
                    f"gauges/gpu{gpu.index}_power_watts": gpu.power_watts,
                    f"gauges/gpu{gpu.index}_temperature_celsius": gpu.temperature_celsius,
                }
        case _:
            return None
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return Metrics(step=event.step, seconds=_seconds(event.at), values=known) if known else None


def _gib(count: float | None) -> float | None:
    return None if count is None else count / GIB


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
