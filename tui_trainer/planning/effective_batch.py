"""Decide `training.effective_batch_size = "auto"` and `training.num_train_epochs = "auto"`, before the rest of a plan.

On each GPU, a step has the number of rows that the hardware profile gives for the task and its row length
(`[[batches]]`). If the profile has none, and on a CPU, it is the number that the learning rate was chosen for. Small
data gets fewer rows in a step, and more epochs, because a run needs some hundred steps.
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
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY, base_rows
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.processes import processes_of
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB, quantity

EPOCHS_KEY = "training.num_train_epochs"
# With fewer updates a pretrained model learns little, at any batch size: 300 are 3 epochs of 3,200 rows at 32 a step.
LEAST_STEPS_OF_A_RUN = 300
# Small data gets more epochs rather than smaller steps: a BERT of 22 million weights that learned from 30 texts reached
# a macro F1 of 0.57 in 10 epochs with 8 rows per step, and 0.40 in 3 epochs with 1 row.
LEAST_ROWS = 8
USUAL_EPOCHS, MOST_EPOCHS = 3, 10
# Warm-up and decay alone take dozens of updates, so a check warns about shorter runs, and proposes GOOD_STEPS.
WARNED_STEPS, GOOD_STEPS = 100, 200
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
    unlimited_config = _with_epochs(with_decided(loaded, EFFECTIVE_BATCH_KEY, _MOST_ROWS), facts.rows)
    process_count = processes_of(unlimited_config, hardware, target, chosen_gpu).count.value
    training = loaded.config.training
    micro_rows, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if _both_written(loaded) and isinstance(micro_rows, int) and isinstance(accumulation, int):
        rows, reason = micro_rows * accumulation * process_count, f"auto: {MICRO_BATCH_KEY} x {ACCUMULATION_KEY}"
        return _with_epochs(with_decided(loaded, EFFECTIVE_BATCH_KEY, rows, reason), facts.rows), facts
    suitable_rows, reason = _rows_per_step(loaded, target.gpu, facts, process_count)
    largest_step = most_rows_of_step(loaded.config.training.num_train_epochs, facts.rows)
    rows = min(suitable_rows, max(largest_step, 1 if loaded.config.distributed.processes == "auto" else process_count))
    if rows < suitable_rows:
        limit_reason = f"{quantity(facts.rows, 'row')} in larger batches give fewer than {LEAST_STEPS_OF_A_RUN} steps"
        reason = f"auto: {rows}, because {limit_reason}; without this limit: {reason}"
    else:
        reason = f"auto: {reason}"
    return _with_epochs(with_decided(loaded, EFFECTIVE_BATCH_KEY, rows, reason), facts.rows), facts.of_batch(rows)


def _with_epochs(loaded: LoadedConfig, rows: int) -> ResolvedLoaded:
    """Return the config with its epochs as a number: more than usual if `rows` rows of data would give few steps."""
    step_rows = loaded.config.training.effective_batch_size
    if loaded.config.training.num_train_epochs == "auto" and step_rows != "auto":
        epoch_steps = steps_per_epoch(rows, step_rows)
        epochs = min(max(USUAL_EPOCHS, math.ceil(GOOD_STEPS / epoch_steps)), MOST_EPOCHS)
        epochs_reason = f"auto: {epochs}, because {USUAL_EPOCHS} epochs would have fewer than {GOOD_STEPS} steps"
        loaded = with_decided(loaded, EPOCHS_KEY, float(epochs), epochs_reason if epochs > USUAL_EPOCHS else "auto")
    return resolved(loaded)


def epochs_figure(loaded_before: LoadedConfig, loaded: ResolvedLoaded) -> Planned[float] | None:
    """Return the epochs that `num_train_epochs = "auto"` became; None if the user set a number, or `max_steps`."""
    training = loaded_before.config.training
    is_decided = training.num_train_epochs == "auto" and not training.max_steps
    return exact(epochs_of(loaded.config), f"from {loaded.where(EPOCHS_KEY)}") if is_decided else None


def resolved_like(loaded: LoadedConfig, plan: ResolvedConfig) -> ResolvedLoaded:
    """Return `loaded` with the numbers of a plan's config in place of `auto` for rows per step and epochs."""
    for key in (EFFECTIVE_BATCH_KEY, EPOCHS_KEY):
        if value_of(loaded.config, key) == "auto":
            loaded = with_decided(loaded, key, value_of(plan, key))
    return resolved(loaded)


