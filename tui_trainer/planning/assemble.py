"""The numbers of a plan, from what was decided: among them how many steps, and how often it evaluates and saves."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.config.fields import Auto
from tui_trainer.config.load import LoadedConfig, Origin, ResolvedLoaded, all_settings
from tui_trainer.data.batching.row_order import steps_per_epoch
from tui_trainer.hardware.describe import full_name
from tui_trainer.hardware.environment import spins_by_load
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.processor import training_threads
from tui_trainer.methods.lr_schedules import LR_SCHEDULES
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import own_labels
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.batch_cut import BatchCut
from tui_trainer.planning.disk import checkpoint_bytes, final_model_bytes, run_bytes
from tui_trainer.planning.duration import (
    Decomposition,
    busy_words,
    checkpointing_cost,
    compute_rates,
    offload_words,
    recomputed_share,
    sample_token_seconds,
    sample_tokens,
    starting_seconds,
    step_time,
    training_flops,
)
from tui_trainer.planning.fit import MemoryBudget, parts_of_run, row_tokens
from tui_trainer.planning.fused_kernels import fused_kernels
from tui_trainer.planning.measured_steps import (
    Calibration,
    StepKey,
    is_busy,
    measured_words,
    nearest_peak,
    read_calibration,
    step_key,
)
from tui_trainer.planning.memory import estimate as memory
from tui_trainer.planning.memory.host import host_memory
from tui_trainer.planning.memory.parts import Static
from tui_trainer.planning.planned import Planned, estimated, exact
from tui_trainer.planning.processes import Group
from tui_trainer.planning.records import Key, device_key, trial_device
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE, every, times
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_count, format_seconds

# What evaluations on the way may take of the time where nobody has said how many rows they read, and how many rows say
# something at least.
_EVALUATIONS_SHARE, _LEAST_EVAL_ROWS = 0.03, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """What `auto` became: where and how the run computes, and how its batch is cut."""

    loaded: ResolvedLoaded
    target: choices.TrainingDevice
    group: Group
    room: MemoryBudget
    shape: ModelShape
    setup: TrainingSetup
    cut: BatchCut
    chosen: dict[str, Any]
    packing: Planned[bool]
    grouping: Planned[bool]
    padding: float
    """Share of what is computed that is padding; 0 for packed rows."""
    threads: Planned[int]
    memory_reason: str
    memory_key: Key
    is_untuned: bool


class Steps:
    """How many steps, and on which of them something happens."""

    def __init__(self, loaded: LoadedConfig, facts: DataFacts, cut: BatchCut) -> None:
        training, evaluation = loaded.config.training, loaded.config.evaluation
        per_epoch = steps_per_epoch(facts.rows, cut.effective)
        self.per_epoch: Planned[int] = Planned(
            value=per_epoch, exact=facts.exact, reason=f"{facts.rows} rows / {cut.effective}, rounded up"
        )
        if training.max_steps:
            self.total: Planned[int] = exact(
                training.max_steps, f"training.max_steps from {loaded.where('training.max_steps')}"
            )
        else:
            # 0.07 x 100 is a little more than 7 in floating point, and no reason for an eighth step.
            total = max(1, math.ceil(training.num_train_epochs * per_epoch - 1e-9))
            reason = f"{training.num_train_epochs:g} epochs of {per_epoch} steps"
            self.total = Planned(value=total, exact=facts.exact, reason=reason)
        self.evaluations = times(self.total.value, every(evaluation.eval_steps, self.total.value))
        self.eval_rows: Planned[int] = self._eval_rows(evaluation.max_eval_rows, facts, cut)
        samples_every = every(loaded.config.logging.sample_steps, self.total.value)
        self.samples = self.total.value // samples_every if samples_every else 0
        self.saves = times(self.total.value, every(loaded.config.checkpoint.save_steps, self.total.value))
        if evaluation.early_stopping_patience:
            self.saves += self.evaluations

    def _eval_rows(self, limit: int | Auto, facts: DataFacts, cut: BatchCut) -> Planned[int]:
        """`auto` goes by numbers of rows and no measured time: the same run is measured on the same rows each time."""
        reason, on_the_way, rows = "evaluation.max_eval_rows, evenly spaced", self.evaluations - 1, 0
        if limit != "auto":
            rows = limit
        elif on_the_way:
            training_rows = self.total.value * min(cut.effective, facts.rows)
            affordable = _EVALUATIONS_SHARE * training_rows / EVALUATION_SHARE / on_the_way
            rows = max(_LEAST_EVAL_ROWS, round(affordable))
            share = on_the_way * rows * EVALUATION_SHARE / max(training_rows, 1)
            reason = f"of {facts.eval_rows:,}, evenly spaced: {on_the_way} evaluations during the run take {share:.0%}"
            reason += " of the time; evaluation.max_eval_rows = 0 uses all rows"
        if 0 < rows < facts.eval_rows:
            return Planned(value=rows, exact=facts.exact, reason=reason)
        return Planned(value=facts.eval_rows, exact=facts.exact, reason=facts.reason)

    def warmup(self, scheduler: str, setting: float) -> Planned[int]:
        if not LR_SCHEDULES[scheduler].warms_up:
            return exact(0, "this schedule has no warm-up; constant_with_warmup has one")
        planned = self.cadence("warmup_steps", setting)
        if 0 < setting < 1 and planned.value >= (total := self.total.value):
            # Else a run of one step would train at rate 0.
            reason = f"all but the last of {total} steps, which has the peak learning rate"
            return Planned(value=total - 1, exact=self.total.exact, reason=reason)
        return planned if planned.value else exact(0, "starts at the peak learning rate")

    def decay(self, scheduler: str, setting: float, warmup_steps: int) -> Planned[int] | None:
        """The last steps of a schedule that goes down only there, after the warm-up; None: another schedule."""
        if not LR_SCHEDULES[scheduler].has_decay_steps:
            return None
        planned, left = self.cadence("num_decay_steps", setting), max(0, self.total.value - warmup_steps)
        if planned.value > left:
            reason = f"all {left} steps after warm-up; num_decay_steps = {setting:g} asks for {planned.value} steps"
            return Planned(value=left, exact=self.total.exact, reason=reason)
        return planned if planned.value else exact(0, "stays at the peak learning rate")

    def cadence(self, name: str, setting: float) -> Planned[int]:
        total = self.total
        value = every(setting, total.value)
        if 0 < setting < 1:
            return Planned(value=value, exact=total.exact, reason=f"{setting:g} of {total.value} steps")
        return exact(value, f"{name} = {setting:g}" if value else f"{name} = 0: not during the run")


def assemble(hardware: Hardware, facts: DataFacts, made: Decisions) -> dict[str, Any]:
    """All fields of a Plan but those that only its maker knows: `data_key`, `model_key`, `versions`, and what goes by
    the effective batch that was asked for."""
    loaded = made.loaded
    steps = Steps(loaded, facts, made.cut)
    return (
        _place(loaded, hardware, made)
        | _model(loaded, hardware, facts, made)
        | _batch(loaded, facts, made, steps)
        | _cadence(loaded, steps)
        | _memory_and_disk(loaded, facts, made, steps)
        | _times(loaded, hardware, facts, made, steps)
    )


def _place(loaded: LoadedConfig, hardware: Hardware, made: Decisions) -> dict[str, Any]:
    gpu = made.target.gpu
    return {
        "config": loaded.config,
        "user_keys": tuple(key for key in all_settings() if loaded.origin(key).by_user),
        "recipe": loaded.recipe.name if loaded.recipe else "",
        "hardware_profile": loaded.hardware_profile.name if loaded.hardware_profile else "",
        "hardware_reason": loaded.hardware_reason,
        "hardware_settings": tuple(key for key in loaded.layers if loaded.origin(key) is Origin.HARDWARE),
        "device": made.target.device,
        "device_name": full_name(gpu) if gpu else hardware.cpu_name,
        "device_reason": made.target.reason,
        "gpu_uuid": gpu.cuda_uuid if gpu else "",
        "processes": made.group.count,
        "nodes": made.group.nodes,
        "strategy": made.group.strategy,
        "gpu_uuids": made.group.gpu_uuids,
        "cpu_name": hardware.cpu_name,
        "memory_key": str(made.memory_key),
        "untuned_key": str(made.memory_key) if made.is_untuned else "",
        "threads": _threads(hardware, made),
    }


def _threads(hardware: Hardware, made: Decisions) -> Planned[int]:
    if made.setup.device != "cpu" or not spins_by_load():
        return made.threads
    busy = is_busy(hardware.load_of_others, made.threads.value * made.group.per_node)
    how = "sleep, as other programs need the cores" if busy else "do not sleep, as the cores are otherwise free"
    return exact(made.threads.value, f"{made.threads.reason}; waiting threads {how}")


def _model(loaded: LoadedConfig, hardware: Hardware, facts: DataFacts, made: Decisions) -> dict[str, Any]:
    shape, trained = made.shape, made.setup.trained_parameters
    scratch, name = loaded.config.is_from_scratch, loaded.config.model.model_name_or_path
    counted = f"of {name}" if name else "counted from the shape in [model.scratch]"
    if name and not find_model(name, loaded.config.model.revision, head=shape.head, labels=shape.labels).folder:
        counted += ", which has not been downloaded: use `tui-trainer download`"
    counted += find_task(loaded.config.task.type).changes_words(loaded.config)
    is_exact = facts.exact or not scratch
    frozen = f"; {format_count(sum(shape.towers.values()))} of them in {', '.join(shape.towers)}, which stay frozen"
    frozen += ", on the host" if made.setup.towers_on_host else ""
    whole = shape.loaded_parameters
    share = f"{trained / whole:.2%} of the model" if trained < whole else "all of them"
    if begins := _decomposition(loaded, made):
        share += f"; adapters are initialised by {begins.how} of each of {begins.count:,} matrices before the first "
        share += f"step ({begins.operations:.1e} operations) and saved with rank {2 * loaded.config.tuning.r}"
    return {
        "vocabulary": Planned(value=facts.vocabulary, exact=is_exact, reason=facts.reason if scratch else counted),
        "classes": facts.classes,
        "head": _head(loaded, facts, shape),
        "parameters": Planned(value=whole, exact=is_exact, reason=counted + (frozen if shape.towers else "")),
        "trained_parameters": Planned(value=trained, exact=is_exact, reason=share),
        **made.chosen,
        "best_precision": choices.best_precision(hardware, made.target, made.shape).value,
        "memory_budget_bytes": made.room.budget_bytes,
        "packing": made.packing,
        "grouping": made.grouping,
        "longest_row": row_tokens(loaded.config, made.setup),
        "training_setup": made.setup,
        "kernels": fused_kernels(loaded, hardware, made.target, shape),
        "loader_workers": choices.loader_workers(loaded, made.target),
    }


def _head(loaded: LoadedConfig, facts: DataFacts, shape: ModelShape) -> Planned[str] | None:
    """Whether a classifier goes on with the head of its model, where the labels of both are known by name."""
    config, names = loaded.config, tuple(facts.details.get("names", ()))
    if config.is_from_scratch or not names:
        return None
    had = own_labels(find_model(config.model.model_name_or_path, config.model.revision, head=shape.head).config)
    if not had or any(re.fullmatch(r"LABEL_\d+", name) for name in (*had, *names)):
        return None
    told, now = (one_line(", ".join(some[:5]) + (", ..." if len(some) > 5 else ""), 120) for some in (had, names))
    if set(had) == set(names):
        return exact("kept", f"the model already has the labels of the data: {told}")
    return exact("new", f"the model has the labels {told}, but the data has {now}")


def _decomposition(loaded: LoadedConfig, made: Decisions) -> Decomposition | None:
    """Of adapters that begin as a part of the weights; None for others."""
    tuning = loaded.config.tuning
    if not tuning.mutates_weights:
        return None
    return Decomposition.of(tuning.init_lora_weights, tuning.r, made.setup.adapted(made.shape))


def _batch(loaded: LoadedConfig, facts: DataFacts, made: Decisions, steps: Steps) -> dict[str, Any]:
    cut, effective_reason = made.cut, made.cut.effective_reason
    if facts.rows < cut.effective:
        effective_reason += f"; the data has only {facts.rows} rows, so every step uses all of them"
    eval_batch, eval_reason = _eval_batch(loaded, cut, facts)
    return {
        "sources": facts.sources,
        "splits": facts.splits,
        "data_notes": facts.notes,
        "train_rows": Planned(value=facts.rows, exact=facts.exact, reason=facts.reason),
        "eval_rows": steps.eval_rows,
        "train_tokens": Planned(value=facts.tokens, exact=facts.exact, reason=facts.reason),
        "effective_batch_size": exact(cut.effective, effective_reason),
        "per_device_train_batch_size": exact(cut.micro, cut.micro_reason),
        "gradient_accumulation_steps": exact(cut.accumulation, cut.accumulation_reason),
        "per_device_eval_batch_size": exact(eval_batch, eval_reason),
    }


def _cadence(loaded: LoadedConfig, steps: Steps) -> dict[str, Any]:
    config, training = loaded.config, loaded.config.training
    warmup = steps.warmup(training.lr_scheduler_type, training.warmup_steps)
    return {
        "steps_per_epoch": steps.per_epoch,
        "total_steps": steps.total,
        "warmup_steps": warmup,
        "decay_steps": steps.decay(training.lr_scheduler_type, training.num_decay_steps, warmup.value),
        "eval_every_steps": steps.cadence("eval_steps", config.evaluation.eval_steps),
        "save_every_steps": steps.cadence("save_steps", config.checkpoint.save_steps),
        "sample_every_steps": steps.cadence("sample_steps", config.logging.sample_steps),
    }


def _memory_and_disk(loaded: ResolvedLoaded, facts: DataFacts, made: Decisions, steps: Steps) -> dict[str, Any]:
    config, cut, setup = loaded.config, made.cut, made.setup
    eval_batch = _eval_batch(loaded, cut, facts)[0]
    parts = parts_of_run(made.shape, setup, config, cut.micro, eval_batch)
    peak = nearest_peak(setup.measured_peaks, cut.micro, eval_batch)
    reason = f"{measured_words(peak)}; {made.memory_reason}" if peak else made.memory_reason
    saved, saved_reason = checkpoint_bytes(made.shape, setup)
    final_model = final_model_bytes(made.shape.loaded_parameters, setup)
    disk, disk_reason = run_bytes(
        saved,
        final_model,
        save_total_limit=config.checkpoint.save_total_limit,
        saves=steps.saves,
        keeps_best=config.evaluation.early_stopping_patience > 0,
        total_steps=steps.total.value,
    )
    if setup.merged_parameters and setup.has_adapter:
        kept = made.shape.loaded_parameters * Static(made.shape, setup).weight_size
        disk, disk_reason = disk + kept, f"{disk_reason}, and the merged base model of the adapter"
    total = memory.total_bytes(parts)
    return {
        "memory_parts": parts,
        "memory_bytes": estimated(total, reason),
        "checkpoint_bytes": estimated(saved, saved_reason),
        "final_model_bytes": final_model,
        "disk_bytes": estimated(disk, disk_reason),
        **host_memory(
            made.shape, setup, config, choices.loader_workers(loaded, made.target).value, made.group.per_node
        ),
    }


def _times(loaded: LoadedConfig, hardware: Hardware, facts: DataFacts, made: Decisions, steps: Steps) -> dict[str, Any]:
    """Seconds are None for a card of which nothing is known."""
    shape, setup, cut, gpu = made.shape, made.setup, made.cut, made.target.gpu
    longest = row_tokens(loaded.config, setup)
    # Of one process: all compute at the same time.
    rows = cut.share_of(facts.rows)
    # Attention sees full rows where they are packed, else rows as long as their documents, padding included.
    computed_tokens = (facts.row_tokens or longest) / (1 - made.padding)
    as_documents = facts.row_tokens and not setup.packed
    row_width = max(1, round(max(facts.document_tokens, computed_tokens))) if as_documents else longest
    device = device_key(hardware.cpu_name, made.threads.value, full_name(gpu) if gpu else "")
    card = gpu.card if gpu else None

    def timed(setup: TrainingSetup) -> tuple[float, StepKey, Planned[float | None], Calibration]:
        """Return what a step computes, the key of its measurements, its seconds, and what was measured."""
        flops = training_flops(
            shape,
            setup,
            tokens=round(rows * computed_tokens),
            row_tokens=row_width,
            document_tokens=facts.document_tokens or None,
        )
        key = step_key(loaded.config, hardware.libraries, shape, setup, cut.micro, rows, longest, cut.processes)
        known = read_calibration(device, key, flops)
        starts = -(-rows // cut.micro) * starting_seconds(shape, setup)
        step = step_time(flops, shape.hidden_size, known, setup, card, device=device, starts=starts)
        return flops, key, step, known

    flops, key, step, known = timed(setup)
    other = timed(replace(setup, gradient_checkpointing=not setup.gradient_checkpointing))[3]
    with_it, without = (known, other) if setup.gradient_checkpointing else (other, known)
    cost = checkpointing_cost(recomputed_share(shape, setup, row_width), with_it.step_seconds, without.step_seconds)
    offload = made.group.cpu_offload
    if setup.cpu_offload:
        passes, capability = -(-rows // cut.micro), gpu.capability if gpu else None
        on_card = timed(replace(setup, cpu_offload=False))[2].value
        cost_words = offload_words(shape, setup, passes, capability, on_card)
        offload = offload.model_copy(update={"reason": f"{offload.reason}: {cost_words}"})
    total = training_seconds = None
    if step.value is not None:
        evaluation = step.value / rows * steps.eval_rows.value / cut.processes * EVALUATION_SHARE
        training_seconds = steps.total.value * step.value
        total = training_seconds + steps.evaluations * evaluation
    reason = f"{steps.total.value} steps and {steps.evaluations} evaluations"
    beginning = None
    if begins := _decomposition(loaded, made):
        beginning = begins.seconds(card, on_card=setup.device == "cuda")
        took = f"{format_seconds(beginning.value)} for " if beginning.value is not None else ""
        reason += f", and {took}{beginning.reason}"
        total = None if total is None or beginning.value is None else total + beginning.value
    reason += "; without loading, saving and samples"
    threads = made.threads.value * made.group.per_node
    busy = busy_words(hardware.load_of_others, hardware.usable_cores, threads) if setup.device == "cpu" else ""
    rates = compute_rates(
        flops / rows,
        shape,
        setup,
        device=device,
        processes=made.group.per_node,
        card=card,
        tried_on=trial_device(hardware, gpu) if gpu else "",
    )
    return {
        "cpu_offload": offload,
        "checkpointing_cost": cost,
        "compute_rates": rates,
        "busy_words": busy,
        "step_seconds": step,
        "step_grade": known.grade,
        "sample_tokens": sample_tokens(training_seconds, steps.samples, sample_token_seconds(shape, setup))
        if find_task(loaded.config.task.type).continues
        else exact(0, "set by the task"),
        "step_flops": flops,
        "shape_key": str(key),
        "beginning_seconds": beginning,
        "duration_seconds": estimated(total, "; ".join(filter(None, (reason, busy)))),
    }


def _eval_batch(loaded: LoadedConfig, cut: BatchCut, facts: DataFacts) -> tuple[int, str]:
    requested = loaded.config.evaluation.per_device_eval_batch_size
    if requested == "auto":
        return cut.micro, "as in training"
    return min(requested, max(facts.eval_rows, 1)), f"from {loaded.where('evaluation.per_device_eval_batch_size')}"


def requested_threads(loaded: LoadedConfig, hardware: Hardware, processes: int = 1) -> Planned[int]:
    """Of the setting, in each process; `auto` goes by the machine."""
    requested, key = loaded.config.training.cpu_threads, "training.cpu_threads"
    if requested == "auto":
        return threads_of(hardware, processes)
    return exact(requested, f"from {loaded.where(key)}")


def threads_of(hardware: Hardware, processes: int = 1) -> Planned[int]:
    """Of torch's kernels in one of so many processes on this machine."""
    cores, threads = hardware.usable_cores, training_threads(hardware.usable_cores)
    reason = f"{cores} usable cores, one left for other work" if threads < cores else f"all {cores} usable cores"
    if processes > 1:
        threads, reason = max(1, threads // processes), f"{reason}, shared by {processes} processes"
    return exact(threads, reason)
