"""Frozen weights need not be exact; each product unpacks them first, which costs time.

Source: Dettmers et al., QLoRA, arXiv:2305.14314.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import is_short, memory_with
from tui_trainer.errors import ConfigError
from tui_trainer.planning.duration import UNPACKING_TIMES
from tui_trainer.planning.remedies import BITSANDBYTES, METHOD
from tui_trainer.units import format_bytes

_INSTALL = f"uv pip install {BITSANDBYTES}, then --set tuning.method=qlora"


@check(
    order=295,
    title="Four bits where memory is short",
    published="4.127 bits a parameter (QLoRA, arXiv:2305.14314, section 3)",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    if context.config.is_from_scratch:
        return not_applicable("every weight of a model from scratch is trained: none can be frozen in 4 bits")
    if plan.device != "cuda":
        return not_applicable("weights in 4 bits are unpacked on a GPU only, and this run is on the CPU")
    weights = sum(part.bytes for part in plan.memory_parts if part.name == "weights")
    if context.config.tuning.in_four_bits:
        return passed(f"frozen weights are in 4 bits: {format_bytes(weights)}, and steps take {UNPACKING_TIMES} times")
    sentence = f"weights take {format_bytes(weights)} as {plan.weights_dtype.value}"
    if not is_short(context):
        return passed(f"{sentence}, which fits; in 4 bits each step would take about {UNPACKING_TIMES} times as long")
    free = format_bytes(context.basis.room.budget_bytes)
    try:
        needed = memory_with(context, setup=context.basis.changed({METHOD: "qlora"}).setup)
    except ConfigError as error:
        return warned(f"{sentence}, too much for the {free} there", advice=str(error))
    sentence += f", too much; with 4 bits the run needs {format_bytes(needed)} of {free}"
    if context.hardware.libraries.get(BITSANDBYTES) is None:
        return warned(sentence, advice=_INSTALL)
    return warned(sentence, fix={METHOD: "qlora"})
