"""Full tuning with weights in bf16 and an fp32 copy of each casts less and keeps fewer activations than fp32 weights.

The optimizer updates the copy (the fp32 master weights of arXiv:1710.03740, section 3.1), so that no small update is
lost. Autocast casts fp32 weights once and the input of each linear layer anew, computes norms in fp32, and adds up the
results of layers in fp32.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.planning.automatic_values import DTYPE
from tui_trainer.planning.processes import SPLITTING, ZERO_STAGES
from tui_trainer.planning.training_setup import Dtype
from tui_trainer.units import format_bytes

# What a weight takes at the peak of an accumulated step with AdamW: weight, fp32 copy, moments, gradient and sum; and
# weight, 16-bit copy, moments, gradient.
_BYTES = "20 bytes a weight where gradients are accumulated, instead of 18"
_RECKONED = (
    "Qwen3-1.7B, 2 x 4096 tokens on an H100: 14 % more tokens a second and 7.0 GiB less kept for the backward pass, "
    "reckoned by python -m tests.benchmarks.roofline --only 1.7b-full 1.7b-full-bf16; not measured on a card yet"
)
_NO_BF16 = "the card has no bf16"
_EXPERTS = (
    "products of experts are in bf16 then; in fp32 weights they stay fp32, as grouped_mm is no autocast operation"
)


@check(order=105, title="bf16 weights with fp32 masters", is_for_speed=True, fallback={DTYPE: "auto"})
def look(context: Context) -> Verdict:
    planned, basis = context.planned.weights_dtype, context.basis
    kept = f"weights are kept in {planned.value}: {planned.reason}"
    if basis.setup.has_adapter:
        sentence = "none: frozen weights are never updated, and adapters train in fp32"
        return not_applicable(sentence, kept, switch="fp32 masters: none")
    if planned.value == "bfloat16" and basis.target.bf16 is False:
        sentence = f"on, and {_NO_BF16}: what is not a product is emulated"
        return warned(sentence, kept, fix={DTYPE: "auto"}, switch="fp32 masters on")
    if planned.value == "bfloat16":
        sentence = f"on: {_compared(context, 'float32')}"
        return passed(sentence, kept, switch="fp32 masters on", opposite={DTYPE: "float32"})
    if why_not := _why_impossible(context) or _why_not_advised(context):
        other = None if _why_impossible(context) else {DTYPE: "bfloat16"}
        return not_applicable(f"off: {why_not}", kept, switch="fp32 masters: off", opposite=other)
    experts = (_EXPERTS,) if basis.shape.has_grouped_experts else ()
    sentence, details = f"off: {_compared(context, 'bfloat16')}", (_RECKONED, _BYTES, *experts, kept)
    budget, changed = basis.room.budget_bytes, basis.changed({DTYPE: "bfloat16"}).needed_bytes()
    if budget is not None and context.planned.memory_bytes.value <= budget < changed:
        return not_applicable(f"{sentence}, more than there is", *details, switch="fp32 masters: off")
    return warned(sentence, *details, fix={DTYPE: "bfloat16"}, switch="fp32 masters: off")


def _compared(context: Context, other: Dtype) -> str:
    now, changed = context.planned.memory_bytes.value, context.basis.changed({DTYPE: other}).needed_bytes()
    return f"{format_bytes(now)} in all, {format_bytes(changed)} with weights in {other}"


def _why_impossible(context: Context) -> str:
    """Why weights in bf16 gain nothing here, or need not be measured, as a clause; empty: they may gain."""
    plan, target = context.planned, context.basis.target
    strategy = plan.strategy.value
    if target.gpu is not None and not target.bf16:
        return _NO_BF16 if target.bf16 is False else "the card does not report whether it has bf16"
    if plan.precision.value != "bf16":
        return f"products are in {plan.precision.value}: {plan.precision.reason}"
    if not plan.is_group:
        return ""
    if strategy in ZERO_STAGES:
        return f"{strategy} keeps fp32 masters of its own, whatever the weights are"
    if strategy in SPLITTING:
        return f"{strategy} gathers fp32 weights in bf16: its parts are the masters"
    return f"{strategy} sums fp32 gradients of masters after the backward pass, those of fp32 weights during it"


def _why_not_advised(context: Context) -> str:
    """Why it is not known to be faster, as a clause; empty: it is reckoned to be."""
    if context.basis.target.gpu is None:
        return "it is advised on cards alone"
    return "" if context.basis.shape.head == "causal_lm" else "it was reckoned for decoders only"
