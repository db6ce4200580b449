"""Has the loss or its gradient stopped being finite?"""

import math

from tui_trainer.doctor.contract import Cause, diagnosis, two_digits
from tui_trainer.doctor.view import RunView


@diagnosis(
    order=30,
    title="Loss not finite",
    guides=("C bottleneck 4", "C training is unstable"),
    why="The guides' ladder: bf16 instead of fp16, a lower learning rate, clipping, more warm-up, the data.",
    needs_steps=False,
)
def look(view: RunView) -> Cause | None:
    state, plan = view.state, view.plan
    last = state.last_step
    if last is None:
        return None
    # With a scaled loss a gradient that overflows is normal, and its step is passed over.
    scaled = plan is not None and plan.precision == "fp16"
    in_training = not math.isfinite(last.loss) or not (math.isfinite(last.grad_norm) or scaled)
    held_out = bool(state.evals) and not math.isfinite(state.evals[-1].loss)
    if not (in_training or held_out):
        return None
    rate = plan.learning_rate if plan else None
    lower = {"training.learning_rate": two_digits(rate / 10)} if rate else None
    return Cause(
        cause=f"The {'loss or its gradient' if in_training else 'held-out loss'} is not finite, and nothing learned.",
        evidence=f"step {last.step:,}: loss {last.loss:.4g} and gradient norm {last.grad_norm:.4g}",
        share=1.0,
        is_fault=True,
        fix={"training.mixed_precision": "no"} if scaled else lower,
        advice="more training.warmup_steps, a smaller training.max_grad_norm, bf16 instead of fp16; look at the rows",
    )