def with_decided(loaded: LoadedConfig, key: str, value: object, reason: str = "") -> LoadedConfig:
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
    """Return the largest power of two of rows per step that leaves `LEAST_STEPS_OF_A_RUN` steps in the epochs.

    It is at least `LEAST_ROWS`, unless the data has fewer rows.
    """
    epochs = USUAL_EPOCHS if epochs == "auto" else epochs
    return _power_of_two_up_to(max(epochs * rows / LEAST_STEPS_OF_A_RUN, min(LEAST_ROWS, rows)))


def _power_of_two_up_to(limit: float) -> int:
    return 1 << max(0, math.floor(limit).bit_length() - 1)


def _both_written(loaded: LoadedConfig) -> bool:
    keys = (MICRO_BATCH_KEY, ACCUMULATION_KEY)
    return all(isinstance(value_of(loaded.config, key), int) and loaded.origin(key).by_user for key in keys)


def _rows_per_step(loaded: LoadedConfig, gpu: Gpu | None, facts: DataFacts, count: int) -> tuple[int, str]:
    """Return the rows per step that suit the GPU and the learning rate, for data of any size, and the reason."""
    config, profile = loaded.config, loaded.hardware_profile
    base_row_count, source = base_rows(loaded)
    base_text = f"the {base_row_count} rows that the learning rate is meant for ({source})"
    if gpu is None:
        return max(base_row_count, count), f"{base_text}, because more rows take proportionally longer on a CPU"
    if profile is None:
        return max(base_row_count, count), f"{base_text}: {loaded.hardware_reason or 'no hardware profile'}"
    model_shape = find_task(config.task.type).model_shape(config, facts.vocabulary, facts.class_count)
    rows_and_source = _of_profile(loaded, gpu, model_shape.parameters)
    if rows_and_source is None:
        case = f"{config.task.type} with {model_shape.parameters / 1e9:.1f} billion parameters on this GPU"
        reason = f"hardware profile {profile.name} has no value for {case}; `tui-trainer tune --effective` measures it"
        return max(base_row_count, count), f"{base_text}: {reason}"
    rows, rows_text = rows_and_source
    return rows * count, f"{rows_text} on each of {count} GPUs: {count * rows}" if count > 1 else rows_text


def _of_profile(loaded: LoadedConfig, gpu: Gpu, parameters: int) -> tuple[int, str] | None:
    """Return the rows per step that the hardware profile has for one GPU, and their source; None if it has none."""
    config, profile = loaded.config, loaded.hardware_profile
    max_length, least_rows = config.data.max_length, base_rows(loaded)[0]
    fitting_batches = [
        batch
        for batch in (profile.batches if profile else ())
        if config.task.type in batch.tasks and _has_memory(batch, gpu) and parameters <= batch.parameters_at_most
    ]
    if not fitting_batches or profile is None:
        return None
    nearest_batch = min(fitting_batches, key=lambda batch: abs(math.log(batch.tokens / max_length)))
    rows, rows_text = nearest_batch.rows, f"{nearest_batch.rows} rows of {nearest_batch.tokens} tokens"
    if nearest_batch.tokens != max_length:
        # Longer rows give fewer rows for the same tokens, but not fewer than the learning rate is meant for.
        rows = max(least_rows, _power_of_two_up_to(nearest_batch.rows * nearest_batch.tokens / max_length))
        rows_text = f"{rows} rows of {max_length} tokens, because {rows_text} keep the GPU busy"
    return rows, f"{rows_text} (hardware profile {profile.name}: {nearest_batch.source})"


def _has_memory(batch: BatchSize, gpu: Gpu) -> bool:
    """Return whether a profile's batch size is for GPUs with this memory, or for any memory if the GPU reports none."""
    lowest_gib, highest_gib = batch.memory_gib
    return lowest_gib <= gpu.memory_bytes / GIB <= highest_gib if gpu.memory_bytes else lowest_gib <= 0
