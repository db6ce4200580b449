"""Attention by a library of its own: kept where it computes what torch's does, with the data's own padded rows.

Whether it keeps packed documents apart is asked later, by `leak_probe.py`.
"""

from __future__ import annotations

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.safe_text import one_line
from tui_trainer.training.device import breaks_the_device
from tui_trainer.training.job import Tell
from tui_trainer.training.rounding_probe import Probed, difference


def check_attention(run: Probed, batch: MicroBatch, tell: Tell) -> None:
    """Back to torch's kernel, or the model's own operations where it has none for it, where the library's differs."""
    model = run.model
    requested = str(model.config._attn_implementation)
    own = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
    model.set_attn_implementation(own)
    try:
        reason = difference(run, batch, lambda: model.set_attn_implementation(requested))
        reason = reason and f"with it {reason}, more than rounding does here"
    except Exception as error:  # libraries raise whatever their parts raise
        if breaks_the_device(error):
            raise
        reason = one_line(f"{type(error).__name__}: {error}", 200)
    if reason:
        model.set_attn_implementation(own)
        hint = 'model.attn_implementation = "auto" takes it from the start'
        tell("attention changed", f"{requested} is not used: {reason}", f"{own} is used instead; {hint}")
