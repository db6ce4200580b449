"""Is there time between steps that nothing accounts for?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView


@diagnosis(
    order=260,
    title="Time between steps",
    guides=("D both low", "E still slow"),
    why="Evaluations, checkpoints, samples, the journal and the cache are timed; the rest should be next to nothing.",
)
def look(view: RunView) -> Cause | None:
    share = view.share(view.other_seconds)
    return Cause(
        cause="Something between the steps takes time, and it is none of the parts that are timed.",
        evidence=f"unaccounted {percent(share)} of the time: {view.of_whole(view.other_seconds)}",
        share=share,
        advice="old checkpoints that are slowly removed, failed saves or samples, a machine that swaps: see the events",
    )
