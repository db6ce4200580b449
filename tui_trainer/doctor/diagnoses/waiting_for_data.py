"""Does a step wait for its batch?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.storage import reads_from_disk
from tui_trainer.doctor.view import RunView

_WORKERS = "dataloader.num_workers"


@diagnosis(
    order=200,
    title="Waiting for data",
    guides=("C bottleneck 3", "C bottleneck 1", "D low GPU 2", "D low CPU 1", "E common issues"),
    why="A processor that waits for its batch computes nothing meanwhile.",
)
def look(view: RunView) -> Cause | None:
    share = view.share(view.data_seconds)
    if reads_from_disk(view):
        return None
    workers = view.plan.loader_workers if view.plan else None
    more = 2 * workers if workers else 1
    return Cause(
        cause="Training waits for its data.",
        evidence=f"data {percent(share)} of the time: {view.of_whole(view.data_seconds)}",
        share=share,
        fix={_WORKERS: more} if workers is not None else None,
        advice="" if workers is None else "batches are then made by threads while the step before computes",
    )
