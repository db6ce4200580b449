"""Finds settings with which a plan fits into memory: the remedies of all rules, the cheapest first.

The error for a refused plan names each remedy with the memory that the run would then need, and the checklist proposes
remedies as a fix. Remedies start from the planned batch, whichever of its three numbers the user wrote."""

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
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import format_bytes, listed

# A remedy that saves a smaller share of the memory is not worth its cost.
_LEAST_SAVING = 0.01


def all_remedies(basis: Basis, budget: float) -> list[Remedy]:
    """Return the remedies of all rules by rank, the cheapest first. Each is computed for the plan without the others.

    Smaller passes and logits in chunks cost hardly anything, and checkpointing costs one more forward pass. Then come
    remedies that change the training: 8-bit optimizers, LoRA (other weights), Adafactor (no momentum). Shorter rows are
    last, because they drop data."""
    remedies = (remedy for rule in all_rules() if rule.remedies for remedy in rule.remedies(basis, budget))
    return sorted(remedies, key=lambda remedy: remedy.rank)


def useful_remedies(basis: Basis, budget: float) -> tuple[list[str], dict[str, Any]]:
    """Return remedies as text, `training.gradient_checkpointing = true (then 12.1 GiB)`, and the settings of all.

    The bytes are the memory needed with this remedy and all before it. Remedies that save nothing are left out. The
    list ends with the first remedy that makes the plan fit, or with a sentence that none does. There are no settings
    if they do not suffice, drop data or need a library that is missing."""
    sentences: list[str] = []
    settings: dict[str, Any] = {}
    can_be_applied = True
    least_bytes, length_sentence = basis.needed_bytes(), ""
    for remedy in all_remedies(basis, budget):
        try:
            changed_basis = basis.with_patch(remedy.patch)
        except ConfigError:
            continue
        needed_bytes = changed_basis.needed_bytes()
        if needed_bytes > (1 - _LEAST_SAVING) * least_bytes:
            continue
        basis, least_bytes = changed_basis, needed_bytes
        sentence = f"{remedy.sentence} (then {format_bytes(needed_bytes)})"
        if remedy.drops_data and length_sentence:
            # Only one of several shorter row lengths is named: the first that fits, or the last.
            sentences.remove(length_sentence)
        length_sentence = sentence if remedy.drops_data else ""
        sentences.append(sentence)
        settings |= remedy.patch
        can_be_applied &= not (remedy.drops_data or remedy.missing_library)
        if needed_bytes <= budget:
            return sentences, settings if can_be_applied else {}
    note = " (these settings together are not enough)" if sentences else ""
    return [*sentences, f"choose a smaller model{note}"], {}


def make_plan(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    *,
    inputs: planning.PlanInputs = planning.UNKNOWN_INPUTS,
    chosen_gpu: GpuChoice = None,
) -> Plan:
    """Make a plan like `planning.make`. If memory is too small, the hint of the ConfigError lists remedies with which
    the plan fits."""
    try:
        return planning.make(loaded, hardware, facts, inputs=inputs, chosen_gpu=chosen_gpu)
    except planning.MemoryShortage as error:
        sentences, settings = useful_remedies(error.basis, error.budget_bytes)
        hint = f"try in this order: {', then '.join(sentences)}"
        shortage = replace(error.shortage, hint=hint, suggested=tuple(settings.items()))
        raise ConfigError(shortage if problem is error.shortage else problem for problem in error.problems) from None


def planned_memory_bytes(
    context: Context, *, micro_batch: int = 0, eval_batch: int = 0, setup: TrainingSetup | None = None
) -> int:
    """Return the planned peak memory in bytes with another micro-batch, evaluation batch or training setup."""
    basis = context.basis if setup is None else context.basis.with_setup(setup)
    return basis.needed_bytes(micro_batch, eval_batch)


def is_short(context: Context) -> bool:
    """Return whether the plan needs more memory than its budget, which is a share of the free memory."""
    budget_bytes = context.basis.memory_budget.budget_bytes
    return budget_bytes is not None and context.required_plan.memory_bytes.value > budget_bytes


def fitting_patch(context: Context, *, as_if_installed: bool = False) -> dict[str, Any] | None:
    """Return the cheapest settings with which a plan that is short of memory fits; None if there are none.

    The first choice is a smaller micro-batch alone. Then other remedies are added by rank, except those that drop data.
    Remedies whose library is not installed are used only with `as_if_installed`."""
    for settings in _growing_patches(context, as_if_installed):
        try:
            batch_settings = _fitting_batch(context, context.basis.with_patch(settings).setup)
        except ConfigError:
            continue
        if batch_settings is not None:
            return _without_needless(context, settings) | batch_settings
    return None


