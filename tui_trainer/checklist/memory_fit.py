"""The memory that a plan would need with another batch, from the same formula as the plan's."""

from __future__ import annotations

from tui_trainer.checklist.contract import Context
from tui_trainer.planning.memory import memory_parts, total_bytes
from tui_trainer.planning.model_shape import ModelShape


def memory_with(context: Context, micro_batch: int, eval_batch: int | None = None) -> int:
    """Bytes at the peak with so many rows in a pass; an evaluation takes as many unless said otherwise."""
    plan, config = context.planned, context.config
    wish = config.evaluation.per_device_eval_batch_size
    planned_eval = micro_batch if wish == "auto" else plan.per_device_eval_batch_size.value
    return total_bytes(
        memory_parts(
            ModelShape.of(config.model.scratch, plan.vocabulary.value),
            micro_batch=micro_batch,
            eval_batch=planned_eval if eval_batch is None else eval_batch,
            row_tokens=config.data.max_length,
            accumulation=-(-plan.effective_batch_size.value // micro_batch),
        )
    )
