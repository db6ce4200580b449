"""Has the run more threads than cores?"""

from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_FEW_OTHERS = 0.1


@diagnosis(
    order=120,
    title="More threads than cores",
    guides=("A CPU optimisation", "C CPU optimisation 2"),
    why="Threads beyond the cores compute nothing more, and every matmul waits for the last of them.",
)
def look(view: RunView) -> Cause | None:
    wait, others, cores, threads = view.core_wait_share, view.others_cpu_share, view.usable_cores, view.state.threads
    if view.on_gpu or None in (wait, cores) or wait is None or cores is None or wait < BAR_SHARE:
        return None
    if threads is None or threads <= cores or (others or 0.0) >= _FEW_OTHERS:
        return None
    return Cause(
        cause="The run has more threads than cores, and they take turns.",
        evidence=f"{threads} threads on {cores:g} cores; they waited for a core {percent(wait)} of their time",
        share=wait,
        advice=f"export OMP_NUM_THREADS={max(1, int(cores))}",
    )
