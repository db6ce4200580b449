"""Is attention computed by the fused kernel? On a CPU, dropout takes it off that path."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, passed, warned
from tui_trainer.planning.memory import activation_bytes_per_token
from tui_trainer.planning.model_shape import ModelShape
from tui_trainer.units import format_bytes

_KEY = "model.scratch.attention_dropout"


def look(context: Context) -> Verdict:
    scratch, row_tokens = context.config.model.scratch, context.config.data.max_length
    plan = context.planned
    tokens = plan.per_device_train_batch_size.value * row_tokens * scratch.num_hidden_layers
    fused_shape = ModelShape.of(scratch.model_copy(update={"attention_dropout": 0.0}), plan.vocabulary.value)
    fused = tokens * activation_bytes_per_token(fused_shape, row_tokens)
    if not scratch.attention_dropout:
        return passed(
            f"fused attention without a mask: {format_bytes(fused)} of activations, no scores kept",
            switch="fused attention on",
        )
    kept = tokens * activation_bytes_per_token(ModelShape.of(scratch, plan.vocabulary.value), row_tokens)
    return warned(
        f"attention_dropout {scratch.attention_dropout:g} keeps all scores: {format_bytes(kept)} of activations, "
        f"{format_bytes(fused)} with the fused kernel",
        "a width of 192 reached 44 % of the rate of matrix products with dropout, 58 % without (measured on one core)",
        # No fix: dropout is part of what is learnt, not only of how fast.
        advice=f"{_KEY} = 0 is faster; dropout works against overfitting where the held-out loss begins to rise",
        switch="fused attention: off, there is dropout",
    )


CHECK = Check(
    name="attention",
    order=140,
    title="Fused attention",
    guides=("E optimisation 10", "C quick win 4", "C checklist 8", "B advanced 1"),
    claim="2-4x faster attention (guide E); 20-40 % for long rows (guide C); 30-40 % (guide B)",
    why="The fused kernel never writes the scores of each pair of tokens to memory.",
    look=look,
)
