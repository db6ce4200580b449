"""Find settings that a run does not read, because of its task, method, model or machine.

The Config screen hides them. Most of them are refused if a user sets them (`conflicts.py`, and the tasks' own
`problems`).
"""

from collections.abc import Iterator

from tui_trainer.config.load import all_settings
from tui_trainer.config.sections import GATE_SUITE, Config
from tui_trainer.errors import ConfigError
from tui_trainer.methods.lr_schedules import LR_SCHEDULES
from tui_trainer.tasks import find_task
from tui_trainer.tasks.parts.learns_from_data import COLUMN_SETTINGS

_ANY_METHOD = ("method", "trainable_layers", "continue_adapter")
_OF_A_GPU = (
    "training.tf32", "training.empty_cache_steps", "dataloader.pin_memory", "distributed.cpu_offload",
    "tuning.fused_adapters",
)  # fmt: skip
_OF_SEVERAL = ("distributed.strategy", "distributed.cpu_offload", "distributed.rendezvous")


def unread_settings(config: Config, *, has_gpu: bool) -> dict[str, str]:
    """Return a reason for each setting that this run does not read, by key: `the task char_lm has no use for it`."""
    reasons: dict[str, str] = {}
    for reason, keys in _unread(config, has_gpu):
        for key in keys:
            reasons.setdefault(key, reason)
    return reasons


def _unread(config: Config, has_gpu: bool) -> Iterator[tuple[str, list[str]]]:
    def keys_of(name: str, *read_names: str) -> list[str]:
        prefix = f"{name}."
        section_keys = [key for key in all_settings() if key.startswith(prefix)]
        return [key for key in section_keys if key.removeprefix(prefix) not in read_names]

    tuning, training = config.tuning, config.training
    try:
        task = find_task(config.task.type)
    except ConfigError:
        task = None
    if task is not None:
        reason = f"the task {task.name} does not use it"
        yield reason, keys_of("task", "type", *task.used_settings)
        yield reason, [f"data.{name}" for name in COLUMN_SETTINGS if name not in task.used_column_settings]
        yield reason, ["evaluation.generate_rows", GATE_SUITE] * (not task.usual_answer_rows)
        yield f"rows of {task.name} are never packed", ["data.packing"] * (not task.can_pack)
        yield "rows of a table are not limited by characters", ["data.max_chars"] * (task.row_kind == "examples")
        reason = "rows that are cut from one text have equal length"
        yield reason, ["data.group_by_length"] * (task.row_kind == "stream")
    if config.is_from_scratch:
        fields = ("revision", "trust_remote_code", "towers", "text_only")
        yield "the model starts from random weights", [f"model.{name}" for name in fields] + keys_of("tuning", "method")
    else:
        yield "the model is pretrained", keys_of("model.scratch")
    if config.model.rope_scaling.rope_type == "default":
        yield "positions are not scaled (rope_type)", keys_of("model.rope_scaling", "rope_type")
    if tuning.has_adapter:
        yield f"{tuning.method} trains only an adapter", ["tuning.trainable_layers"]
    else:
        yield f"tuning.method = {tuning.method} has no adapter", keys_of("tuning", *_ANY_METHOD)
    if not tuning.in_four_bits:
        yield f"tuning.method = {tuning.method} has no 4-bit weights", keys_of("quantization")
    schedule = LR_SCHEDULES[training.lr_scheduler_type]
    schedule_reason = f"the {training.lr_scheduler_type} schedule does not use it"
    yield schedule_reason, ["training.min_lr_rate"] * (not schedule.has_floor)
    yield schedule_reason, ["training.num_decay_steps", "training.decay_type"] * (not schedule.has_decay_steps)
    if not training.torch_compile:
        yield "training.torch_compile is false", ["training.torch_compile_mode"]
    if not config.evaluation.early_stopping_patience:
        yield "evaluation.early_stopping_patience is 0", ["evaluation.early_stopping_threshold"]
    if len(config.data.paths) < 2:
        yield "there is only one data source", ["data.weights"]
    if not config.data.replay:
        yield "data.replay is empty", ["data.replay_share"]
    if not has_gpu:
        yield "this machine has no GPU", list(_OF_A_GPU)
    if config.distributed.nodes == 1 and config.distributed.processes in ((1,) if has_gpu else (1, "auto")):
        yield "the run uses one process", list(_OF_SEVERAL)
