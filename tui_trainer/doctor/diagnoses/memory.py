"""Does the memory of the run last?"""

from statistics import fmean

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.events import GaugesRead
from tui_trainer.units import MIB, format_bytes, format_bytes_of

_LEAST_READINGS = 6
# A process settles after its first evaluation, sample and checkpoint.
_LEAST_GROWTH, _LEAST_GROWTH_BYTES = 0.1, 64 * MIB
_FULL_SHARE, _LEAST_FREE_SHARE = 0.96, 0.03


@diagnosis("Memory growing")
def memory_growing(view: RunView) -> Cause | None:
    """Memory is stable after two or three steps; what grows on ends in an out-of-memory error, hours later."""
    readings = [(one.step, used) for one in view.all_readings if (used := _used_bytes(one, view)) is not None]
    readings = readings[len(readings) // 5 :]
    if len(readings) < _LEAST_READINGS:
        return None
    third = len(readings) // 3
    low, middle, high = (fmean(used for _, used in readings[at * third : (at + 1) * third]) for at in range(3))
    growth = high - low
    is_steady = middle > low and high - middle >= 0.3 * (middle - low)
    if not is_steady or growth < max(_LEAST_GROWTH * low, _LEAST_GROWTH_BYTES):
        return None
    (first_step, first), (last_step, last) = readings[0], readings[-1]
    steps = max(last_step - first_step, 1)
    each = max(last - first, 0.0) / steps
    total = view.state.total_steps
    at_the_end = last + each * max(total - last_step, 0)
    free = view.mean("memory_available_bytes")
    missing = free is not None and at_the_end - last > free
    share = 1 - (last_step + free / each) / total if missing and free is not None and each and total else 0.0
    will = f", which would be {format_bytes(at_the_end)} at step {total:,}" if last_step < total else ""
    return Cause(
        cause="The memory of the run grows from step to step, and is not given back.",
        evidence=f"{format_bytes(first)} at step {first_step:,}, {format_bytes(last)} at step {last_step:,}{will}",
        share=max(share, 0.0),
        is_fault=True,
        advice="something keeps what a step made: a hook, a model's own code; a resume from a checkpoint begins anew",
    )


def _used_bytes(reading: GaugesRead, view: RunView) -> float | None:
    if not view.on_gpu:
        return reading.process_memory_bytes
    known = [gpu.process_memory_bytes or gpu.memory_used_bytes for gpu in reading.gpus]
    return sum(filter(None, known)) or None


@diagnosis("Memory nearly full", least_share=0)
def memory_full(view: RunView) -> Cause | None:
    """In this order: half the rows of a pass at twice the accumulation, 4 bits, shorter rows, checkpointing."""
    used, total = view.gpu_mean("memory_used_bytes"), view.gpu_mean("memory_bytes")
    free = view.mean("memory_available_bytes")
    own = view.mean("process_memory_bytes")
    is_card = bool(used and total and used >= _FULL_SHARE * total)
    if used and total and is_card:
        evidence = f"{format_bytes_of(used, total)} of the GPU in use ({percent(used / total)})"
    elif free is not None and own is not None and free < _LEAST_FREE_SHARE * (free + own):
        evidence = f"{format_bytes(free)} of host memory left beside the {format_bytes(own)} of the run"
    else:
        return None
    return Cause(
        cause="The memory is nearly full: a longer row, an evaluation or another process may end the run.",
        evidence=evidence,
        share=0.0,
        is_fault=not is_card,
        fix={"training.gradient_checkpointing": True},
        advice="or fewer rows in a pass, shorter rows, LoRA with a smaller r, 4 bits",
    )
