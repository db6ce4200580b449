"""Attention by a library of its own: kept where it computes what torch's does, with the data's own padded rows.

Whether it keeps packed documents apart is asked later, by `leak_probe.py`.
"""

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.job import Tell
from tui_trainer.training.rounding_probe import Probed, reason_against


def check_attention(run: Probed, batch: MicroBatch, tell: Tell) -> None:
    """Back to torch's kernel, or the model's own operations where it has none for it, where the library's differs."""
    model = run.model
    requested = str(model.config._attn_implementation)
    own = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
    model.set_attn_implementation(own)
    if reason := reason_against(run, batch, lambda: model.set_attn_implementation(requested)):
        model.set_attn_implementation(own)
        hint = 'model.attn_implementation = "auto" takes it from the start'
        tell("attention changed", f"{requested} is not used: {reason}", f"{own} is used instead; {hint}")