def smaller_model_advice(context: Context) -> str:
    """Return advice to choose a smaller model, for a plan that no setting makes fit."""
    return "lower model.scratch.hidden_size" if context.config.is_from_scratch else "choose a smaller model"


def _growing_patches(context: Context, as_if_installed: bool) -> Iterator[dict[str, Any]]:
    """Yield no settings, then the settings of the first remedy, of the first two remedies and so on."""
    settings: dict[str, Any] = {}
    yield settings
    for remedy in all_remedies(context.basis, context.basis.memory_budget.budget_bytes or 0):
        if not (remedy.cuts_batch or remedy.drops_data) and (as_if_installed or not remedy.missing_library):
            settings = {**settings, **remedy.patch}
            yield settings


def _fitting_batch(context: Context, setup: TrainingSetup) -> dict[str, Any] | None:
    """Return settings for the largest micro-batch that fits: the present one, half of it, and so on. If necessary, also
    reduce the evaluation batch. None if no micro-batch fits."""
    budget = context.basis.memory_budget.budget_bytes or 0
    present_rows = context.required_plan.per_device_train_batch_size.value
    sizes = sorted({-(-present_rows // 2**halvings) for halvings in range(present_rows.bit_length() + 1)}, reverse=True)
    for eval_fix in ({}, {EVAL_BATCH: "auto"}):
        for rows in sizes:
            eval_batch = rows if eval_fix else 0
            if planned_memory_bytes(context, micro_batch=rows, eval_batch=eval_batch, setup=setup) <= budget:
                return (micro_batch_patch(context, rows) if rows < present_rows else {}) | eval_fix
    return None


def _without_needless(context: Context, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of several remedies without those that the last remedy makes unnecessary."""
    batch_settings = _fitting_batch(context, context.basis.with_patch(settings).setup)
    for key in list(settings)[:-1]:
        fewer_settings = {other: value for other, value in settings.items() if other != key}
        if _fitting_batch(context, context.basis.with_patch(fewer_settings).setup) == batch_settings:
            settings = fewer_settings
    return settings


def micro_batch_patch(context: Context, rows: int) -> dict[str, Any]:
    """Return settings for a micro-batch of `rows` with an unchanged effective batch."""
    step_rows = context.required_plan.effective_batch_size.value
    # A step has fewer packed rows than documents, so the user's accumulation does not determine the micro-batch.
    keeps_accumulation = _user_set_accumulation(context) and not context.loaded.origin(MICRO_BATCH_KEY).by_user
    if keeps_accumulation and not context.required_plan.packing.value:
        parts = -(-step_rows // rows)
        if -(-step_rows // parts) == rows:
            return {ACCUMULATION_KEY: parts}
    is_same = context.required_plan.effective_batch_is_auto or context.config.training.effective_batch_size == step_rows
    effective_batch = {} if is_same else {EFFECTIVE_BATCH_KEY: step_rows}
    return {MICRO_BATCH_KEY: rows} | effective_batch | _automatic_accumulation(context)


def effective_batch_patch(context: Context, rows: int) -> dict[str, Any]:
    """Return settings for another effective batch size. The plan reduces a micro-batch that is larger."""
    return {EFFECTIVE_BATCH_KEY: rows} | _automatic_accumulation(context)


def _automatic_accumulation(context: Context) -> dict[str, Any]:
    return {ACCUMULATION_KEY: "auto"} if _user_set_accumulation(context) else {}


def _user_set_accumulation(context: Context) -> bool:
    is_by_user = context.loaded.origin(ACCUMULATION_KEY).by_user
    return is_by_user and isinstance(context.config.training.gradient_accumulation_steps, int)


def less_memory_advice(plan: Plan, tokens: int) -> str:
    """Return as text settings for a new run with which a row of `tokens` tokens needs less memory: remedies, and a
    shorter row length."""
    loaded, texts = LoadedConfig(config=plan.config, layers={}, recipe=None, hardware_profile=None), list[str]()
    with suppress(InputError):  # the model of a run that ends may be gone
        for remedy in all_remedies(planning.basis_of(loaded, probe(), plan), 0):
            if not (remedy.cuts_batch or remedy.drops_data):
                library_words = f" with {remedy.missing_library} installed" if remedy.missing_library else ""
                texts.append(settings_words(remedy.patch) + library_words)
    if plan.packing.value and plan.config.training.torch_compile:
        # Packed rows of compiled layers are padded to the full length, whatever they contain.
        texts.append("data.packing = false")
    texts.append(f"data.max_length = {max(tokens // 2, 1)}")
    return listed(texts)
