"""Do evaluations take too much of the time?"""

from tui_trainer.doctor.cadence import seldom
from tui_trainer.doctor.contract import BAR_SHARE, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_seconds

_GOOD_SHARE = 0.05


@diagnosis(
    order=220,
    title="Much evaluation",
    guides=("B evaluation and checkpointing", "D both low 3"),
    why="While a run evaluates, it does not train.",
)
def look(view: RunView) -> Cause | None:
    share = view.share(view.evaluation_seconds)
    if share < BAR_SHARE:
        return None
    done = [one for one in view.state.evals if one.scheduled]
    each = sum(one.seconds for one in done) / len(done)
    every = view.plan.eval_every_steps if view.plan else None
    often = f", every {every} steps" if every else ""
    rest = view.whole_seconds - view.evaluation_seconds
    return Cause(
        cause="Evaluations take the time of training.",
        evidence=f"evaluations {percent(share)} of the time: {format_seconds(each)} each{often}",
        share=share,
        fix={"evaluation.eval_steps": seldom(each, rest, _GOOD_SHARE)} if every else None,
        advice="evaluation.max_eval_rows makes each shorter",
    )
