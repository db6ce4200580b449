"""Is the peak learning rate in the range that AdamW takes?"""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, passed, warned

_KEY, _LEAST, _MOST, _GOOD = "training.learning_rate", 1e-5, 1e-2, 1e-3


def look(context: Context) -> Verdict:
    rate = context.config.training.learning_rate
    sentence = f"peak learning rate {rate:g}, from {context.loaded.where(_KEY)}"
    if rate > _MOST:
        return warned(f"{sentence}: above {_MOST:g}, where AdamW tends to diverge", fix={_KEY: _GOOD})
    if rate < _LEAST:
        return warned(f"{sentence}: below {_LEAST:g}, random weights hardly move", fix={_KEY: _GOOD})
    return passed(sentence)


CHECK = Check(
    name="learning_rate",
    order=420,
    title="Learning rate in range",
    guides=("C hyperparameter tuning", "C training is unstable 1"),
    claim="2e-4 to start with, for pretrained models (guide C)",
    why="Too high, and the loss jumps or becomes NaN; too low, and the run ends before it has learnt.",
    look=look,
    needs_plan=False,
)
