"""Decide `training.effective_batch_size = "auto"` and `training.num_train_epochs = "auto"`, before the rest of a plan.

On each GPU, a step has the rows that the hardware profile gives for the task and its row length (`[[batches]]`). If the
profile has none, and on a CPU, a step has the rows that the learning rate is meant for. Small data gets fewer rows in a
step, and more epochs, because a run needs some hundred steps.
"""

import math
from dataclasses import fields, replace

from tui_trainer.config.changes import with_changes
from tui_trainer.config.fields import Auto
from tui_trainer.config.load import Layer, LoadedConfig, ResolvedLoaded, value_of
from tui_trainer.config.sections import ResolvedConfig, epochs_of
from tui_trainer.config.toml_files import BatchSize
from tui_trainer.data.batching.row_order import steps_per_epoch
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO, base_rows
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.processes import processes_of
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB, quantity

EPOCHS = "training.num_train_epochs"
# With fewer updates a pretrained model learns little, at any batch size: 300 are 3 epochs of 3,200 rows at 32 a step.
LEAST_STEPS = 300
# Small data gets more epochs rather than smaller steps: a BERT of 23 million weights that learned from 30 texts reached
# a macro F1 of 0.62 in 10 epochs with 8 rows per step, and 0.40 in 3 epochs with 1 row.
LEAST_ROWS = 8
USUAL_EPOCHS, MOST_EPOCHS = 3, 10
# Warm-up and decay alone take dozens of updates. With fewer than 100 steps a run is warned about.
FEWEST_STEPS, GOOD_STEPS = 100, 200
_MOST_ROWS = 10**7


def with_rows_of_step(
    loaded: LoadedConfig, hardware: Hardware, facts: DataFacts, chosen_gpu: GpuChoice = None
) -> tuple[ResolvedLoaded, DataFacts]:
    """Return the config with its rows per step and epochs as numbers, and the facts of the data for such steps.

    The source of a decided setting (`loaded.where`) has the reason. Raises InputError.
    """
    if loaded.config.training.effective_batch_size != "auto":
        return _with_epochs(loaded, facts.rows), facts
    target = TrainingDevice.of(hardware, chosen_gpu)
    # The rows are enough for a process on every usable GPU.
    unlimited = _with_epochs(decided(loaded, EFFECTIVE, _MOST_ROWS), facts.rows)
    count = processes_of(unlimited, hardware, target, chosen_gpu).count.value
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if _both_written(loaded) and isinstance(micro, int) and isinstance(accumulation, int):
        rows, reason = micro * accumulation * count, f"auto: {MICRO} x {ACCUMULATION}"
        return _with_epochs(decided(loaded, EFFECTIVE, rows, reason), facts.rows), facts
    wanted, reason = _rows_per_step(loaded, target.gpu, facts, count)
    most = most_rows_of_step(loaded.config.training.num_train_epochs, facts.rows)
    rows = min(wanted, max(most, 1 if loaded.config.distributed.processes == "auto" else count))
    if rows < wanted:
        fewer = f"with more, {quantity(facts.rows, 'row')} would give fewer than {LEAST_STEPS} steps"
        reason = f"auto: {rows}, because {fewer}; without this limit: {reason}"
    else:
        reason = f"auto: {reason}"
    return _with_epochs(decided(loaded, EFFECTIVE, rows, reason), facts.rows), facts.of_batch(rows)


def _with_epochs(loaded: LoadedConfig, rows: int) -> ResolvedLoaded:
    """Return the config with its epochs as a number: more than usual if `rows` rows of data would give few steps."""
    step_rows = loaded.config.training.effective_batch_size
    if loaded.config.training.num_train_epochs == "auto" and step_rows != "auto":
        per_epoch = steps_per_epoch(rows, step_rows)
        epochs = min(max(USUAL_EPOCHS, math.ceil(GOOD_STEPS / per_epoch)), MOST_EPOCHS)
        more = f"auto: {epochs}, because {USUAL_EPOCHS} would leave fewer than {GOOD_STEPS} steps"
        loaded = decided(loaded, EPOCHS, float(epochs), more if epochs > USUAL_EPOCHS else "auto")
    return resolved(loaded)


def epochs_figure(asked: LoadedConfig, loaded: ResolvedLoaded) -> Planned[float] | None:
    """Return the epochs that `num_train_epochs = "auto"` became; None if the user set a number, or `max_steps`."""
    training = asked.config.training
    is_decided = training.num_train_epochs == "auto" and not training.max_steps
    return exact(epochs_of(loaded.config), f"from {loaded.where(EPOCHS)}") if is_decided else None


def resolved_like(loaded: LoadedConfig, plan: ResolvedConfig) -> ResolvedLoaded:
    """Return `loaded` with the numbers of a plan's config in place of `auto` for rows per step and epochs."""
    for key in (EFFECTIVE, EPOCHS):
        if value_of(loaded.config, key) == "auto":
            loaded = decided(loaded, key, value_of(plan, key))
    return resolved(loaded)


