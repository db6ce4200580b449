"""Rules about the memory of a run and the settings that reduce it."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    Cause,
    Remedy,
    Rule,
    Verdict,
    failed,
    not_applicable,
    passed,
    rule,
    symptom,
    warned,
)
from tui_trainer.advice.remedies import fitting_patch, is_short, planned_memory_bytes, smaller_model_advice
from tui_trainer.advice.rules.batch import BUSY_TOKENS
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import Patch
from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import round_up_coarsely
from tui_trainer.errors import ConfigError
from tui_trainer.methods.tuning_methods import BITSANDBYTES, METHOD_KEY
from tui_trainer.planning.basis import EVAL_BATCH, Basis
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, MICRO_BATCH_KEY
from tui_trainer.planning.duration import recomputed_share, unpacking_slowdown
from tui_trainer.planning.fit import largest_micro_batch
from tui_trainer.planning.plan import CHECKPOINTING
from tui_trainer.planning.processes import OFFLOAD, STRATEGY
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.runs.state import WARM_UP_STEPS
from tui_trainer.tuning.freeze_layers import LAYERS_KEY
from tui_trainer.units import MIB, format_bytes, format_bytes_of, format_percent

GROUP = "Memory"
_CHUNK = "training.loss_chunk_tokens"
# The logits of this many tokens are small compared with the weights of a model.
_CHUNK_TOKENS = 1024
# A GPU this full has no room for the workspace of a kernel. A machine with so little free memory begins to swap.
_FULL_SHARE = 0.96
_LEAST_FREE_SHARE = 0.03
# Of a longer run, only this many peaks are used, because a few hundred show growth.
_MOST_PEAKS = 500
# If memory grows steadily, the mean rises between any two of four parts by about a third of the whole growth.
_PARTS = 4
_LEAST_IN_A_PART = 2
_STEADY_SHARE = 0.24
# Passes of different sizes are compared only if memory is this full. Otherwise longer rows are slower by themselves.
_PRESSED_SHARE = 0.9
_SLOWER_SHARE = 0.9
# The largest and smallest thirds of the steps must differ by this factor, and have this many steps, for a comparison.
_LEAST_SPREAD = 1.2
_LEAST_STEPS = 6
# Smaller growth is normal: memory settles after the first evaluation, sample and checkpoint.
_LEAST_GROWTH = 0.1
_LEAST_GROWTH_BYTES = 64 * MIB


@symptom("Memory nearly full", least_share=0)
def memory_full(view: RunView) -> Cause | None:
    """The remedies, the first that applies: half the micro-batch with twice the accumulation, 4 bits, shorter rows,
    checkpointing."""
    used_bytes, total_bytes = view.gpu_mean("memory_used_bytes"), view.gpu_mean("memory_bytes")
    free_bytes = view.mean("memory_available_bytes")
    run_bytes = view.mean("process_memory_bytes")
    is_gpu_full = bool(used_bytes and total_bytes and used_bytes >= _FULL_SHARE * total_bytes)
    if used_bytes and total_bytes and is_gpu_full:
        share_text = format_percent(used_bytes / total_bytes)
        evidence = f"{format_bytes_of(used_bytes, total_bytes)} of GPU memory in use ({share_text})"
    elif free_bytes is not None and run_bytes is not None and free_bytes < _LEAST_FREE_SHARE * (free_bytes + run_bytes):
        evidence = f"{format_bytes(free_bytes)} of host memory left; the run uses {format_bytes(run_bytes)}"
    else:
        return None
    fix, other_ways = _first_memory_remedy(view)
    return Cause(
        cause="Memory is nearly full: a longer row, an evaluation or another process may end the run.",
        evidence=evidence,
        is_fault=not is_gpu_full,
        fix=fix,
        advice="or " * bool(fix) + ", ".join(other_ways),
    )


def _first_memory_remedy(view: RunView) -> tuple[Patch | None, list[str]]:
    """Return the settings of the first remedy for memory that the run does not use yet, and the others as text."""
    plan = view.plan
    if plan is None:
        return None, ["a smaller micro-batch", "shorter rows"]
    remedies: list[tuple[Patch | None, str]] = []
    if plan.per_device_train_batch_size > 1:
        rows = -(-plan.per_device_train_batch_size // 2)
        remedies.append(({MICRO_BATCH_KEY: rows, ACCUMULATION_KEY: "auto"}, f"a micro-batch of {rows}"))
    if view.on_gpu and plan.tuning_method in ("full", "lora") and plan.base_model:
        # Only a new plan can tell whether 4 bits are possible, which depends on a library and the layers.
        remedies.append((None, f'{METHOD_KEY} = "qlora"'))
    remedies.append((None, "shorter rows"))
    if plan.gradient_checkpointing is False:
        remedies.append(({CHECKPOINTING: True}, f"{CHECKPOINTING} = true"))
    if plan.lora_rank and plan.lora_rank > 1:
        remedies.append((None, f"a smaller tuning.r than {plan.lora_rank}"))
    fix = next((patch for patch, _ in remedies if patch), None)
    return fix, [text for patch, text in remedies if patch is None or patch is not fix]


@symptom("Batch too large", needs_steps=False, least_share=0)
def batch_too_large(view: RunView) -> Cause | None:
    """Once memory is nearly full, larger micro-batches are slower, and the longest rows can end the run."""
    plan, reductions = view.plan, [event for event in view.state.problems if isinstance(event, MicroBatchReduced)]
    if plan is None:
        return None
    if reductions:
        newest, kinds = reductions[-1], {event.what for event in reductions}
        key = MICRO_BATCH_KEY if "training" in kinds else EVAL_BATCH
        kind = "training" if key == MICRO_BATCH_KEY else newest.what
        rows = min(event.rows for event in reductions if event.what == kind)
        return Cause(
            cause="A batch did not fit into memory, so it was made smaller during the run.",
            evidence=f"{newest.rows_before} rows per batch until step {newest.step:,}, {newest.rows} from then on",
            fix={key: rows} | ({ACCUMULATION_KEY: "auto"} if key == MICRO_BATCH_KEY else {}),
        )
    return _slower_when_full(view, plan.per_device_train_batch_size)


def _slower_when_full(view: RunView, rows: int) -> Cause | None:
    """If memory is nearly full, return a Cause if large passes are slower per position than small passes, else None."""
    used_bytes, total_bytes = view.gpu_mean("memory_used_bytes"), view.gpu_mean("memory_bytes")
    if not used_bytes or not total_bytes or used_bytes < _PRESSED_SHARE * total_bytes or rows < 2:
        return None
    steps = sorted((step for step in view.state.recent_sums if step.positions), key=lambda step: step.positions)
    third = len(steps) // 3
    if third < _LEAST_STEPS or steps[-third].positions < _LEAST_SPREAD * steps[third - 1].positions:
        return None
    small, large = (
        sum(step.positions for step in part)
        / max(sum(step.forward_seconds + step.backward_seconds for step in part), 1e-9)
        for part in (steps[:third], steps[-third:])
    )
    if large > _SLOWER_SHARE * small:
        return None
    return Cause(
        cause="The micro-batch is too large for memory: large batches are slower than small ones.",
        evidence=(
            f"{large:,.0f} positions/s in the largest third of the batches, {small:,.0f} in the smallest third, "
            f"{format_percent(used_bytes / total_bytes)} of the GPU's memory in use"
        ),
        share=(1 - large / small) * view.share_of_time(view.compute_seconds),
        fix={MICRO_BATCH_KEY: -(-rows // 2), ACCUMULATION_KEY: "auto"},
    )


def _remedies_of_gradient_checkpointing(basis: Basis, budget: float) -> Iterator[Remedy]:
    if not basis.setup.gradient_checkpointing:
        row_tokens = basis.setup.longest_row or basis.config.data.max_length
        slowdown = format_percent(recomputed_share(basis.shape, basis.setup, row_tokens))
        yield Remedy(patch={CHECKPOINTING: True}, rank=4, costs=f"about {slowdown} slower")


@rule(
    "Gradient checkpointing", 150, CHECKPOINTING, remedies=_remedies_of_gradient_checkpointing,
    published_gain="memory grows with the square root of the layer count, for one more forward pass (arXiv:1604.06174)",
)  # fmt: skip
def gradient_checkpointing(context: Context) -> Verdict:
    """Checkpointing pays off only if memory, not time, is short.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    is_on = context.config.training.gradient_checkpointing
    other_setup = context.basis.with_patch({CHECKPOINTING: not is_on}).setup
    now_bytes, other_bytes = context.required_plan.memory_bytes.value, planned_memory_bytes(context, setup=other_setup)
    now_text, other_text = format_bytes(now_bytes), format_bytes(other_bytes)
    other_text = "the same" if other_text == now_text else other_text
    sentence = f"{'on' if is_on else 'off'}: peak memory {now_text}, {other_text} "
    sentence += "without checkpointing" if is_on else "with checkpointing"
    cost = context.required_plan.checkpointing_cost
    longer_text = f"{format_percent(cost.value)} longer: {cost.reason}" if cost else "longer"
    if not is_on and is_short(context) and (fitting_patch(context) or {}).get(CHECKPOINTING):
        sentence += f"; memory is short, and checkpointing makes steps {longer_text}"
        return warned(sentence, fix={CHECKPOINTING: True}, switch_state="gradient checkpointing: off")
    if not is_on:
        sentence += f", which would make steps {longer_text}"
        switch = "gradient checkpointing: off, not needed"
        return passed(sentence, switch_state=switch, opposite_patch={CHECKPOINTING: True})
    if (rows := _rows_without(context, other_setup)) == 0:
        sentence += f"; the run needs checkpointing to fit, and steps take {longer_text}"
        return passed(sentence, switch_state="gradient checkpointing on", opposite_patch={CHECKPOINTING: False})
    # A smaller micro-batch needs no checkpointing, and is preferred as long as it keeps the device busy.
    sentence += f"; a micro-batch of {rows} fits without checkpointing, which makes steps {longer_text}"
    return warned(sentence, fix={CHECKPOINTING: False}, switch_state="gradient checkpointing on")


