"""Is one process of a group slower than the others?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.slowest_rank import slowest_rank


@diagnosis(
    order=125,
    title="One slow process",
    guides=("A several GPUs",),
    why="All processes end a step together: the others wait for the slowest in each.",
)
def look(view: RunView) -> Cause | None:
    found = slowest_rank(view.state)
    if found is None:
        return None
    share = view.share(found.lag_seconds)
    where = "its clock and temperature (nvidia-smi)" if view.on_gpu else "the load of its cores"
    return Cause(
        cause=f"Rank {found.rank} is slower than the others, which wait for it in every step.",
        evidence=f"{view.of_whole(found.lag_seconds)}, {percent(share)} of the time, until rank {found.rank} has come",
        share=share,
        advice=f"look at {where}, and for other programs there; if it stays slow, leave it out "
        "(CUDA_VISIBLE_DEVICES, or fewer distributed.processes)",
    )
