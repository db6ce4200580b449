"""Does emptying the cache cost more than it gives?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView


@diagnosis(
    order=210,
    title="Cache emptied often",
    guides=("B memory leak", "B memory management"),
    why="What is given back is asked for again in the next step; a healthy run needs none of it.",
)
def look(view: RunView) -> Cause | None:
    share = view.share(view.empty_cache_seconds)
    every = view.plan.empty_cache_steps if view.plan else None
    often = f", every {every} steps" if every else ""
    return Cause(
        cause="Collecting garbage and emptying the cache takes the time of training.",
        evidence=f"emptying the cache {percent(share)} of the time: {view.of_whole(view.empty_cache_seconds)}{often}",
        share=share,
        fix={"training.empty_cache_steps": 0},
    )
