"""`training.effective_batch_size = "auto"`: rows behind a step that feed the card, and leave enough steps to learn in.

The number is that of the hardware profile for the task and the length of its rows (`[[batches]]`), on each card of the
run. Where it has none, and on a CPU, it is the number of rows that the learning rate is meant for. Either is bounded by
the data: at least `LEAST_STEPS` steps are left of the epochs. It is decided once, before anything else of a plan; all
who are asked later read a number.
"""

import math
from dataclasses import fields, replace

from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import Layer, LoadedConfig, ResolvedLoaded
from tui_trainer.config.sections import Config, ResolvedConfig
from tui_trainer.config.toml_files import BatchSize
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO, base_rows
from tui_trainer.planning.processes import processes_of
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB, quantity

# Fewer updates than this teach a pretrained model little, whatever each is made of: three epochs of 3,200 rows at 32.
LEAST_STEPS = 300
_MOST_ROWS = 10**7


def with_rows_of_step(
    loaded: LoadedConfig, hardware: Hardware, facts: DataFacts, chosen_gpu: GpuChoice = None
) -> tuple[ResolvedLoaded, DataFacts]:
    """The config with a number of rows behind a step, and the facts for as many; as they are where the number was
    written. What decided it stands behind the place that the setting comes from. Raises InputError."""
    if loaded.config.training.effective_batch_size != "auto":
        return resolved(loaded), facts
    target = TrainingDevice.of(hardware, chosen_gpu)
    # As many processes as there are with rows for all of them.
    count = processes_of(with_rows(loaded, _MOST_ROWS), hardware, target, chosen_gpu).count.value
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if _both_written(loaded) and isinstance(micro, int) and isinstance(accumulation, int):
        return with_rows(loaded, micro * accumulation * count, f"auto: {MICRO} x {ACCUMULATION}"), facts
    wanted, reason = _wanted(loaded, target.gpu, facts, count)
    most = most_rows_of_step(loaded.config, facts.rows)
    rows = min(wanted, max(most, 1 if loaded.config.distributed.processes == "auto" else count))
    if rows < wanted:
        epochs = f"{quantity(training.num_train_epochs, 'epoch')} of {quantity(facts.rows, 'row')}"
        fewer = f"more would leave fewer than {LEAST_STEPS} steps in {epochs}"
        reason = f"auto: {rows}, because {fewer}; without this limit: {reason}"
    else:
        reason = f"auto: {reason}"
    return with_rows(loaded, rows, reason), facts.of_batch(rows)


def with_rows(loaded: LoadedConfig, rows: int, reason: str = "") -> ResolvedLoaded:
    """The config with this number of rows behind a step in the place of `auto`."""
    return resolved(decided(loaded, EFFECTIVE, rows, reason))


def decided(loaded: LoadedConfig, key: str, value: object, reason: str = "") -> LoadedConfig:
    """The config with a value in the place of `auto`. The reason stands behind the place that the setting is from."""
    where = ", ".join(filter(None, (loaded.where(key), reason)))
    layer = Layer(origin=loaded.origin(key), where=where, values={key: value})
    return replace(loaded, config=with_changes(loaded.config, {key: value}), layers={**loaded.layers, key: layer})


def resolved(loaded: LoadedConfig) -> ResolvedLoaded:
    """Return the config as one whose effective batch size is known to be a number."""
    assert loaded.config.training.effective_batch_size != "auto"
    values = {field.name: getattr(loaded, field.name) for field in fields(LoadedConfig)}
    return ResolvedLoaded(**values | {"config": ResolvedConfig(loaded.config)})


def rows_of_profile(loaded: LoadedConfig, gpu: Gpu, parameters: int) -> int | None:
    """What the hardware profile has for one card and a model of so many parameters, without a look at the data; None
    where it has none."""
    found = _of_profile(loaded, gpu, parameters)
    return found and found[0]


def is_automatic(loaded: LoadedConfig) -> bool:
    """Whether the number is decided here, and would be another one for other data or on another card."""
    return loaded.config.training.effective_batch_size == "auto" and not _both_written(loaded)


def most_rows_of_step(config: Config, rows: int) -> int:
    """The largest power of two that leaves `LEAST_STEPS` steps of the run's epochs over so many rows; at least 1."""
    return 1 << max(0, math.floor(config.training.num_train_epochs * rows / LEAST_STEPS).bit_length() - 1)


def _both_written(loaded: LoadedConfig) -> bool:
    training = loaded.config.training
    numbers = training.per_device_train_batch_size, training.gradient_accumulation_steps
    return all(isinstance(one, int) for one in numbers) and all(
        loaded.origin(key).by_user for key in (MICRO, ACCUMULATION)
    )


def _wanted(loaded: LoadedConfig, gpu: Gpu | None, facts: DataFacts, count: int) -> tuple[int, str]:
    """Rows without a look at how many there are, and why."""
    config, profile = loaded.config, loaded.hardware_profile
    base, who = base_rows(loaded)
    for_rate = f"{base} rows, which the learning rate is meant for ({who})"
    if gpu is None:
        return max(base, count), f"{for_rate}: on a CPU, more rows take proportionally longer"
    if profile is None:
        return max(base, count), f"{for_rate}: {loaded.hardware_reason or 'no hardware profile'}"
    model = find_task(config.task.type).model_shape(config, facts.vocabulary, facts.classes)
    found = _of_profile(loaded, gpu, model.parameters)
    if found is None:
        kind = f"{config.task.type} with {model.parameters / 1e9:.1f} billion parameters and this GPU memory"
        why = f"hardware profile {profile.name} has no value for {kind}"
        return max(base, count), f"{for_rate}: {why}; `tui-trainer tune --effective` measures one"
    rows, words = found
    return rows * count, f"{words} on each of {count} GPUs: {count * rows}" if count > 1 else words


def _of_profile(loaded: LoadedConfig, gpu: Gpu, parameters: int) -> tuple[int, str] | None:
    """Rows behind a step for one card, and where they come from."""
    config, profile = loaded.config, loaded.hardware_profile
    length, base = config.data.max_length, base_rows(loaded)[0]
    fitting = [
        one
        for one in (profile.batches if profile else ())
        if config.task.type in one.tasks and _has_memory(one, gpu) and parameters <= one.parameters_at_most
    ]
    if not fitting or profile is None:
        return None
    nearest = min(fitting, key=lambda one: abs(math.log(one.tokens / length)))
    rows, words = nearest.rows, f"{nearest.rows} rows of {nearest.tokens} tokens"
    if nearest.tokens != length:
        # Of longer rows fewer have as many tokens, but passes may be smaller: no fewer than the learning rate is for.
        rows = max(base, 1 << max(0, (nearest.rows * nearest.tokens // length).bit_length() - 1))
        words = f"{rows} rows of {length} tokens, because {words} keep the GPU busy"
    return rows, f"{words} (hardware profile {profile.name}: {nearest.source})"


def _has_memory(one: BatchSize, gpu: Gpu) -> bool:
    """Of a card that does not report its memory, only numbers for any."""
    low, high = one.memory_gib
    return low <= gpu.memory_bytes / GIB <= high if gpu.memory_bytes else low <= 0
