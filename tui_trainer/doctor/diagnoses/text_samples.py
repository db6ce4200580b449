"""Do text samples take too much of the time?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_seconds


@diagnosis(
    order=240,
    title="Many text samples",
    guides=("D both low 3",),
    why="A text takes one pass of the model for each of its tokens.",
)
def look(view: RunView) -> Cause | None:
    samples, every = view.state.samples, view.plan.sample_every_steps if view.plan else None
    if not samples:
        return None
    share = view.share(view.sample_seconds)
    each = sum(sample.seconds for sample in samples) / len(samples)
    return Cause(
        cause="The texts that the model writes on the way take the time of training.",
        evidence=f"text samples {percent(share)} of the time: {format_seconds(each)} each, every {every} steps",
        share=share,
        fix={"logging.sample_steps": view.seldom(each, view.sample_seconds)},
    )
