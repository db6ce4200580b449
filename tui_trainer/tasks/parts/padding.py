"""How the rows of a task become a batch in a run, as training and the preview of it both have it."""

from typing import Any

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import WIDTH_STEP, Collate, in_even_widths
from tui_trainer.tasks.contract import Task

# Families whose answers more padding changes, though they are told of it: they mix positions without a mask (fnet),
# pool or convolve over them (funnel, canine, yoso), or read the last one (xlnet). Tiny models of each, 13 tokens alone
# and with 3 of padding: logits moved by 0.6 % of the largest (yoso) to more than all of it.
_PADDING_COUNTS = frozenset({"xlnet", "fnet", "funnel", "canine", "yoso"})


def padding_collate(task: Task, config: Config, model: Any, pad_id: int, longest_row: int) -> Collate:
    """The task's own; where the model is told of padding, up to even widths, `longest_row` at the most."""
    own = task.collate(model, pad_id)
    if width_step(task, model.config.model_type) == 1:
        return own
    return in_even_widths(own, pad_id, longest_row, config.task.max_target_length)


def width_step(task: Task, model_type: str) -> int:
    """What the widths of rows are a multiple of; 1: each pass is as wide as its longest row."""
    return WIDTH_STEP if task.tells_padding and model_type not in _PADDING_COUNTS else 1
