"""Do evaluations take too much of the time?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_seconds


@diagnosis(
    order=220,
    title="Much evaluation",
    guides=("B evaluation and checkpointing", "D both low 3"),
    why="While a run evaluates, it does not train.",
)
def look(view: RunView) -> Cause | None:
    done = [one for one in view.state.evals if one.scheduled]
    if not done:
        return None
    share = view.share(view.evaluation_seconds)
    each = sum(one.seconds for one in done) / len(done)
    every = view.plan.eval_every_steps if view.plan else None
    often = f", every {every} steps" if every else ""
    return Cause(
        cause="Evaluations take the time of training.",
        evidence=f"evaluations {percent(share)} of the time: {format_seconds(each)} each{often}",
        share=share,
        fix={"evaluation.eval_steps": view.seldom(each, view.evaluation_seconds)} if every else None,
        advice="evaluation.max_eval_rows makes each shorter",
    )
