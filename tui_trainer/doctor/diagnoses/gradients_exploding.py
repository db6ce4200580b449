"""Have gradients become many times longer than they were?"""

import math
from statistics import median

from tui_trainer.doctor.contract import Cause, diagnosis, two_digits
from tui_trainer.doctor.view import RunView

_RECENT, _SEEN, _LEAST_STEPS, _TIMES = 20, 500, 60, 10.0


@diagnosis(
    order=20,
    title="Gradients exploding",
    guides=("A training strategies 3", "C training is unstable 3", "E gradient clipping"),
    why="Clipping shortens them; what makes them long is mostly the learning rate, or rows that do not belong there.",
)
def look(view: RunView) -> Cause | None:
    norms = [norm for norm in view.state.grad_norms[-_SEEN:] if math.isfinite(norm)]
    if len(norms) < _LEAST_STEPS:
        return None
    usual, now = median(norms[:-_RECENT]), median(norms[-_RECENT:])
    if usual <= 0 or now < _TIMES * usual or now < 1:
        return None
    rate = view.plan.learning_rate if view.plan else None
    return Cause(
        cause="The gradients explode: training is about to diverge.",
        evidence=f"gradient norm {now:.3g} in the last {_RECENT} steps, {usual:.3g} before: {now / usual:.0f} times",
        share=1.0,
        is_fault=True,
        fix={"training.learning_rate": two_digits(rate / 3), "training.max_grad_norm": 1.0} if rate else None,
    )
