"""How often the data is seen, and the setting that decides it."""

from __future__ import annotations

import math
from typing import Any

from tui_trainer.checklist.contract import Context


def epochs(context: Context) -> float:
    """Planned passes over the training text."""
    return context.planned.total_steps.value / context.planned.steps_per_epoch.value


def with_steps(context: Context, steps: int) -> dict[str, Any]:
    """So many steps or a few more, through the setting that decides their number today."""
    if context.config.training.max_steps:
        return {"training.max_steps": steps}
    return {"training.num_train_epochs": float(math.ceil(steps / context.planned.steps_per_epoch.value))}
