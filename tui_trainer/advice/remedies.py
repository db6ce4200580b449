"""Finds settings with which a plan fits into memory: the remedies of all rules, the cheapest first.

A refused plan names each remedy with the memory that the run would then need, and the checklist proposes them as a fix.
Remedies are computed on the batch as planned, whichever of its three numbers the user wrote.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Remedy, all_rules
from tui_trainer.config.changes import settings_words
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import ConfigError, InputError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.planning import plan as planning
from tui_trainer.planning.basis import EVAL_BATCH, Basis
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import format_bytes, listed

# A change that saves less of the memory is not worth its price.
_LEAST_SAVING = 0.01


def all_remedies(basis: Basis, budget: float) -> list[Remedy]:
    """Return the remedies of all rules by rank, the cheapest first, each as if none before it were in force.

    Smaller passes and logits in chunks cost hardly anything, checkpointing one more forward pass of the layers. An
    optimizer in 8 bits keeps its state, LoRA trains other weights, and Adafactor has no momentum. Shorter rows drop
    what was to be learnt.
    """
    return sorted(
        (remedy for rule in all_rules() if rule.remedies for remedy in rule.remedies(basis, budget)),
        key=lambda remedy: remedy.rank,
    )


def remedy_sentences(basis: Basis, budget: float) -> list[str]:
    """Return what would make a plan fit, as `training.gradient_checkpointing = true (12.1 GiB)`, each with all before
    it in force.

    Remedies that save nothing here are left out. The list ends with the first that fits, or says that none does.
    """
    sentences: list[str] = []
    least, shorter = basis.needed_bytes(), ""
    for remedy in all_remedies(basis, budget):
        try:
            changed = basis.changed(remedy.patch)
        except ConfigError:
            continue
        needed = changed.needed_bytes()
        if needed > (1 - _LEAST_SAVING) * least:
            continue
        basis, least = changed, needed
        sentence = f"{remedy.sentence} ({format_bytes(needed)})"
        if remedy.drops_data and shorter:
            # Of all halves, quarters, ... one is named: the first that fits, or the last.
            sentences.remove(shorter)
        shorter = sentence if remedy.drops_data else ""
        sentences.append(sentence)
        if needed <= budget:
            return sentences
    return [
        *sentences,
        "all of these together are not enough: choose a smaller model" if sentences else "choose a smaller model",
    ]


def make_plan(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    *,
    made_from: planning.MadeFrom = planning.ESTIMATES,
    chosen_gpu: GpuChoice = None,
) -> Plan:
    """Return `planning.make`. Where memory is too small for the plan, the hint of the ConfigError lists what would make
    it fit."""
    try:
        return planning.make(loaded, hardware, facts, made_from=made_from, chosen_gpu=chosen_gpu)
    except planning.MemoryShortage as error:
        hint = "in order, cheapest first: " + ", then ".join(remedy_sentences(error.basis, error.budget_bytes))
        shortage = replace(error.shortage, hint=hint)
        raise ConfigError(shortage if problem is error.shortage else problem for problem in error.problems) from None


def memory_with(
    context: Context, *, micro_batch: int = 0, eval_batch: int = 0, setup: TrainingSetup | None = None
) -> int:
    """Return the bytes at the peak as the plan reckons them, with other rows in a pass, or trained in another way."""
    basis = context.basis if setup is None else context.basis.trained_otherwise(setup)
    return basis.needed_bytes(micro_batch, eval_batch)


def is_short(context: Context) -> bool:
    """Return whether the plan takes more memory than it may have of what is free."""
    budget = context.basis.room.budget_bytes
    return budget is not None and context.planned.memory_bytes.value > budget


def way_to_fit(context: Context, *, as_if_installed: bool = False) -> dict[str, Any] | None:
    """Return settings with which a plan that is short of memory fits, the cheapest first; None if there are none.

    Fewer rows in a pass cost least. The other remedies follow by rank, except those that drop data. Remedies whose
    library is not installed are used only with `as_if_installed`.
    """
    for switches in _cumulated(context, as_if_installed):
        try:
            cut = _cut_that_fits(context, context.basis.changed(switches).setup)
        except ConfigError:
            continue
        if cut is not None:
            return _without_idle(context, switches) | cut
    return None


def smaller_model(context: Context) -> str:
    """Return the advice where no setting helps."""
    return "lower model.scratch.hidden_size" if context.config.is_from_scratch else "choose a smaller model"


def _cumulated(context: Context, as_if_installed: bool) -> Iterator[dict[str, Any]]:
    """Yield the settings of each remedy together with those of all before it."""
    switches: dict[str, Any] = {}
    yield switches
    for remedy in all_remedies(context.basis, context.basis.room.budget_bytes or 0):
        if not (remedy.cuts_batch or remedy.drops_data) and (as_if_installed or not remedy.needs):
            switches = {**switches, **remedy.patch}
            yield switches


def _cut_that_fits(context: Context, setup: TrainingSetup) -> dict[str, Any] | None:
    """Return settings for the largest micro-batch that fits, by halves of today's; else with evaluations cut alike."""
    budget, micro = context.basis.room.budget_bytes or 0, context.planned.per_device_train_batch_size.value
    sizes = sorted({-(-micro // 2**halvings) for halvings in range(micro.bit_length() + 1)}, reverse=True)
    for evaluations in ({}, {EVAL_BATCH: "auto"}):
        for rows in sizes:
            if memory_with(context, micro_batch=rows, eval_batch=rows if evaluations else 0, setup=setup) <= budget:
                return (with_micro_batch(context, rows) if rows < micro else {}) | evaluations
    return None


def _without_idle(context: Context, switches: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without earlier remedies that a later one makes needless."""
    cut = _cut_that_fits(context, context.basis.changed(switches).setup)
    for key in list(switches)[:-1]:
        rest = {other: value for other, value in switches.items() if other != key}
        if _cut_that_fits(context, context.basis.changed(rest).setup) == cut:
            switches = rest
    return switches


def with_micro_batch(context: Context, rows: int) -> dict[str, Any]:
    """Return settings for another micro-batch at the same effective batch."""
    effective = context.planned.effective_batch_size.value
    # Packed rows are fewer than the documents of a step, so how they are cut is not a matter of its settings.
    written = _accumulation_written(context) and not context.loaded.origin(MICRO).by_user
    if written and not context.planned.packing.value:
        parts = -(-effective // rows)
        if -(-effective // parts) == rows:
            return {ACCUMULATION: parts}
    same = context.planned.effective_batch_is_auto or context.config.training.effective_batch_size == effective
    return {MICRO: rows} | ({} if same else {EFFECTIVE: effective}) | _free_accumulation(context)


def with_effective_batch(context: Context, rows: int) -> dict[str, Any]:
    """Return settings for another effective batch; the plan cuts a larger micro-batch to it."""
    return {EFFECTIVE: rows} | _free_accumulation(context)


def _free_accumulation(context: Context) -> dict[str, Any]:
    return {ACCUMULATION: "auto"} if _accumulation_written(context) else {}


def _accumulation_written(context: Context) -> bool:
    written = context.loaded.origin(ACCUMULATION).by_user
    return written and isinstance(context.config.training.gradient_accumulation_steps, int)


def less_memory(plan: Plan, tokens: int) -> str:
    """Return settings for a new run, in words, with which a row of `tokens` tokens needs less memory: remedies and
    shorter rows."""
    loaded, settings = LoadedConfig(config=plan.config, layers={}, recipe=None, hardware_profile=None), list[str]()
    with suppress(InputError):  # the model of a run that ends may be gone
        for remedy in all_remedies(planning.basis_of(loaded, probe(), plan), 0):
            if not (remedy.cuts_batch or remedy.drops_data):
                settings.append(
                    settings_words(remedy.patch) + (f" with {remedy.needs} installed" if remedy.needs else "")
                )
    if plan.packing.value and plan.config.training.torch_compile:
        # Rows of compiled layers are filled up, whatever is in them.
        settings.append("data.packing = false")
    settings.append(f"data.max_length = {max(tokens // 2, 1)}")
    return listed(settings)
