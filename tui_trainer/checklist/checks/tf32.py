"""Ampere and newer cards multiply fp32 much faster when ten bits of mantissa are enough.

Source: NVIDIA A100 data sheet.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.hardware.gpu_models import dotted

_KEY = "training.tf32"


@check(
    order=110,
    title="TF32 and cuDNN autotune",
    is_for_speed=True,
    published="8x the rate of fp32 matmuls on an A100 (its data sheet)",
)
def look(context: Context) -> Verdict:
    gpu, precision = context.basis.target.gpu, context.planned.precision.value
    if gpu is None:
        sentence = "TF32 needs a GPU, and this run uses none; cuDNN tunes convolutions, of which these layers have none"
        return not_applicable(sentence, switch="TF32: no GPU")
    can = gpu.abilities
    if can is None or gpu.capability is None:
        return not_applicable("whether the card has TF32 is not reported", switch="TF32: not reported")
    if not can.tf32:
        sentence = f"compute capability {dotted(gpu.capability)} has no TF32; it comes with 8.0"
        return not_applicable(sentence, switch="TF32: not on this card")
    rest = "all matmuls are fp32" if precision == "fp32" else f"for what is not computed in {precision}"
    if context.config.training.tf32:
        return passed(f"on, {rest}", switch="TF32 on", opposite={_KEY: False})
    if precision == "fp32":
        return warned("off, and all matmuls are in fp32", fix={_KEY: True})
    sentence = f"off; matmuls are in {precision}, so that little would change"
    return passed(sentence, switch="TF32: off", opposite={_KEY: True})
