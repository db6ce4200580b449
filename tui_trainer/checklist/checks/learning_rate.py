"""Is the peak learning rate in the range that the method takes?"""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, not_applicable, passed, warned
from tui_trainer.planning.choices import is_from_scratch

_KEY = "training.learning_rate"
# Least and most with AdamW: pretrained weights are only to be nudged, adapters begin at zero.
_SCRATCH, _LORA, _FULL = (1e-5, 1e-2), (2e-5, 2e-3), (1e-6, 2e-4)
_OF_ANOTHER_SCALE = ("sgd", "adafactor")


def look(context: Context) -> Verdict:
    rate, config = context.learning_rate, context.config
    sentence = f"peak learning rate {rate.value:g}, {rate.reason}"
    if config.training.optim in _OF_ANOTHER_SCALE:
        return not_applicable(f"{sentence}; the ranges known here are AdamW's, and {config.training.optim} has others")
    least, most, what = _range(context)
    if rate.value > most:
        return warned(f"{sentence}: above {most:g}, where {what} tends to diverge", fix={_KEY: "auto"})
    if rate.value < least:
        return warned(f"{sentence}: below {least:g}, {what} hardly moves", fix={_KEY: "auto"})
    return passed(f"{sentence}; {least:g} to {most:g} for {what}")


def _range(context: Context) -> tuple[float, float, str]:
    if is_from_scratch(context.config):
        return *_SCRATCH, "a model from random weights"
    if context.config.tuning.has_adapter:
        return *_LORA, "LoRA"
    return *_FULL, "a pretrained model"


CHECK = Check(
    name="learning_rate",
    order=420,
    title="Learning rate in range",
    guides=("C hyperparameter tuning", "C training is unstable 1", "A training strategy 1"),
    claim="2e-4 to start with, for LoRA on pretrained models (guide C); 5e-5 for all weights (guide A)",
    why="Too high, and the loss jumps or becomes NaN; too low, and the run ends before it has learnt.",
    look=look,
    needs_plan=False,
)