def _rows_without(context: Context, without: TrainingSetup) -> int:
    """Return the micro-batch that fits without checkpointing; 0 if it is too small to keep the device busy."""
    limit, training = context.basis.memory_budget.budget_bytes, context.config.training
    if limit is None:
        return 0
    micro_rows = context.required_plan.per_device_train_batch_size.value
    if context.loaded.origin(MICRO_BATCH_KEY).by_user and isinstance(training.per_device_train_batch_size, int):
        return micro_rows if planned_memory_bytes(context, setup=without) <= limit else 0
    basis = context.basis
    rows = largest_micro_batch(basis.shape, without, basis.config, basis.memory_budget, context.max_step_rows)
    is_busy = rows * context.mean_row_tokens >= BUSY_TOKENS[basis.target.device] or rows >= context.max_step_rows
    return rows if is_busy and planned_memory_bytes(context, micro_batch=rows, setup=without) <= limit else 0


def method_patch(config: Config, name: str) -> Patch:
    """Return the settings for another tuning method. With adapters, `tuning.trainable_layers` must be empty."""
    return {METHOD_KEY: name, LAYERS_KEY: ""} if config.tuning.trainable_layers else {METHOD_KEY: name}


def _remedies_of_four_bits(basis: Basis, budget: float) -> Iterator[Remedy]:
    if basis.setup.device == "cuda" and not basis.setup.four_bits and not basis.config.is_from_scratch:
        needs = "" if basis.hardware.libraries.get(BITSANDBYTES) else BITSANDBYTES
        yield Remedy(patch=method_patch(basis.config, "qlora"), rank=7, costs="a quarter slower", missing_library=needs)


