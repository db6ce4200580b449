"""Does the loss rise because the learning rate is too high?"""

from tui_trainer.doctor.contract import Cause, diagnosis, two_digits
from tui_trainer.doctor.view import RunView

_ROSE, _LEAST_NATS = 1.1, 0.1
_LOST = 0.5


@diagnosis(
    order=10,
    title="Learning rate too high",
    guides=("C training is unstable 1", "C training is unstable 2", "A training strategies 1"),
    why="Steps that are too long jump over what they should go down to.",
    needs_steps=False,
)
def look(view: RunView) -> Cause | None:
    blocks, plan = view.losses, view.plan
    if len(blocks) < 4:
        return None
    first, (last_step, last) = blocks[0][1], blocks[-1]
    best_step, best = min(blocks, key=lambda block: block[1])
    worst_step, worst = max(blocks[1:], key=lambda block: block[1])
    has_risen = worst > max(_ROSE * first, first + _LEAST_NATS)
    # Half of what was learned is lost again, and more than the noise of a stretch.
    has_lost = last - best > max(_LOST * (first - best), _ROSE * best - best + _LEAST_NATS) and best_step < last_step
    rate = plan.learning_rate if plan else None
    most = plan.most_learning_rate if plan else None
    above = rate is not None and most is not None and rate > most
    if not (has_risen or has_lost or (above and last - best > _LEAST_NATS)):
        return None
    rate = rate or max(view.state.lrs, default=0.0)
    curve = f"{first:.3g} at first, {worst:.3g} at step {worst_step:,}, {last:.3g} now, at step {last_step:,}"
    limit = f", and {most:g} is where training tends to diverge" if above and most is not None else ""
    lower = most / 3 if above and most is not None and most < rate / 3 else rate / 10
    return Cause(
        cause="The learning rate is too high: the loss rises instead of falling.",
        evidence=f"loss {curve}; learning rate {rate:g}{limit}",
        share=1.0,
        is_fault=True,
        fix={"training.learning_rate": two_digits(lower)},
        advice="or more training.warmup_steps",
    )
