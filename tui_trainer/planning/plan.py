"""The plan: what will happen, each derived number with its reason, each exact or estimated.

`make` needs no torch. Made before the data is prepared, some numbers are estimates; made again with the prepared data's
facts, they are exact, and that plan is written to `plan.json` before step 1. A run reads nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import disk_free_bytes
from tui_trainer.hardware.processor import training_threads
from tui_trainer.planning import memory
from tui_trainer.planning.batching import BatchCut, cut_batch
from tui_trainer.planning.calibration import read_calibration
from tui_trainer.planning.disk import checkpoint_bytes, run_bytes
from tui_trainer.planning.duration import EVALUATION_SHARE, step_time
from tui_trainer.planning.model_shape import ModelShape
from tui_trainer.planning.planned import Planned
from tui_trainer.planning.rules import disk_problems, machine_problems, setting_problems
from tui_trainer.planning.steps import Steps
from tui_trainer.runs.registry import state_folder
from tui_trainer.tasks.contract import DataFacts

# Left free for everything else on the machine when the micro-batch is chosen.
MEMORY_SHARE = 0.8


class Plan(BaseModel):
    """Everything a run needs to know. Bytes, seconds, rows and steps as the names say."""

    model_config = ConfigDict(frozen=True)

    plan_version: Literal[1] = 1
    config: Config
    recipe: str
    hardware_profile: str
    hardware_reason: str
    cpu_name: str
    device: str
    data_key: str
    versions: dict[str, str]
    threads: Planned[int]
    vocabulary: Planned[int]
    parameters: Planned[int]
    train_rows: Planned[int]
    eval_rows: Planned[int]
    train_tokens: Planned[int]
    effective_batch_size: Planned[int]
    per_device_train_batch_size: Planned[int]
    gradient_accumulation_steps: Planned[int]
    per_device_eval_batch_size: Planned[int]
    steps_per_epoch: Planned[int]
    total_steps: Planned[int]
    warmup_steps: Planned[int]
    eval_every_steps: Planned[int]
    save_every_steps: Planned[int]
    sample_every_steps: Planned[int]
    memory_parts: tuple[memory.MemoryPart, ...]
    memory_bytes: Planned[int]
    checkpoint_bytes: Planned[int]
    disk_bytes: Planned[int]
    step_seconds: Planned[float]
    step_flops: float
    shape_key: str
    duration_seconds: Planned[float]


def make(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    *,
    data_key: str = "",
    versions: dict[str, str] | None = None,
) -> Plan:
    """The plan for a config on this machine. Raises ConfigError with all problems.

    `data_key` names the prepared data that `facts` were counted on; empty while they are estimates. `versions` are
    those of the libraries that the run begins with.
    """
    config = loaded.config
    if problems := setting_problems(loaded):
        raise ConfigError(problems)
    shape = ModelShape.of(config.model.scratch, facts.vocabulary)
    cut = cut_batch(loaded, lambda limit: _largest_fit(shape, config, hardware, limit))
    if isinstance(cut, Problem):
        raise ConfigError(cut)
    plan = _assemble(loaded, hardware, facts, shape, cut, data_key, versions or {})
    problems = machine_problems(loaded, hardware, plan.memory_bytes.value)
    problems += disk_problems(loaded, plan.disk_bytes.value, disk_free_bytes(Path(config.output.runs_dir)))
    if problems:
        raise ConfigError(problems)
    return plan


def _assemble(
    loaded: LoadedConfig,
    hardware: Hardware,
    facts: DataFacts,
    shape: ModelShape,
    cut: BatchCut,
    data_key: str,
    versions: dict[str, str],
) -> Plan:
    config = loaded.config
    steps = Steps(loaded, facts, cut)
    eval_batch, eval_reason = _eval_batch(loaded, cut, facts)
    parts = memory.memory_parts(
        shape,
        micro_batch=cut.micro,
        eval_batch=eval_batch,
        row_tokens=config.data.max_length,
        accumulation=cut.accumulation,
    )
    threads = _threads(hardware)
    time_of = _Times(config, hardware, facts, shape, cut, steps, threads.value)
    saved = checkpoint_bytes(shape.parameters)
    disk, disk_reason = run_bytes(
        shape.parameters,
        save_total_limit=config.checkpoint.save_total_limit,
        saves=steps.saves,
        keeps_best=config.evaluation.early_stopping_patience > 0,
        total_steps=steps.total.value,
    )
    exact = facts.exact
    return Plan(
        config=config,
        recipe=loaded.recipe.name if loaded.recipe else "",
        hardware_profile=loaded.hardware_profile.name if loaded.hardware_profile else "",
        hardware_reason=loaded.hardware_reason,
        cpu_name=hardware.cpu_name,
        device="cpu",
        data_key=data_key,
        versions=versions,
        threads=threads,
        vocabulary=Planned(value=facts.vocabulary, exact=exact, reason=facts.reason),
        parameters=Planned(value=shape.parameters, exact=exact, reason="counted from the shape in [model.scratch]"),
        train_rows=Planned(value=facts.rows, exact=exact, reason=facts.reason),
        eval_rows=Planned(value=steps.eval_rows, exact=exact, reason=steps.eval_rows_reason),
        train_tokens=Planned(value=facts.tokens, exact=exact, reason=facts.reason),
        effective_batch_size=Planned(value=cut.effective, exact=True, reason=_effective_reason(cut, facts)),
        per_device_train_batch_size=Planned(value=cut.micro, exact=True, reason=cut.micro_reason),
        gradient_accumulation_steps=Planned(value=cut.accumulation, exact=True, reason=cut.accumulation_reason),
        per_device_eval_batch_size=Planned(value=eval_batch, exact=True, reason=eval_reason),
        steps_per_epoch=steps.per_epoch,
        total_steps=steps.total,
        warmup_steps=steps.warmup(config.training.lr_scheduler_type, config.training.warmup_steps),
        eval_every_steps=steps.cadence("eval_steps", config.evaluation.eval_steps),
        save_every_steps=steps.cadence("save_steps", config.checkpoint.save_steps),
        sample_every_steps=steps.cadence("sample_steps", config.logging.sample_steps),
        memory_parts=parts,
        memory_bytes=Planned(
            value=memory.total_bytes(parts), exact=False, reason="the sum of the parts, at the peak of a step"
        ),
        checkpoint_bytes=Planned(value=saved, exact=False, reason="12 bytes a parameter: weights and two moments"),
        disk_bytes=Planned(value=disk, exact=False, reason=disk_reason),
        step_seconds=Planned(value=time_of.step.seconds, exact=False, reason=time_of.step.reason),
        step_flops=time_of.step_flops,
        shape_key=time_of.shape_key,
        duration_seconds=Planned(value=time_of.total_seconds, exact=False, reason=time_of.reason),
    )


class _Times:
    """Seconds of a step, of the evaluations and of the whole run."""

    def __init__(
        self,
        config: Config,
        hardware: Hardware,
        facts: DataFacts,
        shape: ModelShape,
        cut: BatchCut,
        steps: Steps,
        threads: int,
    ) -> None:
        row_tokens = config.data.max_length
        flops_per_token = shape.training_flops_per_token(row_tokens)
        step_tokens = min(cut.effective, facts.rows) * row_tokens
        self.step_flops = flops_per_token * step_tokens
        self.shape_key = shape_key(shape, cut.micro, min(cut.effective, facts.rows), row_tokens)
        calibration = read_calibration(state_folder(), hardware.cpu_name, threads, self.shape_key, self.step_flops)
        self.step = step_time(self.step_flops, shape.hidden_size, calibration)
        evaluation = self.step.seconds / step_tokens * steps.eval_rows * row_tokens * EVALUATION_SHARE
        training = steps.total.value * self.step.seconds
        self.total_seconds = training + steps.evaluations * evaluation
        self.reason = (
            f"{steps.total.value} steps and {steps.evaluations} evaluations; without loading, saving and text samples"
        )


def shape_key(shape: ModelShape, micro_batch: int, effective_batch: int, row_tokens: int) -> str:
    """Names what decides the time of a step on one machine."""
    parts = [shape.hidden_size, shape.layers, shape.attention_heads, shape.key_value_heads, shape.mlp_size]
    dropout = "d" if shape.attention_dropout else ""
    return "-".join(map(str, [*parts, shape.vocabulary, f"{micro_batch}of{effective_batch}x{row_tokens}{dropout}"]))


def _largest_fit(shape: ModelShape, config: Config, hardware: Hardware, limit: int) -> int:
    """The most rows up to `limit` in one forward pass whose step fits in the memory that is free; at least 1."""
    if hardware.memory_available_bytes is None:
        return limit
    budget = hardware.memory_available_bytes * MEMORY_SHARE
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        parts = memory.memory_parts(
            shape,
            micro_batch=middle,
            eval_batch=middle,
            row_tokens=config.data.max_length,
            accumulation=-(-config.training.effective_batch_size // middle),
        )
        low, high = (middle, high) if memory.total_bytes(parts) <= budget else (low, middle - 1)
    return low


def _effective_reason(cut: BatchCut, facts: DataFacts) -> str:
    if facts.rows >= cut.effective:
        return cut.effective_reason
    return f"{cut.effective_reason}; the data has only {facts.rows} rows, so every step has all of them"


def _eval_batch(loaded: LoadedConfig, cut: BatchCut, facts: DataFacts) -> tuple[int, str]:
    wish = loaded.config.evaluation.per_device_eval_batch_size
    if wish == "auto":
        return cut.micro, "as in training"
    return min(wish, max(facts.eval_rows, 1)), f"from {loaded.where('evaluation.per_device_eval_batch_size')}"


def _threads(hardware: Hardware) -> Planned[int]:
    cores, threads = hardware.usable_cores, training_threads(hardware.usable_cores)
    reason = f"{cores} usable cores, one left for everything else" if threads < cores else f"all {cores} usable cores"
    return Planned(value=threads, exact=True, reason=reason)
