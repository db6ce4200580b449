"""Rules about the rows of a step and of a forward pass."""

from collections.abc import Iterator

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Remedy, Verdict, not_applicable, passed, rule, symptom, warned
from tui_trainer.advice.remedies import effective_batch_patch, micro_batch_patch, planned_memory_bytes
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import Patch
from tui_trainer.hardware.diagnosis import Device
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY, is_cut_freely
from tui_trainer.planning.duration import roofline_seconds
from tui_trainer.planning.effective_batch import most_rows_of_step, rows_of_profile
from tui_trainer.planning.fit import largest_micro_batch
from tui_trainer.planning.learning_rates import LEARNING_RATE, peak_rate, scaled, usual_scaling
from tui_trainer.planning.measured_steps import StepKey, measured_row_rates
from tui_trainer.planning.records import device_key
from tui_trainer.units import format_number, format_percent, quantity

# Tokens in a pass that keep the device busy. On a CPU a matmul of a few hundred rows already runs at the full rate, and
# larger ones exceed the caches. A large GPU has thousands of cores.
BUSY_TOKENS: dict[Device, int] = {"cpu": 512, "cuda": 4096}
# A GPU that is busy for a larger share of the time gains nothing from larger batches.
_BUSY_GPU_SHARE = 0.9
# If the data has fewer rows than a step, the fix reduces the batch so that an epoch has this many steps.
_STEPS_IN_AN_EPOCH = 8
# A larger batch changes the result, so a smaller speed-up is not worth it.
_LEAST_SPEED_UP = 1.05


@symptom("Small batches")
def small_batch(view: RunView) -> Cause | None:
    """The optimizer, kernel launches and Python overhead cost the same for one row as for many."""
    plan, sums = view.plan, view.sums
    if plan is None or not sums.positions or (view.gpu_mean("utilization_share") or 0.0) >= _BUSY_GPU_SHARE:
        return None
    passes = max(plan.gradient_accumulation_steps, 1)
    if passes > 1 and view.is_by_default(MICRO_BATCH_KEY, ACCUMULATION_KEY):
        # The plan chose the most rows that fit, or rows of similar length.
        return None
    positions, seconds = sums.positions / sums.steps / passes, view.fixed_compute_seconds
    if passes > 1:  # the same rows behind a step in fewer passes
        fix: Patch = {ACCUMULATION_KEY: "auto"}
        saved_seconds, text = seconds or 0.0, ""
    else:
        # The number of epochs does not matter here: the product counts the rows that the run reads in all of them.
        most_rows = most_rows_of_step(1, plan.total_steps * plan.effective_batch_size)
        if most_rows <= plan.effective_batch_size:
            return None
        fix = {EFFECTIVE_BATCH_KEY: min(max(16, 4 * plan.effective_batch_size), most_rows)}
        saved_seconds = view.optimizer_seconds + (seconds or 0.0)
        text = f"the optimizer takes {format_percent(view.share_of_time(view.optimizer_seconds))} of the time"
    if seconds:
        fixed_text = f"{format_number(1000 * seconds)} ms of the forward and backward passes"
        text = ", ".join(filter(None, (text, f"{fixed_text} do not depend on the number of rows")))
    return Cause(
        cause="Batches are small, so the fixed cost of each step takes much of the time.",
        evidence=f"{positions:,.0f} positions per micro-batch "
        f"({quantity(plan.per_device_train_batch_size, 'row')}); {text}",
        share=view.share_of_time(saved_seconds),
        fix={MICRO_BATCH_KEY: "auto", **fix},
    )


def _remedies_of_batch_size(basis: Basis, budget: float) -> Iterator[Remedy]:
    """Yield a smaller micro-batch as a remedy: the largest half, quarter and so on that fits; 1 if none does."""
    halves = (basis.micro_batch >> halvings for halvings in range(1, basis.micro_batch.bit_length()))
    rows = next((rows for rows in halves if basis.needed_bytes(rows) <= budget), 1)
    yield Remedy(patch={MICRO_BATCH_KEY: rows}, rank=1, cuts_batch=True)


