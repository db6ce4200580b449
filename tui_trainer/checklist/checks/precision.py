"""Products in 16 bits are faster and halve activations, where the processor has them natively.

Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.basis import with_settings

_KEY = choices.MIXED


@check(
    order=100,
    title="Mixed precision",
    is_for_speed=True,
    published="memory of activations nearly halved (arXiv:1710.03740)",
    fallback={_KEY: "auto"},
)
def look(context: Context) -> Verdict:
    used = context.planned.precision
    loaded = with_settings(context.loaded, {_KEY: "auto"})
    best = choices.precision(loaded, context.hardware, context.basis.target, context.basis.shape)
    switch = f"precision: {used.value}"
    if used.value != best.value:
        sentence = f"{used.value}, {used.reason}; auto would be {best.value}: {best.reason}"
        return warned(sentence, fix={_KEY: "auto"}, switch=switch)
    sentence = f"{used.value}: {best.reason}"
    if used.value == "fp32":
        target = context.basis.target
        has_bf16 = target.bf16 if target.gpu else context.hardware.cpu_flags & BF16_FLAGS
        return not_applicable(sentence, switch=switch, opposite={_KEY: "bf16"} if has_bf16 else None)
    return passed(sentence, switch=switch, opposite={_KEY: "no"})
