"""Is the memory so full that the next longer row may not fit?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_bytes, format_bytes_of

_FULL_SHARE, _LEAST_FREE_SHARE = 0.96, 0.03
_SMALLER = {"training.gradient_checkpointing": True}


@diagnosis(
    order=150,
    title="Memory nearly full",
    guides=("B out of memory", "C bottleneck 2", "C memory usage too high", "D out of memory", "E memory issues"),
    least_share=0,
    why="The guides' ladder: half the rows of a pass at twice the accumulation, 4 bits, shorter rows, checkpointing.",
)
def look(view: RunView) -> Cause | None:
    used = view.gpu_mean(lambda gpu: gpu.memory_used_bytes)
    total = view.gpu_mean(lambda gpu: gpu.memory_bytes)
    if used and total and used >= _FULL_SHARE * total:
        return _cause(f"{format_bytes_of(used, total)} of the GPU in use ({percent(used / total)})", is_fault=False)
    free = view.mean(lambda reading: reading.memory_available_bytes)
    own = view.mean(lambda reading: reading.process_memory_bytes)
    if free is None or own is None or free >= _LEAST_FREE_SHARE * (free + own):
        return None
    return _cause(f"{format_bytes(free)} of host memory left beside the {format_bytes(own)} of the run", is_fault=True)


def _cause(evidence: str, *, is_fault: bool) -> Cause:
    return Cause(
        cause="The memory is nearly full: a longer row, an evaluation or another process may end the run.",
        evidence=evidence,
        share=0.0,
        is_fault=is_fault,
        fix=_SMALLER,
        advice="or fewer rows in a pass, shorter rows, LoRA with a smaller r, 4 bits",
    )
