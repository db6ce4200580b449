"""What could make a run faster and learn the same: other positions of the settings that decide how a step is computed.

The effective batch stays. What the plan refuses, or what would change nothing, is named with the reason.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.bench.training import no_change
from tui_trainer.checklist.run import patched
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, all_settings
from tui_trainer.errors import InputError
from tui_trainer.hardware.compilers import lack_of_compiler
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.micro_batches import MicroBatches, cut_patch, to_time
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.planning.plan import Plan
from tui_trainer.safe_text import one_line

COMPILE, CHECKPOINTING = "training.torch_compile", "training.gradient_checkpointing"
GROUPED, PACKING, WORKERS = "data.group_by_length", "data.packing", "dataloader.num_workers"
_ATTENTION, _KERNELS, _PRECISION = "model.attn_implementation", "model.kernels", "training.mixed_precision"
THREADS, _PREFETCH = "training.cpu_threads", "dataloader.prefetch_factor"
# The attention that `auto` is.
_AUTOMATIC_ATTENTION = ("auto", "sdpa")
# Of the tokens that rows of the longest would have.
_FULL = 0.98
_MOST_WORKERS, _LARGER_CUTS, _SMALLER_CUTS = 2, 2, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """One of a `group` is taken. `reason`: why it is not measured; `barred`: why it is not taken, however fast;
    `after`: the name of one that has to be faster before this is measured."""

    group: str
    patch: Patch
    name: str
    reason: str = ""
    barred: str = ""
    after: str = ""


def alternatives(
    loaded: LoadedConfig, plan: Plan, hardware: Hardware, tries: MicroBatches, gpu: GpuChoice
) -> Iterator[Alternative]:
    """Those of this config, the most promising first."""
    for one in (*_lengths(plan), *_cuts(plan, tries), *_switches(plan, hardware, tries)):
        yield one if one.group == "cut" else replace(one, reason=one.reason or _reason(loaded, plan, one.patch, gpu))


def settings_words(patch: Patch) -> str:
    """`group_by_length = true, num_workers = 2`."""
    return ", ".join(f"{key.rpartition('.')[2]} = {json.dumps(value)}" for key, value in patch.items())


def _lengths(plan: Plan) -> Iterator[Alternative]:
    if not plan.packing.value:
        full = plan.train_tokens.value >= _FULL * plan.train_rows.value * plan.longest_row
        reason = "changes nothing here: all rows are about as long" if full else ""
        yield replace(_one(GROUPED, not plan.config.data.group_by_length), reason=reason)
    yield _one(PACKING, not plan.packing.value)


def _cuts(plan: Plan, tries: MicroBatches) -> Iterator[Alternative]:
    """The largest micro-batch that survived and some smaller ones, and the one that failed first above it."""
    now = plan.per_device_train_batch_size.value
    survived = {rows: True for rows, one in tries.tried.items() if not one.failed}
    larger = to_time({rows: True for rows in survived if rows > now})
    smaller = to_time({rows: True for rows in survived if rows <= now // 2 or now > tries.largest})
    for rows in larger[:_LARGER_CUTS]:
        yield _cut(plan, tries, rows)
    # Where half of the rows is no faster, a quarter is not either.
    before = ""
    for rows in smaller[:_SMALLER_CUTS]:
        yield replace(_cut(plan, tries, rows), after=before)
        before = _cut(plan, tries, rows).name
    failed = [rows for rows, one in tries.tried.items() if one.failed and rows > tries.largest]
    if failed:
        yield replace(_cut(plan, tries, min(failed)), reason=tries.tried[min(failed)].failed)


def _cut(plan: Plan, tries: MicroBatches, rows: int) -> Alternative:
    return Alternative(group="cut", patch=cut_patch(plan, rows), name=f"{rows} x {-(-tries.step_rows // rows)}")


def _switches(plan: Plan, hardware: Hardware, tries: MicroBatches) -> Iterator[Alternative]:
    config = plan.config
    lack = "" if config.training.torch_compile else lack_of_compiler(hardware.libraries, plan.device)
    yield replace(_one(COMPILE, not config.training.torch_compile), reason=lack)
    if config.training.gradient_checkpointing:
        yield _one(CHECKPOINTING, False)
    elif tries.largest < tries.step_rows:
        # It makes room for larger passes, which may pay for what is computed twice.
        rows = min(2 * tries.largest, tries.step_rows)
        patch = {CHECKPOINTING: True, **cut_patch(plan, rows)}
        yield Alternative(
            group="cut", patch=patch, name=f"gradient_checkpointing = true, {_cut(plan, tries, rows).name}"
        )
    yield from _numbers(plan)
    current = config.model.attn_implementation
    for name in all_settings()[_ATTENTION].choices:
        if name != current and name != "auto" and not {name, current} <= set(_AUTOMATIC_ATTENTION):
            yield _one(_ATTENTION, name)
    yield _one(_KERNELS, "none" if plan.kernels.value != "none" else "auto")
    workers = range(_MOST_WORKERS + 1) if plan.device == "cuda" else range(2)
    for count in workers:
        if count != plan.loader_workers.value:
            yield _one(WORKERS, count)
    if plan.loader_workers.value:
        yield _one(_PREFETCH, 2 * config.dataloader.prefetch_factor)
    if plan.device == "cpu" and plan.threads.value > 1:
        yield _one(THREADS, plan.threads.value // 2)
    if not config.training.gradient_checkpointing and tries.largest >= tries.step_rows:
        yield _one(CHECKPOINTING, True)


def _numbers(plan: Plan) -> Iterator[Alternative]:
    """Precisions: what the plan would choose itself, and fp32, which loses nothing; another one is shown alone."""
    for value, precision in (("bf16", "bf16"), ("fp16", "fp16"), ("no", "fp32")):
        if precision != plan.precision.value:
            keeps = precision in (plan.best_precision, "fp32")
            why = "" if keeps else f"shown, and not taken: the plan chooses {plan.best_precision} here"
            yield replace(_one(_PRECISION, value), barred=why)


def _one(key: str, value: Any) -> Alternative:
    return Alternative(group=key, patch={key: value}, name=settings_words({key: value}))


def _reason(loaded: LoadedConfig, plan: Plan, patch: Patch, gpu: GpuChoice) -> str:
    """Why steps with these settings cannot be measured, or would be the same; empty: they can."""
    try:
        return no_change(plan, estimated_plan(patched(loaded, patch), gpu=gpu), patch)
    except InputError as error:
        return one_line("; ".join(problem.message for problem in error.problems), 300)
