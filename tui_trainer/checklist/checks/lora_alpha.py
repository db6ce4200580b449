"""Lowering the rank alone, to save memory, makes the update stronger: alpha goes with it.

Source: Hu et al., LoRA, arXiv:2106.09685, section 4.1.
"""

import math

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_KEY = "tuning.lora_alpha"
_LEAST, _GOOD, _MOST = 0.5, 2.0, 4.0


@check(
    order=205,
    title="LoRA's update is scaled well",
)
def look(context: Context) -> Verdict:
    tuning = context.config.tuning
    if not tuning.has_adapter:
        return not_applicable(f'tuning.method = "{tuning.method}" has no adapter to scale')
    # rsLoRA divides by the root, so that wide updates do not fade (arXiv:2312.03732).
    by = math.sqrt(tuning.r) if tuning.use_rslora else float(tuning.r)
    factor = tuning.lora_alpha / by
    root = "the root of " if tuning.use_rslora else ""
    sentence = f"updates are scaled by {factor:.3g}: lora_alpha {tuning.lora_alpha:g} / {root}r {tuning.r}"
    fix = {_KEY: float(f"{_GOOD * by:.3g}")}
    if factor > _MOST:
        return warned(f"{sentence}; above {_MOST:g} it is a higher learning rate in disguise", fix=fix)
    if factor < _LEAST:
        return warned(f"{sentence}; below {_LEAST:g} the adapters hardly change the model", fix=fix)
    return passed(sentence)
