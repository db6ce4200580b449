"""Are there cores that the run may use and does not?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

# Of two cores instead of one: what is not in a kernel gains nothing.
_GAIN_OF_CORES = 0.7


@diagnosis(
    order=130,
    title="One thread",
    guides=("A CPU optimisation", "C CPU optimisation 2", "E common issues"),
    why="Matmuls share their work among threads; with one of them all cores but one have nothing to do.",
)
def look(view: RunView) -> Cause | None:
    threads, cores = view.state.threads, view.usable_cores
    if view.on_gpu or threads != 1 or cores is None or cores < 2:
        return None
    idle = max(1 - 1 / cores - (view.others_cpu_share or 0.0), 0.0)
    share = _GAIN_OF_CORES * idle * view.share(view.compute_seconds + view.optimizer_seconds)
    return Cause(
        cause="The run computes with one thread, and the other cores are idle.",
        evidence=f"1 thread on {cores:g} usable cores, {percent(idle)} of them idle",
        share=share,
        advice="unset OMP_THREAD_LIMIT, OMP_NUM_THREADS and MKL_NUM_THREADS: the plan takes one thread a core",
    )
