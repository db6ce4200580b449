"""Do other programs take the cores or the card?"""

from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_bytes

_LEAST_OTHERS = 0.1
_GUEST_BYTES_SHARE = 0.05


@diagnosis(
    order=110,
    title="Other processes",
    guides=("B slow training 3", "C troubleshooting 4", "C troubleshooting 5"),
    least_share=0,
    why="Threads of one matmul wait for the slowest of them: one core taken away holds all others up.",
)
def look(view: RunView) -> Cause | None:
    return _on_the_card(view) if view.on_gpu else _on_the_cores(view)


def _on_the_cores(view: RunView) -> Cause | None:
    others, own, wait = view.others_cpu_share, view.own_cpu_share, view.core_wait_share
    cores = view.usable_cores
    if others is None or own is None or cores is None or others < _LEAST_OTHERS:
        return None
    # What they have taken from this run: where the kernel counts it, no more than its threads waited.
    share = others / (others + own)
    if wait is not None:
        share = min(share, 2 * wait)
    # A run that waits for its data has no use for the cores meanwhile.
    share *= 1 - view.share(view.data_seconds)
    if share < BAR_SHARE:
        return None
    waits = f"; its threads waited for a core {percent(wait)} of their time" if wait is not None else ""
    fewer = max(1, round(cores * (1 - others)))
    first = "0" if fewer == 1 else f"0-{fewer - 1}"
    return Cause(
        cause="Other programs compute on the cores of this run, and its threads wait for each other.",
        evidence=f"others use {others * cores:.1f} of {cores:g} cores, the run {own * cores:.1f}{waits}",
        share=share,
        advice=f"end them (`top` shows them), or train on fewer cores: taskset --cpu-list {first} COMMAND",
    )


def _on_the_card(view: RunView) -> Cause | None:
    used = view.gpu_mean(lambda gpu: gpu.memory_used_bytes)
    own = view.gpu_mean(lambda gpu: gpu.process_memory_bytes)
    total = view.gpu_mean(lambda gpu: gpu.memory_bytes)
    if used is None or not own or not total or used - own < _GUEST_BYTES_SHARE * total:
        return None
    return Cause(
        cause="Another process is on the card of this run.",
        evidence=f"{format_bytes(used - own)} of its memory are others', {format_bytes(own)} the run's",
        # That it is there is known; what it computes is not reported.
        share=(used - own) / used / 2 if (view.gpu_busy_share or 0.0) > 0.9 else 0.0,
        advice="see who it is: nvidia-smi; choose another card with --gpu",
    )
