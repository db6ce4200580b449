"""What the losses and gradients say: does the run learn, and does it still?"""

import math
from statistics import fmean, median

from tui_trainer.config.changes import Patch
from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView

_ROSE, _LEAST_NATS, _LOST = 1.1, 0.1, 0.5
_RECENT, _SEEN, _LEAST_NORMS, _TIMES = 20, 500, 60, 10.0
_LEAST_STEPS, _LEAST_FALL = 100, 0.02
_CLEARLY, _LEAST_AFTER = 1.02, 2


def _learning_rate(rate: float) -> Patch:
    """As one would write it, in two digits."""
    return {"training.learning_rate": float(f"{rate:.2g}")}


@diagnosis("Learning rate too high", needs_steps=False)
def learning_rate_high(view: RunView) -> Cause | None:
    """Steps that are too long jump over what they should go down to."""
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
        fix=_learning_rate(lower),
        advice="or more training.warmup_steps",
    )


@diagnosis("Gradients exploding")
def gradients_exploding(view: RunView) -> Cause | None:
    """Clipping shortens them; what makes them long is mostly the learning rate, or rows that do not belong there."""
    norms = [norm for norm in view.state.grad_norms[-_SEEN:] if math.isfinite(norm)]
    if len(norms) < _LEAST_NORMS:
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
        fix={**_learning_rate(rate / 3), "training.max_grad_norm": 1.0} if rate else None,
    )


@diagnosis("Loss not finite", needs_steps=False)
def not_finite(view: RunView) -> Cause | None:
    """In this order: bf16 instead of fp16, a lower learning rate, clipping, more warm-up, the data."""
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
    lower = _learning_rate(rate / 10) if rate else None
    return Cause(
        cause=f"The {'loss or its gradient' if in_training else 'held-out loss'} is not finite, and nothing learned.",
        evidence=f"step {last.step:,}: loss {last.loss:.4g} and gradient norm {last.grad_norm:.4g}",
        share=1.0,
        is_fault=True,
        fix={"training.mixed_precision": "no"} if scaled else lower,
        advice="more training.warmup_steps, a smaller training.max_grad_norm, bf16 instead of fp16; look at the rows",
    )


@diagnosis("Loss flat")
def loss_flat(view: RunView) -> Cause | None:
    """Too low a learning rate, frozen weights, or labels that have nothing to do with the inputs."""
    blocks, plan = view.losses, view.plan
    if len(view.state.steps) < _LEAST_STEPS or len(blocks) < 6:
        return None
    begin, end = blocks[0][1], fmean(loss for _, loss in blocks[-3:])
    if begin <= 0 or abs(begin - end) >= _LEAST_FALL * begin:
        return None
    rate = plan.learning_rate if plan else None
    return Cause(
        cause="The loss does not move: the run learns nothing.",
        evidence=f"loss {begin:.4g} in the first {blocks[0][0]:,} steps, {end:.4g} now, at step {view.state.step:,}",
        share=1.0,
        is_fault=True,
        fix=_learning_rate(3 * rate) if rate else None,
        advice="look at what is learned: tui-trainer preview; labels that do not belong to their rows teach nothing",
    )


@diagnosis("Overfitting")
def overfitting(view: RunView) -> Cause | None:
    """Steps after the best held-out loss cost time and make the model worse."""
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
