"""Does the compiler work again and again?"""

from statistics import median

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_TIMES_AS_LONG, _SEEN = 5.0, 500


@diagnosis(
    order=170,
    title="Compiled again and again",
    guides=("E monitor first epoch", "B advanced 1"),
    why="If all epochs are slow and not only the first, compiling has not paid.",
)
def look(view: RunView) -> Cause | None:
    plan, seconds = view.plan, view.state.step_seconds[-_SEEN:]
    if plan is None or not plan.torch_compile or len(seconds) < 20:
        return None
    later = seconds[len(seconds) // 4 :]
    usual = median(later)
    long = [one - usual for one in later if one > _TIMES_AS_LONG * usual]
    share = sum(long) / sum(later) if sum(later) > 0 else 0.0
    if len(long) < 2:
        return None
    return Cause(
        cause="Layers are compiled again and again, long after the first steps.",
        evidence=f"{len(long)} steps took {_TIMES_AS_LONG:g} times as long as the others: {percent(share)} of the time",
        share=share,
        fix={"training.torch_compile": False},
        advice="or rows of one length: packing, or documents cut to data.max_length",
    )