@rule(
    "Micro-batch size", 300, MICRO_BATCH_KEY, EFFECTIVE_BATCH_KEY, ACCUMULATION_KEY, LEARNING_RATE,
    is_for_speed=True, symptoms=(small_batch,), remedies=_remedies_of_batch_size,
)  # fmt: skip
def batch_size(context: Context) -> Verdict:
    """Each micro-batch has a fixed cost; the gradient is the same however the effective batch is split.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, arXiv:1812.06162.
    """
    plan, tokens = context.required_plan, context.mean_row_tokens
    micro, rows_of_step = plan.per_device_train_batch_size.value, context.max_step_rows
    busy_tokens, budget_bytes = BUSY_TOKENS[context.basis.target.device], context.basis.memory_budget.budget_bytes
    kind = "packed rows" if plan.packing.value else "rows"
    sentence = f"a micro-batch has {micro * tokens:,} tokens ({micro} of the {rows_of_step} {kind} of a step)"
    is_full = micro * tokens >= busy_tokens or micro >= min(rows_of_step, plan.train_rows.value)
    if is_full or is_cut_freely(context.loaded):
        if larger_batch_verdict := _larger_batch(context):
            return larger_batch_verdict
        half_batch_patch = micro_batch_patch(context, -(-micro // 2)) if micro > 1 else None
        return passed(sentence, opposite_patch=half_batch_patch)
    rows = min(rows_of_step, -(-busy_tokens // tokens))
    if budget_bytes is not None and planned_memory_bytes(context, micro_batch=rows) > budget_bytes:
        return passed(f"{sentence}; more rows do not fit in free memory")
    parts = "cores" if context.basis.target.gpu is None else "parts of the GPU"
    sentence += f"; fewer than {busy_tokens} tokens leave {parts} idle"
    return warned(sentence, fix=micro_batch_patch(context, rows))


def _larger_batch(context: Context) -> Verdict | None:
    """Return a warning if a larger effective batch is faster, as measured here or by the GPU's rates, and leaves enough
    steps; else None."""
    plan = context.required_plan
    now_rows, processes = plan.effective_batch_size.value, plan.processes.value
    most_rows = most_rows_of_step(context.config.training.num_train_epochs, plan.train_rows.value)
    if (key := StepKey.read(plan.shape_key)) is None or most_rows <= now_rows:
        return None
    device = device_key(plan.cpu_name, plan.threads.value, plan.device_name if plan.device == "cuda" else "")
    old_speeds = {rows * processes: rate for rows, rate in measured_row_rates(device, key).items()}
    new_speeds = {rows: rate for rows, rate in old_speeds.items() if now_rows < rows <= most_rows}
    if now_rows in old_speeds and new_speeds:
        # Among batches that are about equally fast, propose the smallest.
        rows = min(rows for rows, rate in new_speeds.items() if _LEAST_SPEED_UP * rate >= max(new_speeds.values()))
        speed_up, source = new_speeds[rows] / old_speeds[now_rows], "measured here"
    else:
        rows, speed_up, source = _roofline_estimate(context, most_rows)
    if speed_up < _LEAST_SPEED_UP:
        return None
    optim = context.config.training.optim
    old_rate = plan.learning_rate.value
    rate = scaled(old_rate, usual_scaling(optim), now_rows, rows)
    rate = min(rate, max(old_rate, peak_rate(context.config, plan.parameters.value).most))
    advice = f"the learning rate is scaled with the batch ({usual_scaling(optim)}): {old_rate:g} -> {rate:g}"
    sentence = f"{now_rows} rows per step; {rows} rows per step are {speed_up:.2f} times as fast per row ({source})"
    return warned(sentence, fix={**effective_batch_patch(context, rows), LEARNING_RATE: rate}, advice=advice)


def _roofline_estimate(context: Context, most_rows: int) -> tuple[int, float, str]:
    """Return the effective batch for this GPU from its hardware profile, at most `most_rows`, the speed-up per row that
    it gives, and the source of the estimate. The speed-up is 1 if the batch is not larger than planned."""
    plan, basis = context.required_plan, context.basis
    now_rows, gpu = plan.effective_batch_size.value, basis.target.gpu
    rows_per_gpu = rows_of_profile(context.loaded, gpu, plan.parameters.value) if gpu else None
    rows = min(most_rows, (rows_per_gpu or 0) * plan.processes.value)
    if gpu is None or (card := gpu.card) is None or rows <= now_rows:
        return now_rows, 1.0, ""

    def step_seconds(effective: int) -> float | None:
        gpu_rows = -(-effective // plan.processes.value)
        pass_rows = largest_micro_batch(basis.shape, basis.setup, basis.config, basis.memory_budget, gpu_rows)
        flops = plan.step_flops * effective / min(now_rows, plan.train_rows.value)
        passes = 1 if plan.packing.value else -(-gpu_rows // pass_rows)
        return roofline_seconds(flops, passes, basis.shape, basis.setup, card)

    now_seconds, new_seconds = step_seconds(now_rows), step_seconds(rows)
    speed_up = 1.0 if not now_seconds or not new_seconds else now_seconds / now_rows * rows / new_seconds
    return rows, speed_up, f"estimated for the {card.title}; `check --measure batch_size` measures the speed"


@rule("Gradient accumulation", 310, ACCUMULATION_KEY, MICRO_BATCH_KEY, EFFECTIVE_BATCH_KEY, is_for_speed=True)
def accumulation(context: Context) -> Verdict:
    """Accumulation gives a large batch in little memory, but a nearly empty micro-batch costs as much as a full one."""
    plan = context.required_plan
    batch_rows, micro_rows = plan.effective_batch_size.value, plan.per_device_train_batch_size.value
    if plan.packing.value:
        reason = plan.gradient_accumulation_steps.reason
        sum_note = "the loss is a sum, so the gradient is that of one large batch"
        return passed(f"{batch_rows} documents in {reason}; {sum_note}")
    micro_batches = -(-batch_rows // micro_rows)
    if micro_batches == 1:
        return passed(f"{quantity(batch_rows, 'row')} in one micro-batch, so there is nothing to accumulate")
    last_rows = (batch_rows - 1) % micro_rows + 1
    sentence = f"{quantity(batch_rows, 'row')} in {micro_batches} micro-batches of {micro_rows}"
    if 2 * last_rows >= micro_rows:
        last_rows_note = "" if last_rows == micro_rows else f", the last with {last_rows}"
        sentence += f"{last_rows_note}; the loss is a sum, so the gradient is that of one large batch"
        return passed(sentence, opposite_patch=micro_batch_patch(context, batch_rows))
    better_rows = next(rows for rows in range(micro_rows, 0, -1) if 2 * ((batch_rows - 1) % rows + 1) >= rows)
    sentence += f"; the last has only {quantity(last_rows, 'row')} but takes almost as long as the others"
    return warned(sentence, fix=micro_batch_patch(context, better_rows))


@rule("Effective batch size", 320, EFFECTIVE_BATCH_KEY, ACCUMULATION_KEY)
def effective_batch(context: Context) -> Verdict:
    """Small data needs small batches: the same rows then give many updates instead of few."""
    plan = context.required_plan
    step_rows, rows = plan.effective_batch_size.value, plan.train_rows.value
    steps = plan.steps_per_epoch.value
    if rows < 2:
        return not_applicable(f"only {quantity(rows, 'row')} to train on")
    packed_note = f" (at most {context.max_step_rows} packed rows)" if plan.packing.value else ""
    sentence = f"{step_rows} rows per step{packed_note}, {rows:,} rows in the data, {steps:,} steps per epoch"
    if step_rows <= rows:
        return passed(sentence)
    smaller_batch = 1 << max(0, (rows // _STEPS_IN_AN_EPOCH).bit_length() - 1)
    return warned(f"{sentence}, so every step uses all rows", fix=effective_batch_patch(context, smaller_batch))