@rule(
    "4-bit weights", 295, METHOD_KEY, LAYERS_KEY, remedies=_remedies_of_four_bits,
    published_gain="4.127 bits per parameter (QLoRA, arXiv:2305.14314, section 3)",
)  # fmt: skip
def four_bits(context: Context) -> Verdict:
    """Frozen weights need not be exact; each matmul unpacks them first, which takes time.

    Source: Dettmers et al., QLoRA, arXiv:2305.14314."""
    plan = context.required_plan
    if context.config.is_from_scratch:
        return not_applicable("every weight of a model from scratch is trained, so none can be in 4 bits")
    if plan.device != "cuda":
        return not_applicable("4-bit weights need a GPU, and this run is on the CPU")
    weight_bytes = sum(part.bytes for part in plan.memory_parts if part.name == "weights")
    gpu = context.basis.target.gpu
    times_text = f"about {unpacking_slowdown(gpu.capability if gpu else None)} times as long"
    if context.config.tuning.in_four_bits:
        return passed(f"frozen 4-bit weights take {format_bytes(weight_bytes)}; steps take {times_text} as in 16 bits")
    sentence = f"weights take {format_bytes(weight_bytes)} as {plan.weights_dtype.value}"
    if not is_short(context):
        return passed(f"{sentence}, which fits; in 4 bits each step would take {times_text}")
    size = format_bytes(context.basis.memory_budget.budget_bytes)
    try:
        peak = planned_memory_bytes(context, setup=context.basis.with_patch({METHOD_KEY: "qlora"}).setup)
    except ConfigError as error:
        return warned(f"{sentence}, too much for the {size} available", advice=str(error))
    sentence += f", too much; with 4-bit weights the run needs {format_bytes(peak)} of the {size} available"
    if context.hardware.libraries.get(BITSANDBYTES) is None:
        return warned(sentence, advice=f"uv pip install {BITSANDBYTES}, then --set tuning.method=qlora")
    return warned(sentence, fix=method_patch(context.config, "qlora"))