def decided(loaded: LoadedConfig, key: str, value: object, reason: str = "") -> LoadedConfig:
    """Return the config with `value` instead of `auto`. The reason is appended to the source of the setting."""
    where = ", ".join(filter(None, (loaded.where(key), reason)))
    layer = Layer(origin=loaded.origin(key), where=where, values={key: value})
    return replace(loaded, config=with_changes(loaded.config, {key: value}), layers={**loaded.layers, key: layer})


def resolved(loaded: LoadedConfig) -> ResolvedLoaded:
    """Return the config with the type for numbers of rows per step and epochs, which must not be `auto` any more."""
    assert "auto" not in (loaded.config.training.effective_batch_size, loaded.config.training.num_train_epochs)
    values = {field.name: getattr(loaded, field.name) for field in fields(LoadedConfig)}
    return ResolvedLoaded(**values | {"config": ResolvedConfig(loaded.config)})


def rows_of_profile(loaded: LoadedConfig, gpu: Gpu, parameters: int) -> int | None:
    """Return the rows per step that the hardware profile has for one GPU and this model size; None if it has none."""
    rows_and_reason = _of_profile(loaded, gpu, parameters)
    return rows_and_reason and rows_and_reason[0]


def is_automatic(loaded: LoadedConfig) -> bool:
    """Return whether this module decides the rows per step, so that they depend on the data and the GPU."""
    return loaded.config.training.effective_batch_size == "auto" and not _both_written(loaded)


def most_rows_of_step(epochs: float | Auto, rows: int) -> int:
    """Return the largest power of two of rows per step with which `epochs` over `rows` rows have `LEAST_STEPS` steps.

    It is at least `LEAST_ROWS`, unless the data has fewer rows.
    """
    epochs = USUAL_EPOCHS if epochs == "auto" else epochs
    return _power_of_two(max(epochs * rows / LEAST_STEPS, min(LEAST_ROWS, rows)))


def _power_of_two(most: float) -> int:
    return 1 << max(0, math.floor(most).bit_length() - 1)


def _both_written(loaded: LoadedConfig) -> bool:
    training = loaded.config.training
    numbers = training.per_device_train_batch_size, training.gradient_accumulation_steps
    return all(isinstance(number, int) for number in numbers) and all(
        loaded.origin(key).by_user for key in (MICRO, ACCUMULATION)
    )


def _rows_per_step(loaded: LoadedConfig, gpu: Gpu | None, facts: DataFacts, count: int) -> tuple[int, str]:
    """Return the rows per step that suit the GPU and the learning rate, for data of any size, and the reason."""
    config, profile = loaded.config, loaded.hardware_profile
    base, source = base_rows(loaded)
    rate_words = f"{base} rows, which the learning rate is meant for ({source})"
    if gpu is None:
        return max(base, count), f"{rate_words}: on a CPU, more rows take proportionally longer"
    if profile is None:
        return max(base, count), f"{rate_words}: {loaded.hardware_reason or 'no hardware profile'}"
    model = find_task(config.task.type).model_shape(config, facts.vocabulary, facts.classes)
    rows_and_source = _of_profile(loaded, gpu, model.parameters)
    if rows_and_source is None:
        kind = f"{config.task.type} with {model.parameters / 1e9:.1f} billion parameters and this GPU memory"
        reason = f"hardware profile {profile.name} has no value for {kind}"
        return max(base, count), f"{rate_words}: {reason}; `tui-trainer tune --effective` measures one"
    rows, words = rows_and_source
    return rows * count, f"{words} on each of {count} GPUs: {count * rows}" if count > 1 else words


def _of_profile(loaded: LoadedConfig, gpu: Gpu, parameters: int) -> tuple[int, str] | None:
    """Return the rows per step that the hardware profile has for one GPU, and their source; None if it has none."""
    config, profile = loaded.config, loaded.hardware_profile
    length, base = config.data.max_length, base_rows(loaded)[0]
    fitting = [
        batch
        for batch in (profile.batches if profile else ())
        if config.task.type in batch.tasks and _has_memory(batch, gpu) and parameters <= batch.parameters_at_most
    ]
    if not fitting or profile is None:
        return None
    nearest = min(fitting, key=lambda batch: abs(math.log(batch.tokens / length)))
    rows, words = nearest.rows, f"{nearest.rows} rows of {nearest.tokens} tokens"
    if nearest.tokens != length:
        # Longer rows give fewer rows for the same tokens, but not fewer than the learning rate is meant for.
        rows = max(base, _power_of_two(nearest.rows * nearest.tokens / length))
        words = f"{rows} rows of {length} tokens, because {words} keep the GPU busy"
    return rows, f"{words} (hardware profile {profile.name}: {nearest.source})"


def _has_memory(batch: BatchSize, gpu: Gpu) -> bool:
    """Return whether a profile's batch size is for GPUs with this memory, or for any memory if the GPU reports none."""
    low, high = batch.memory_gib
    return low <= gpu.memory_bytes / GIB <= high if gpu.memory_bytes else low <= 0
