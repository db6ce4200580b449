"""A mean over more rows has less noise, so the step along it can be longer.

Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677 (linear); Krizhevsky,
arXiv:1404.5997 (square root).
"""

import math
from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.planning.batching import EFFECTIVE

_KEY, _LEAST_RATIO = "training.learning_rate", 4.0
_MOST_RATE = 1e-2


@check(
    order=430,
    title="Learning rate fits the batch",
)
def look(context: Context) -> Verdict:
    loaded, recipe = context.loaded, context.loaded.recipe
    written: dict[str, Any] = recipe.values.get("training", {}) if recipe else {}
    rate, rows = written.get("learning_rate"), written.get("effective_batch_size")
    if recipe is None or not rate or not rows:
        return not_applicable("no recipe says for which batch its learning rate was chosen")
    effective = context.planned.effective_batch_size.value
    if rate == "auto":
        now = context.learning_rate.value
        return not_applicable(f"recipe {recipe.name} leaves the rate to the method: {now:g} for {effective} rows")
    if context.config.training.lr_scaling != "none":
        return passed(f"learning rate {context.learning_rate.value:g}: {context.learning_rate.reason}")
    sentence = f"recipe {recipe.name} has learning rate {rate:g} for {rows} rows, this run has {effective}"
    if loaded.origin(_KEY).by_user:
        return passed(f"{sentence}; {context.learning_rate.value:g} is your own")
    ratio = effective / rows
    if 1 / _LEAST_RATIO < ratio < _LEAST_RATIO:
        return passed(sentence)
    scaled = float(f"{min(rate * math.sqrt(ratio), _MOST_RATE):.3g}")
    advice = f"scaled with the square root of {ratio:.3g}; linear scaling would give {rate * ratio:.3g}"
    return warned(sentence, fix={_KEY: scaled}, advice=f"{advice}. Set it yourself to keep it: {EFFECTIVE} stays")