def _remedies_of_loss_in_chunks(basis: Basis, budget: float) -> Iterator[Remedy]:
    if basis.shape.logits and (not basis.setup.loss_chunk_tokens or basis.setup.loss_chunk_tokens > _CHUNK_TOKENS):
        yield Remedy(patch={_CHUNK: _CHUNK_TOKENS}, rank=3)


loss_in_chunks = Rule(
    name="loss_in_chunks",
    title="",
    why="Logits that are computed for a few tokens at a time take hardly any memory.",
    settings=(_CHUNK,),
    remedies=_remedies_of_loss_in_chunks,
)


@symptom("Memory growing")
def memory_growing(view: RunView) -> Cause | None:
    """Memory is stable once batches of all sizes have run; steady growth ends in an out-of-memory error."""
    usage = _memory_by_step(view)
    usage = usage[len(usage) // 5 :]
    count = len(usage) // _PARTS
    if count < _LEAST_IN_A_PART:
        return None
    usage = usage[len(usage) - count * _PARTS :]
    means = [fmean(memory for _, memory in usage[count * part :][:count]) for part in range(_PARTS)]
    grown_bytes = means[-1] - means[0]
    # Memory that grows with the number of pass sizes seen so far grows ever more slowly, so it is not steady.
    is_steady = min(after - before for before, after in pairwise(means)) >= _STEADY_SHARE * grown_bytes
    if not is_steady or grown_bytes < max(_LEAST_GROWTH * means[0], _LEAST_GROWTH_BYTES):
        return None
    (first_step, first_bytes), (last_step, last_bytes) = usage[0], usage[-1]
    kernel_bytes = (view.plan.kernel_bytes or 0) if view.plan else 0
    if last_bytes - first_bytes <= kernel_bytes or _has_new_sizes(view, usage[-count][0]):
        return None
    steps = max(last_step - first_step, 1)
    rate = max(last_bytes - first_bytes, 0.0) / steps
    total = view.state.total_steps
    end_bytes = last_bytes + rate * max(total - last_step, 0)
    free_bytes = view.mean("memory_available_bytes")
    if view.on_gpu:
        gpu_bytes, used_bytes = view.gpu_mean("memory_bytes"), view.gpu_mean("memory_used_bytes")
        free_bytes = None if gpu_bytes is None or used_bytes is None else gpu_bytes - used_bytes
    runs_out = free_bytes is not None and end_bytes - last_bytes > free_bytes
    share = 0.0
    if runs_out and free_bytes is not None and rate and total:
        share = 1 - (last_step + free_bytes / rate) / total
    kind = "peak GPU memory" if view.on_gpu else "resident memory of the process"
    last_text = f"{format_bytes(last_bytes)} at step {last_step:,}"
    text = f"{kind}: {format_bytes(first_bytes)} at step {first_step:,}, {last_text}"
    note = f"; {format_bytes(end_bytes)} at step {total:,} if growth continues" if last_step < total else ""
    return Cause(
        cause="Memory grows from step to step, although the batches do not grow.",
        evidence=f"{text}, {format_bytes(rate)}/step over {steps:,} steps{note}",
        share=max(share, 0.0),
        is_fault=True,
        advice="the reason is unknown, perhaps a hook or custom model code; resume from a checkpoint to free memory",
    )


def _memory_by_step(view: RunView) -> list[tuple[int, float]]:
    """Return (step, bytes) since the last start: on a CPU the memory of the process, on a GPU torch's peak memory. The
    driver's figure is not used, because it includes other programs and memory that torch holds unused."""
    if not view.on_gpu:
        return [(it.step, size) for it in view.all_readings if (size := it.process_memory_bytes) is not None]
    state = view.state
    start = bisect_right(state.steps, view.first_step + WARM_UP_STEPS)
    pairs = zip(state.steps[start:], state.step_peak_bytes[start:], strict=True)
    peaks = [(step, float(peak)) for step, peak in pairs if peak]
    return peaks[:: max(1, len(peaks) // _MOST_PEAKS)]


def _has_new_sizes(view: RunView, since_step: int) -> bool:
    """Return whether passes of a new size occurred after a step; on a GPU, whether passes larger than all before did.

    The size of a pass is the mean over a step, because the journal has only the positions of whole steps. It is rounded
    (`round_up_coarsely`), because means differ long after each size of a pass has occurred."""
    passes = max(view.plan.gradient_accumulation_steps, 1) if view.plan else 1
    first_step_by_size: dict[int, int] = {}
    for positions, step in view.state.first_steps.items():
        mean_positions = -(-positions // passes)
        size = round_up_coarsely(mean_positions, limit=2 * mean_positions)
        first_step_by_size[size] = min(step, first_step_by_size.get(size, step))
    if view.on_gpu:
        return first_step_by_size.get(max(first_step_by_size, default=0), 0) > since_step
    return max(first_step_by_size.values(), default=0) > since_step


@rule(
    "Enough memory", 330, MICRO_BATCH_KEY, ACCUMULATION_KEY, EVAL_BATCH, CHECKPOINTING,
    symptoms=(memory_full, batch_too_large, memory_growing),
)  # fmt: skip
def memory(context: Context) -> Verdict:
    """A run that exhausts memory is killed by the system, or swaps and becomes very slow."""
    budget, needed_bytes = context.basis.memory_budget, context.required_plan.memory_bytes.value
    if budget.free_bytes is None:
        return not_applicable(f"the run needs {format_bytes(needed_bytes)} of memory; free memory is not reported")
    sentence = f"the run needs {format_bytes(needed_bytes)} of {format_bytes(budget.free_bytes)} free on {budget.where}"
    if budget.free_bytes:
        sentence += f", {needed_bytes / budget.free_bytes:.0%}"
    details = [f"{part.name}: {format_bytes(part.bytes)}" for part in context.required_plan.memory_parts if part.bytes]
    host_parts = context.required_plan.host_memory_parts
    details += [f"host memory, {part.name}: {format_bytes(part.bytes)}" for part in host_parts]
    if not is_short(context):
        # The GPU may have enough memory while the host has too little.
        host_memory, free_bytes = context.required_plan.host_memory_bytes, context.hardware.memory_available_bytes
        if host_memory is None or free_bytes is None or host_memory.value <= free_bytes:
            return passed(sentence, *details)
        shortage = f"the run needs {format_bytes(host_memory.value)} of host memory in addition to GPU memory"
        advice = "close other programs, or raise the memory limit of the container or job"
        return failed(f"{shortage}, but only {format_bytes(free_bytes)} are free", *details, advice=advice)
    advice = ""
    if (fix := fitting_patch(context)) is None:
        advice = f"{smaller_model_advice(context)} or lower data.max_length, because not even one row at a time fits"
        if library_fix := fitting_patch(context, as_if_installed=True):
            settings = ", ".join(f"{key} = {value}" for key, value in library_fix.items())
            advice = f"the run would fit with bitsandbytes: uv pip install bitsandbytes, then set {settings}"
    elif not fix:
        advice = f"lower {EVAL_BATCH}, because evaluations need more memory than steps"
    verdict = failed if needed_bytes > budget.free_bytes else warned
    return verdict(sentence, *details, fix=fix, advice=advice)


@rule(
    "Sharding and offloading", 335, OFFLOAD, STRATEGY,
    published_gain="stage 3 of ZeRO communicates 1.5 times as much as ddp (arXiv:1910.02054, section 7)",
)  # fmt: skip
def split_model(context: Context) -> Verdict:
    """The parts of a sharded or offloaded model are transferred to the GPU in every pass.

    Source: Rajbhandari et al., ZeRO, arXiv:1910.02054, section 7: stage 3 communicates 1.5 times as much as copies do.
    """
    plan, budget = context.required_plan, context.basis.memory_budget
    strategy, is_offloaded = plan.strategy.value, plan.cpu_offload.value
    if not is_offloaded and strategy == "ddp":
        return not_applicable("the model is neither sharded nor offloaded")
    how_text = f"sharded by {strategy}"
    if is_offloaded:
        how_text = f"weights, gradients and optimizer state are on the host, {plan.cpu_offload.reason}"
    switch = "offloaded" if is_offloaded else strategy
    whole_setup = replace(context.basis.setup, cpu_offload=False, shards=1, zero_stage=0)
    needed_bytes = planned_memory_bytes(context, setup=whole_setup)
    sentence = f"{how_text}; otherwise {budget.where} would need {format_bytes(needed_bytes)}"
    if budget.budget_bytes is None:
        return not_applicable(f"{sentence}, and free memory is not reported", switch_state=switch)
    sentence += f" (usable: {format_bytes(budget.budget_bytes)})"
    if needed_bytes > budget.budget_bytes:
        return passed(sentence, switch_state=switch)
    is_written = context.config.distributed.strategy != "auto"
    fix = ({OFFLOAD: False} if is_offloaded else {}) | ({STRATEGY: "auto"} if is_written else {})
    return warned(f"{sentence}, so the whole model would fit", fix=fix, switch_state=switch)
