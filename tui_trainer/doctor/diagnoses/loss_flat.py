"""Has the loss not moved at all?"""

from tui_trainer.doctor.contract import Cause, diagnosis, two_digits
from tui_trainer.doctor.view import RunView

_LEAST_STEPS, _LEAST_FALL = 100, 0.02


@diagnosis(
    order=40,
    title="Loss flat",
    guides=("C training is unstable 5", "A training strategies 1"),
    why="Too low a learning rate, frozen weights, or labels that have nothing to do with the inputs.",
)
def look(view: RunView) -> Cause | None:
    blocks, plan = view.losses, view.plan
    if len(view.state.steps) < _LEAST_STEPS or len(blocks) < 6:
        return None
    begin, end = blocks[0][1], sum(loss for _, loss in blocks[-3:]) / 3
    if begin <= 0 or abs(begin - end) >= _LEAST_FALL * begin:
        return None
    rate = plan.learning_rate if plan else None
    return Cause(
        cause="The loss does not move: the run learns nothing.",
        evidence=f"loss {begin:.4g} in the first {blocks[0][0]:,} steps, {end:.4g} now, at step {view.state.step:,}",
        share=1.0,
        is_fault=True,
        fix={"training.learning_rate": two_digits(3 * rate)} if rate else None,
        advice="look at what is learned: tui-trainer preview; labels that do not belong to their rows teach nothing",
    )
