"""Rules about the optimizer, the learning rate, the number of steps, and whether the loss still falls."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    Cause,
    Remedy,
    Rule,
    Verdict,
    fault,
    not_applicable,
    passed,
    rule,
    symptom,
    warned,
)
from tui_trainer.advice.remedies import fitting_patch, is_short, smaller_model_advice
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import Patch, with_changes
from tui_trainer.config.sections import TrainingSection
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, SCHEDULE_KEY, WARMUP_KEY
from tui_trainer.methods.optimizers import ADAFACTOR, DEFAULT, OPTIMIZER_KEY, OPTIMIZERS
from tui_trainer.planning.automatic_values import PRECISION_KEY
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import EFFECTIVE_BATCH_KEY, base_rows
from tui_trainer.planning.effective_batch import EPOCHS_KEY, GOOD_STEPS, MOST_EPOCHS, WARNED_STEPS
from tui_trainer.planning.learning_rates import LEARNING_RATE, peak_rate, scaling_of, what_trains
from tui_trainer.runs.events import NO_GRADIENT, PlanMade
from tui_trainer.runs.steps_and_eta import interval_steps
from tui_trainer.runs.wording import planned_time_words
from tui_trainer.units import format_bytes, format_count, format_seconds, quantity

_MAX_STEPS = "training.max_steps"
_DECAY, _MAX_GRAD_NORM = "training.num_decay_steps", "training.max_grad_norm"
_WEIGHT_DECAY = "training.weight_decay"
# After this many epochs, rows are memorised. Half as many epochs are proposed.
_MOST_EPOCHS = 50
_GOOD_EPOCHS = 25
_DAY_SECONDS = 86_400.0
# The planned time is right within 15 % once steps were measured, and evaluations add to the time of the steps.
_FIX_SHARE = 0.8
# A loss has risen if it is higher than at the start by this share and by this many nats.
_RISE_SHARE = 0.1
_LEAST_NATS = 0.1
# A loss has risen again if it is back up by this share of its fall.
_LOST_SHARE = 0.5
# Two means differ by more than chance if they are this many standard errors apart.
_CLEAR_STANDARD_ERRORS = 4.0
# A loss is flat if it fell by less than this share in this number of steps or more.
_LEAST_FLAT_STEPS = 100
_LEAST_FALL = 0.02
# A recipe's learning rate is scaled if the rows per step differ from the recipe's by this factor or more.
_LEAST_RATIO = 4.0
# MiniCPM, arXiv:2404.06395, section 4.3: a decay over 10 % of the tokens is enough.
_GOOD_DECAY = 0.1
_GOOD_WARMUP = TrainingSection().warmup_steps
# With a longer warm-up, a large part of the run has a low learning rate.
_MOST_WARMUP = 0.2
_GOOD_NORM = 1.0
# Gradient norms of a run that learns are smaller, so a higher limit would clip nothing.
_MOST_NORM = 10.0
# The gradient norms of the last steps are compared with those of at least twice as many steps before them.
_RECENT_STEPS = 20
_SEEN_STEPS = 500
_LEAST_NORMS = 60
_EXPLOSION_RATIO = 10.0
# Multiples of the usual learning rate that are tried one after the other. Source: ModelForge's guide on performance.
# It begins with LoRA's usual 2e-4, and then tries 3e-4 or 5e-4 if the run is stable, else 1e-4.
_RATE_FACTORS = (0.5, 1.0, 1.5, 2.5)
# A learning rate that differs by a smaller factor gives about the same result.
_LEAST_RATE_RATIO = 1.4
# A spike is a loss of this many times the median of the steps around it, and this many deviations above the median.
_SPIKE_RATIO = 1.5
_NEIGHBOUR_STEPS = 10
_DEVIATIONS = 8.0
# One or two spikes may be unusual batches.
_LEAST_SPIKES = 3
_SHOWN_SPIKES = 5
# If all spikes are within this first part of the run, they come from the warm-up.
_EARLY_SHARE = 0.2
# Rows are named only if fewer rows than this would be in spikes of every epoch by chance.
_MOST_CHANCE = 0.1
# After this many steps it is clear whether the run learns at all.
_FIRST_STEPS = 20
# Smaller differences between losses come from rounding.
_ROUNDING_SHARE = 1e-6
# A mean loss of the first steps that is this far above random guessing is not noise of a few rows.
_HIGH_LOSS_RATIO = 1.25
_LEAST_ABOVE_NATS = 0.5
_FIRST_LOSSES = 5
_USUAL_DECAY = 0.01
_STRONG_DECAY = 0.1
# If weight decay shrinks weights faster than this, they do not follow their gradients.
_MOST_DECAY = 0.5


def _remedies_of_optimizer(basis: Basis, budget: float) -> Iterator[Remedy]:
    """Yield optimizers that need less memory: with 8-bit state, from libraries, or without momentum (Adafactor)."""
    smaller_names, on_gpu = OPTIMIZERS[basis.setup.optim].smaller, basis.setup.device == "cuda"
    library_names = [name for name in smaller_names if OPTIMIZERS[name].library]
    available = [name for name in library_names if basis.hardware.libraries.get(OPTIMIZERS[name].library)]
    available = [name for name in available if on_gpu or not OPTIMIZERS[name].needs_gpu]
    # If no library is installed, suggest the first optimizer from a library, but only on a GPU.
    for name in available or (library_names[:1] if on_gpu else []):
        missing_library = "" if name in available else OPTIMIZERS[name].library
        yield Remedy(patch={OPTIMIZER_KEY: name}, rank=5, missing_library=missing_library)
    for name in smaller_names:
        if not OPTIMIZERS[name].library:
            yield Remedy(patch={OPTIMIZER_KEY: name}, rank=8)


@rule("Optimizer", 120, OPTIMIZER_KEY, LEARNING_RATE, fallback=DEFAULT, remedies=_remedies_of_optimizer)
def optimizer(context: Context) -> Verdict:
    """A fused optimizer takes one pass over the weights instead of one per operation and tensor."""
    plan, optimizer = context.required_plan, OPTIMIZERS[context.config.training.optim]
    name = optimizer.label
    switch = f"{name} on, gradients set to None"
    size = sum(part.bytes for part in plan.memory_parts if part.name == "optimizer")
    sentence = f"{name} on {format_count(plan.trained_parameters.value)} parameters, {format_bytes(size)} of state"
    if optimizer.warning:
        fix = {OPTIMIZER_KEY: DEFAULT} | _rate_for_adamw(context)
        return warned(f"{sentence}: {optimizer.warning}", fix=fix, switch_state=switch)
    if is_short(context) and (other_name := (fitting_patch(context) or {}).get(OPTIMIZER_KEY)):
        sentence += f"; memory is short, and {OPTIMIZERS[other_name].label} needs less"
        return warned(sentence, fix={OPTIMIZER_KEY: other_name}, switch_state=switch)
    details = (optimizer.cpu_note,) if optimizer.cpu_note and plan.device == "cpu" else ()
    sentence += "; gradients are set to None, not to zero"
    other_name = ADAFACTOR if context.config.training.optim == DEFAULT else DEFAULT
    return passed(sentence, *details, switch_state=switch, opposite_patch={OPTIMIZER_KEY: other_name})


def _rate_for_adamw(context: Context) -> dict[str, str]:
    """Return `learning_rate = auto` if the present rate suits only the present optimizer and not AdamW; else {}."""
    config, rate = context.config, context.config.training.learning_rate
    if OPTIMIZERS[config.training.optim].learning_rates is OPTIMIZERS[DEFAULT].learning_rates:
        return {}
    usual_rates = peak_rate(with_changes(config, {OPTIMIZER_KEY: DEFAULT}), context.required_plan.parameters.value)
    return {} if rate == "auto" or usual_rates.least <= rate <= usual_rates.most else {LEARNING_RATE: "auto"}


@rule("Number of steps", 400, EPOCHS_KEY, _MAX_STEPS)
def steps(context: Context) -> Verdict:
    """Warm-up and decay alone need dozens of updates; after dozens of epochs a model only memorises."""
    plan = context.required_plan
    steps, epochs = plan.total_steps.value, round(context.epochs, 2)
    epochs_text = f"{quantity(epochs, 'epoch')} of {quantity(plan.steps_per_epoch.value, 'step')}"
    sentence = f"{quantity(steps, 'step')}, {epochs_text}"
    # A pretrained model learns from few rows in few steps, if it reads them often enough.
    if steps < WARNED_STEPS and (epochs < MOST_EPOCHS or context.config.is_from_scratch):
        # Change the setting that determines the number of steps now.
        good_epochs = float(math.ceil(GOOD_STEPS / plan.steps_per_epoch.value))
        has_max_steps = bool(context.config.training.max_steps)
        fix: Patch = {_MAX_STEPS: GOOD_STEPS} if has_max_steps else {EPOCHS_KEY: good_epochs}
        return warned(f"{sentence}: too few updates to learn much", fix=fix)
    stops_early = context.config.evaluation.early_stopping_patience > 0
    limit = max(GOOD_STEPS, _GOOD_EPOCHS * plan.steps_per_epoch.value)
    if epochs > _MOST_EPOCHS and steps > limit and not stops_early:
        return warned(f"{sentence}: after so many epochs the model only memorises", fix=context.step_limit_patch(limit))
    return passed(sentence)


@rule("Training time", 410, EPOCHS_KEY, _MAX_STEPS)
def duration(context: Context) -> Verdict:
    """Before a run that takes longer than a day, try a smaller one."""
    plan = context.required_plan
    seconds, step_seconds = context.duration_seconds, context.step_seconds
    if seconds is None or step_seconds is None:
        return not_applicable(f"{plan.total_steps.value:,} steps; the time is unknown: {plan.step_seconds.reason}")
    time_text = planned_time_words(seconds, is_measured=plan.has_measured_steps)
    sentence = f"{time_text}: {plan.total_steps.value:,} steps of {format_seconds(step_seconds)}"
    if seconds <= _DAY_SECONDS:
        return passed(sentence, plan.step_seconds.reason)
    start_seconds = (plan.beginning_seconds and plan.beginning_seconds.value) or 0.0
    share = (_DAY_SECONDS - start_seconds) / max(seconds - start_seconds, step_seconds)
    day_steps = int(plan.total_steps.value * share * _FIX_SHARE)
    if day_steps < 1:
        why = "one step takes a day"
        if start_seconds > step_seconds:
            why = f"{format_seconds(start_seconds)} pass before the first step"
        return warned(sentence, plan.step_seconds.reason, advice=f"{smaller_model_advice(context)}: {why}")
    return warned(f"{sentence}; more than a day", plan.step_seconds.reason, fix=context.step_limit_patch(day_steps))


@symptom("Weights without a gradient", needs_steps=False)
def no_gradient(view: RunView) -> Cause | None:
    """Weights without a gradient never change, although a loss is still reported."""
    problem = next((event for event in view.state.problems if event.kind == NO_GRADIENT), None)
    if problem is not None:
        cause = "No gradient reaches some or all of the trainable weights."
        return fault(cause=cause, evidence=problem.message, advice=problem.hint)
    norms = view.state.grad_norms[:_FIRST_STEPS]
    if len(norms) < _FIRST_STEPS or any(norms):
        return None
    adapters_note = ", with adapters on frozen weights" if view.plan and view.plan.lora_rank else ""
    return fault(
        cause="The gradient is 0, so nothing is learned.",
        evidence=f"gradient norm 0 in each of the first {_FIRST_STEPS} steps{adapters_note}",
        advice="check the labels (tui-trainer preview) and which weights are trainable (tui-trainer plan)",
    )


@symptom("Initial loss too high", needs_steps=False)
def begins_high(view: RunView) -> Cause | None:
    """A pretrained model does better than random guessing. If it does worse, its weights are not the trained ones, or
    its input is not in the form that it was trained on."""
    choices, losses = view.state.data.choices if view.state.data else 0, view.step_losses[:_FIRST_LOSSES]
    if choices < 2 or len(losses) < _FIRST_LOSSES or not (view.plan and view.plan.base_model):
        return None
    guess_loss, mean_loss = math.log(choices), fmean(losses)
    # The first loss is that of the initial model. The mean of the first losses rules out an unusual first batch.
    if not min(losses[0], mean_loss) > _HIGH_LOSS_RATIO * guess_loss + _LEAST_ABOVE_NATS:
        return None
    return fault(
        cause="The initial loss is far above that of random guessing.",
        evidence=f"loss {losses[0]:.3g} at step 1; random guessing among {choices:,} choices gives {guess_loss:.3g}",
        advice="check that weights and tokenizer belong together; `tui-trainer preview` shows what the model reads",
    )


@symptom("Constant loss", needs_steps=False)
def loss_unmoved(view: RunView) -> Cause | None:
    """The loss differs between rows and changes with learning: a constant loss depends on neither rows nor weights."""
    losses = view.step_losses[:_FIRST_STEPS]
    if len(losses) < _FIRST_STEPS or not all(map(math.isfinite, losses)) or not losses[0] > 0:
        return None
    if max(losses) - min(losses) > _ROUNDING_SHARE * losses[0]:
        return None
    return fault(
        cause="The loss is constant: the model's output depends neither on its weights nor on the rows.",
        evidence=f"loss {losses[0]:.6g} in each of the first {_FIRST_STEPS} steps",
        advice="check dropout in the model's config.json, and whether rows differ (tui-trainer preview)",
    )


learns_at_all = Rule(
    name="learns_at_all",
    title="The model learns",
    why="A run that learns nothing looks like any other and is just as fast.",
    symptoms=(no_gradient, begins_high, loss_unmoved),
)


@symptom("Learning rate too high", needs_steps=False)
def learning_rate_high(view: RunView) -> Cause | None:
    """Steps that are too large overshoot the minimum."""
    blocks, plan = view.losses, view.plan
    if len(blocks) < 4:
        return None
    width = max(1, len(blocks) // 5)
    means = [fmean(loss for _, loss in blocks[start : start + width]) for start in range(len(blocks) - width + 1)]
    first_loss, last_loss, best_loss = blocks[0][1], means[-1], min(means[:-width] or means[:1])
    best_step, last_step = blocks[means.index(best_loss) + width - 1][0], blocks[-1][0]
    noise = _CLEAR_STANDARD_ERRORS * view.loss_error
    has_risen = last_loss - first_loss > max(_RISE_SHARE * first_loss, _LEAST_NATS, noise * math.sqrt(1 + 1 / width))
    # For a rate above `most_rate`, a rise beyond noise is enough. For others, half of the fall must be lost.
    rise, fall = max(_LEAST_NATS, noise * math.sqrt(2 / width)), first_loss - best_loss
    has_lost = last_loss - best_loss > max(_LOST_SHARE * fall, _RISE_SHARE * best_loss + _LEAST_NATS, rise)
    rate = plan.learning_rate if plan else None
    most_rate = plan.most_learning_rate if plan else None
    is_above = rate is not None and most_rate is not None and rate > most_rate
    if not (has_risen or has_lost or (is_above and last_loss - best_loss > rise)):
        return None
    rate = rate or max(view.state.lrs, default=0.0)
    curve = f"{first_loss:.3g} initially, {best_loss:.3g} at step {best_step:,}, {last_loss:.3g} at step {last_step:,}"
    limit_text = f"; training tends to diverge above {most_rate:g}" if is_above and most_rate is not None else ""
    return fault(
        cause=f"The learning rate is too high: the loss rises {'instead of falling' if has_risen else 'again'}.",
        evidence=f"loss {curve}; learning rate {rate:g}{limit_text}",
        fix=_lower_rate_patch(plan, rate),
        advice="or raise training.warmup_steps",
    )


@symptom("Loss not finite", needs_steps=False)
def not_finite(view: RunView) -> Cause | None:
    """Try in this order: bf16 instead of fp16, a lower learning rate, clipping, more warm-up; then check the data."""
    state, plan = view.state, view.plan
    last_step = state.last_step
    if last_step is None:
        return None
    # With a scaled loss (fp16), an overflowing gradient is normal, and its step is skipped.
    is_scaled = plan is not None and plan.precision == "fp16"
    in_training = not math.isfinite(last_step.loss) or not (math.isfinite(last_step.grad_norm) or is_scaled)
    in_evals = bool(state.evals) and not math.isfinite(state.evals[-1].loss)
    if not (in_training or in_evals):
        return None
    fix = _lower_rate_patch(plan, plan.learning_rate if plan else None)
    if plan is not None and is_scaled:
        fix = {PRECISION_KEY: "bf16" if plan.best_precision == "bf16" else "no"}
    return fault(
        cause=f"The {'loss or gradient' if in_training else 'held-out loss'} is NaN or infinite: nothing is learned.",
        evidence=f"step {last_step.step:,}: loss {last_step.loss:.4g} and gradient norm {last_step.grad_norm:.4g}",
        fix=fix,
        advice="try more training.warmup_steps or a smaller training.max_grad_norm; check the rows",
    )


@symptom("Loss is flat")
def loss_flat(view: RunView) -> Cause | None:
    """Usual reasons are a learning rate that is too low, frozen weights, or labels unrelated to the inputs."""
    blocks, plan = view.losses, view.plan
    if len(view.state.steps) < _LEAST_FLAT_STEPS or len(blocks) < 6:
        return None
    first_loss, last_loss = blocks[0][1], fmean(loss for _, loss in blocks[-3:])
    # A small fall counts if it is not chance, because pretrained models begin close to their final loss.
    has_fallen = first_loss - last_loss > _CLEAR_STANDARD_ERRORS * view.loss_error * math.sqrt(1 + 1 / 3)
    if first_loss <= 0 or has_fallen or abs(first_loss - last_loss) >= _LEAST_FALL * first_loss:
        return None
    rate, usual_rate = (plan.learning_rate, plan.usual_learning_rate) if plan else (None, None)
    higher_rate = (_adjacent_rate(plan, rate, 1) or 3 * rate) if rate else None
    can_rise = higher_rate and not (plan and plan.most_learning_rate and higher_rate > plan.most_learning_rate)
    rates_text = f"; learning rate {rate:g}" if rate else ""
    rates_text += f" ({usual_rate:g} is usual for this model and effective batch)" if rate and usual_rate else ""
    return fault(
        cause="The loss is flat: the run learns nothing.",
        evidence=f"loss {first_loss:.4g} in the first {blocks[0][0]:,} steps, "
        f"{last_loss:.4g} around step {view.state.step:,}{rates_text}",
        fix=_rate_patch(higher_rate) if higher_rate and can_rise else None,
        advice="check the labels (tui-trainer preview): labels that do not match their rows teach nothing",
    )


@symptom("Learning rate could be higher", least_share=0, needs_health=True)
def rate_could_rise(view: RunView) -> Cause | None:
    """After a stable run, a higher learning rate is worth a try. Adapters start at zero and tolerate higher ones."""
    blocks, plan = view.losses, view.plan
    if not (view.is_over and view.state.failed is None and plan and plan.learning_rate and plan.usual_learning_rate):
        return None
    higher_rate = _adjacent_rate(plan, plan.learning_rate, 1)
    if higher_rate and not plan.lora_rank and higher_rate > plan.usual_learning_rate:
        return None
    section = len(blocks) // 3
    if not higher_rate or section < 2:
        return None
    means = [fmean(loss for _, loss in blocks[section * part :][:section]) for part in range(3)]
    evals = [evaluation.loss for evaluation in view.state.evals]
    ends_best = not evals or evals[-1] <= min(evals)
    if not (means[0] > means[1] > means[2] and ends_best) or _spikes(view):
        return None
    first, last = blocks[0][1], blocks[-1][1]
    return Cause(
        cause="The run was stable and still learning at its end: a higher learning rate may reach a lower loss.",
        evidence=f"loss fell from {first:.3g} to {last:.3g} without a spike at learning rate {plan.learning_rate:g}; "
        f"{plan.usual_learning_rate:g} is usual for this model and effective batch",
        fix=_rate_patch(higher_rate),
    )


def _adjacent_rate(plan: PlanMade | None, rate: float, direction: int) -> float | None:
    """Return the next higher (`direction` 1) or lower (-1) of the usual learning rates; None if there is none."""
    if plan is None or plan.usual_learning_rate is None:
        return None
    rates = [share * plan.usual_learning_rate for share in _RATE_FACTORS]
    if direction > 0:
        return next((usual for usual in rates if usual >= _LEAST_RATE_RATIO * rate), None)
    return next((usual for usual in reversed(rates) if _LEAST_RATE_RATIO * usual <= rate), None)


def _lower_rate_patch(plan: PlanMade | None, rate: float | None) -> Patch | None:
    """Return the setting for a lower learning rate: the usual one, or the next lower one, or a third of the present."""
    usual_rate = plan.usual_learning_rate if plan else None
    if not rate:
        return None
    if usual_rate and rate >= _LEAST_RATE_RATIO * usual_rate:
        return _rate_patch(usual_rate)
    return _rate_patch(_adjacent_rate(plan, rate, -1) or rate / 3)


@rule(
    "Learning rate",
    420,
    LEARNING_RATE,
    PRECISION_KEY,
    symptoms=(learning_rate_high, not_finite, loss_flat, rate_could_rise),
)
def learning_rate(context: Context) -> Verdict:
    """Too high, and the loss jumps or becomes NaN; too low, and the run ends before it has learned enough."""
    rate, parameters = context.required_plan.learning_rate, context.required_plan.parameters.value
    rates, subject = peak_rate(context.config, parameters), what_trains(context.config, parameters)
    sentence = f"peak learning rate {rate.value:g}, {rate.reason}"
    if rate.value > rates.most:
        sentence += f": above {rates.most:g}, where {subject} tends to diverge"
        return warned(sentence, fix={LEARNING_RATE: "auto"})
    if rate.value < rates.least:
        return warned(f"{sentence}: below {rates.least:g}, {subject} hardly changes", fix={LEARNING_RATE: "auto"})
    return passed(f"{sentence}; {rates.least:g} to {rates.most:g} suits {subject}")


def _rate_patch(rate: float) -> Patch:
    """Return the setting for a learning rate, rounded to two digits as a user would write it."""
    return {LEARNING_RATE: float(f"{rate:.2g}")}


@rule("Learning rate scaling", 430, LEARNING_RATE)
def lr_scaling(context: Context) -> Verdict:
    """A gradient over more rows is less noisy, so the learning rate can be higher.

    Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677 (linear); Krizhevsky,
    arXiv:1404.5997 (square root)."""
    loaded, recipe = context.loaded, context.loaded.recipe
    recipe_values: dict[str, Any] = recipe.values.get("training", {}) if recipe else {}
    rate, rows = recipe_values.get("learning_rate"), recipe_values.get("effective_batch_size")
    if rows == "auto":
        rows = base_rows(loaded)[0]
    if recipe is None or not rate or not rows:
        return not_applicable("no recipe gives a learning rate together with a batch size")
    effective = context.required_plan.effective_batch_size.value
    if rate == "auto":
        peak = context.required_plan.learning_rate.value
        text = f"recipe {recipe.name} sets the learning rate to auto, which is {peak:g} for {effective} rows per step"
        return not_applicable(text)
    if scaling_of(loaded) != "none":
        planned_rate = context.required_plan.learning_rate
        return passed(f"learning rate {planned_rate.value:g}: {planned_rate.reason}")
    sentence = f"recipe {recipe.name} has learning rate {rate:g} for {rows} rows per step; here, a step has {effective}"
    if loaded.origin(LEARNING_RATE).by_user:
        return passed(f"{sentence}; you set the learning rate to {context.required_plan.learning_rate.value:g}")
    ratio = effective / rows
    if 1 / _LEAST_RATIO < ratio < _LEAST_RATIO:
        return passed(sentence)
    most_rate = max(rate, peak_rate(context.config, context.required_plan.parameters.value).most)
    scaled_rate = float(f"{min(rate * math.sqrt(ratio), most_rate):.3g}")
    advice = f"scaled with the square root of {ratio:.3g} (ratio of rows); linear scaling gives {rate * ratio:.3g}"
    advice += f". {EFFECTIVE_BATCH_KEY} does not change. To keep the learning rate, set it yourself"
    return warned(sentence, fix={LEARNING_RATE: scaled_rate}, advice=advice)


@rule("Learning rate schedule", 440, SCHEDULE_KEY, _DECAY)
def schedule(context: Context) -> Verdict:
    """Small steps at the end refine what large steps found.

    Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983. Hu et al., MiniCPM, arXiv:2404.06395, section 4.3: a
    decay over 10 % of the tokens is enough."""
    training, plan = context.config.training, context.required_plan
    name, rate, total_steps = training.lr_scheduler_type, plan.learning_rate.value, plan.total_steps.value
    constant_text = f"{name}: the learning rate stays at {rate:g} to the end"
    if not LR_SCHEDULES[name].goes_down:
        return warned(constant_text, fix={SCHEDULE_KEY: "cosine"})
    if LR_SCHEDULES[name].has_decay_steps and not training.num_decay_steps:
        return warned(constant_text, fix={_DECAY: _GOOD_DECAY})
    if decay := plan.decay_steps:
        if 0 < decay.value < interval_steps(training.num_decay_steps, total_steps):
            return warned(f"{name}: decays from {rate:g} over {decay.reason}", fix={_DECAY: _GOOD_DECAY})
        return passed(f"{name}: decays from {rate:g} in the last {decay.value:,} of {total_steps:,} steps")
    return passed(f"{name}: decays from {rate:g} over {total_steps:,} steps")


@rule("Warm-up", 450, WARMUP_KEY)
def warmup(context: Context) -> Verdict:
    """AdamW's running averages are unreliable at first, so full steps can spoil the start.

    Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, section 2.2."""
    plan = context.required_plan
    scheduler = context.config.training.lr_scheduler_type
    if not LR_SCHEDULES[scheduler].warms_up:
        return not_applicable(f"the {scheduler} schedule has no warm-up")
    warmup_steps, total = plan.warmup_steps.value, plan.total_steps.value
    if warmup_steps == 0 and total > 1:
        rate = plan.learning_rate.value
        return warned(f"no warm-up: step 1 of {total:,} has the learning rate {rate:g}", fix={WARMUP_KEY: _GOOD_WARMUP})
    sentence = f"{warmup_steps:,} of {total:,} steps, {warmup_steps / total:.0%}"
    if warmup_steps >= total or warmup_steps > max(1, _MOST_WARMUP * total):
        return warned(f"{sentence}, so much of the run has a low learning rate", fix={WARMUP_KEY: _GOOD_WARMUP})
    return passed(sentence)


@symptom("Gradients exploding")
def gradients_exploding(view: RunView) -> Cause | None:
    """Clipping limits gradients; the usual reasons for large ones are the learning rate and faulty rows."""
    norms = [norm for norm in view.state.grad_norms[-_SEEN_STEPS:] if math.isfinite(norm)]
    if len(norms) < _LEAST_NORMS:
        return None
    usual, now = median(norms[:-_RECENT_STEPS]), median(norms[-_RECENT_STEPS:])
    if usual <= 0 or now < _EXPLOSION_RATIO * usual or now < 1:
        return None
    lower_rate = _lower_rate_patch(view.plan, view.plan.learning_rate if view.plan else None)
    ratio_text = f"{now / usual:.0f} times the {usual:.3g} before"
    return fault(
        cause="The gradients explode: training is about to diverge.",
        evidence=f"gradient norm {now:.3g} in the last {_RECENT_STEPS} steps, {ratio_text}",
        fix={**lower_rate, _MAX_GRAD_NORM: _GOOD_NORM} if lower_rate else None,
    )


@symptom("Loss spikes")
def loss_spikes(view: RunView) -> Cause | None:
    """A loss spike undoes many steps; if the same rows cause it, no setting helps."""
    # Packing cannot cause spikes: a step learns from the same rows, packed or not, with the same gradient.
    spikes, plan = _spikes(view), view.plan
    if len(spikes) < _LEAST_SPIKES or plan is None:
        return None
    total = max(view.state.total_steps, 1)
    shown = ", ".join(f"{step:,}" for step in spikes[:_SHOWN_SPIKES])
    evidence = f"{len(spikes)} steps have more than {_SPIKE_RATIO:g} times the loss of their neighbours"
    evidence += f", the first at steps {shown}"
    count = view.state.data.rows if view.state.data else 0
    # The order of the rows follows from the seed, unless rows are grouped by length.
    is_known = plan.seed is not None and not plan.group_by_length and count
    rows = _rows_in_spikes(plan, plan.seed or 0, count, spikes) if is_known else None
    if rows:
        rows_text = ", ".join(map(str, rows[:_SHOWN_SPIKES]))
        return fault(
            cause="The loss spikes at the same rows in each epoch: something is wrong with them.",
            evidence=f"{evidence}; row {rows_text} of {count:,} (counted from 0) is in one of them in each epoch",
            advice="inspect these rows with tui-trainer preview, then correct or remove them",
        )
    warmup_steps, fix = plan.warmup_steps, _lower_rate_patch(plan, plan.learning_rate)
    if warmup_steps is not None and warmup_steps < _GOOD_WARMUP * total and spikes[-1] < _EARLY_SHARE * total:
        fix = {WARMUP_KEY: _GOOD_WARMUP}
    elif plan.max_grad_norm == 0 or (plan.max_grad_norm or 0.0) > _MOST_NORM:
        fix = {_MAX_GRAD_NORM: _GOOD_NORM}
    elif plan.precision == "fp16" and plan.best_precision == "bf16":
        fix = {PRECISION_KEY: "bf16"}
    return fault(
        cause="Training is unstable: the loss spikes repeatedly.",
        evidence=evidence + ("" if rows is None else "; no particular row causes them"),
        fix=fix,
        advice="then try a lower learning rate, longer warm-up and clipping, one after the other",
    )


def _spikes(view: RunView) -> list[int]:
    """Return the steps of the last start whose loss is far above the median loss of the steps around them."""
    steps, losses = view.state.steps, view.step_losses
    begin = max(len(losses) - view.state.steps_since_start, 0)
    spikes = []
    for index in range(begin, len(losses)):
        neighbours = losses[max(index - _NEIGHBOUR_STEPS, begin) : index + _NEIGHBOUR_STEPS + 1]
        window = [loss for loss in neighbours if math.isfinite(loss)]
        if len(window) < _NEIGHBOUR_STEPS or not math.isfinite(losses[index]):
            continue
        usual_loss = median(window)
        spread = median(abs(loss - usual_loss) for loss in window)
        if losses[index] > max(_SPIKE_RATIO * usual_loss, usual_loss + _DEVIATIONS * spread, usual_loss + _LEAST_NATS):
            spikes.append(steps[index])
    return spikes


def _rows_in_spikes(plan: PlanMade, seed: int, count: int, spikes: Sequence[int]) -> list[int]:
    """Return the data rows that were in a spike in every epoch with spikes. `count` is the number of all rows. The list
    is empty if this may be chance, and if fewer than two epochs have spikes."""
    order = RowOrder(np.zeros(count, dtype=np.int64), effective_batch=plan.effective_batch_size, seed=seed)
    rows_by_epoch: dict[int, set[int]] = {}
    for step in spikes:
        rows_by_epoch.setdefault((step - 1) // order.steps_per_epoch, set()).update(map(int, order.at(step)))
    chance_rows = count * math.prod(len(rows) / count for rows in rows_by_epoch.values())
    if len(rows_by_epoch) < 2 or chance_rows > _MOST_CHANCE:
        return []
    return sorted(set.intersection(*rows_by_epoch.values()))


@rule(
    "Gradient clipping", 460, _MAX_GRAD_NORM, LEARNING_RATE, WARMUP_KEY, PRECISION_KEY,
    needs_plan=False, symptoms=(gradients_exploding, loss_spikes),
)  # fmt: skip
def clipping(context: Context) -> Verdict:
    """Gradients have rare outliers; without a limit one of them undoes hundreds of steps.

    Source: Pascanu et al., On the difficulty of training recurrent neural networks, arXiv:1211.5063.
    """
    limit = context.config.training.max_grad_norm
    if limit == 0:
        return warned("max_grad_norm 0: a single bad row can spoil the weights", fix={_MAX_GRAD_NORM: _GOOD_NORM})
    if limit > _MOST_NORM:
        sentence = f"max_grad_norm {limit:g}: larger than gradients ever get, so nothing is clipped"
        return warned(sentence, fix={_MAX_GRAD_NORM: _GOOD_NORM})
    return passed(f"gradients are clipped to norm {limit:g}; a NaN or infinite gradient changes no weight")


@rule("Weight decay", 470, _WEIGHT_DECAY, needs_plan=False)
def weight_decay(context: Context) -> Verdict:
    """Weight decay keeps weights that the text does not need small, which helps most over many epochs.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101."""
    decay, tuning = context.config.training.weight_decay, context.config.tuning
    if decay and tuning.mutates_weights:
        init_name = tuning.init_lora_weights
        sentence = f"weight_decay {decay:g}: it shrinks the weights that {init_name} moved into the adapters"
        return warned(sentence, fix={_WEIGHT_DECAY: 0.0})
    if decay == 0 and tuning.mutates_weights:
        return passed(f"weight_decay 0: weights that {tuning.init_lora_weights} moved into adapters are not shrunk")
    if decay == 0 and tuning.has_adapter:
        return passed("weight_decay 0: adapters start at zero, and their low rank already regularises them")
    if decay == 0:
        return warned("weight_decay 0: the weights are not regularised", fix={_WEIGHT_DECAY: _USUAL_DECAY})
    if decay > _MOST_DECAY:
        sentence = f"weight_decay {decay:g}: above {_MOST_DECAY:g} it hinders learning"
        return warned(sentence, fix={_WEIGHT_DECAY: _STRONG_DECAY})
    return passed(f"weight_decay {decay:g} on matrices, none on norms")
