"""Does the held-out loss rise while the training loss falls?"""

import math

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_CLEARLY = 1.02
_LEAST_AFTER = 2


@diagnosis(
    order=290,
    title="Overfitting",
    guides=("A training strategies 2", "A training strategies 4"),
    why="Steps after the best held-out loss cost time and make the model worse.",
)
def look(view: RunView) -> Cause | None:
    evals = [done for done in view.state.evals if math.isfinite(done.loss)]
    blocks = view.losses
    if not evals or len(blocks) < 2:
        return None
    best = min(evals, key=lambda done: done.loss)
    after = [done for done in evals if done.step > best.step]
    if len(after) < _LEAST_AFTER or after[-1].loss < _CLEARLY * best.loss:
        return None
    at_best = [loss for step, loss in blocks if step >= best.step][:1]
    if not at_best or blocks[-1][1] >= at_best[0]:
        return None
    share = 1 - best.step / max(view.state.step, 1)
    return Cause(
        cause="The run learns its rows by heart: what it has not seen becomes worse.",
        evidence=(
            f"held-out loss {best.loss:.4g} at step {best.step:,}, {after[-1].loss:.4g} at step {after[-1].step:,}; "
            f"training loss {at_best[0]:.4g} then, {blocks[-1][1]:.4g} now; {percent(share)} of the steps came after"
        ),
        share=share,
        fix={"evaluation.early_stopping_patience": 3},
        advice="or fewer epochs, more data, a smaller model, dropout or weight decay",
    )
