"""Full tuning with weights in bf16 and an fp32 copy of each casts less and keeps fewer activations than fp32 weights.

The optimizer updates the copy (the fp32 master weights of arXiv:1710.03740, section 3.1), so that no small update is
lost. Autocast casts fp32 weights once and the input of each linear layer anew, computes norms in fp32, and adds up the
results of layers in fp32.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.planning.automatic_values import DTYPE
from tui_trainer.planning.strategies import ZERO_STAGES
from tui_trainer.planning.training_setup import Dtype
from tui_trainer.units import format_bytes

# What a weight takes at the peak of an accumulated step with AdamW: weight, fp32 copy, moments, gradient and sum; and
# weight, 16-bit copy, moments, gradient.
_BYTES = "20 bytes a weight where gradients are accumulated, instead of 18"
_RECKONED = (
    "Qwen3-1.7B, 2 x 4096 tokens on an H100: 14 % more tokens a second and 7.0 GiB less kept for the backward pass, "
    "reckoned by python -m tests.benchmarks.roofline --only 1.7b-full 1.7b-full-bf16; not measured on a card yet"
)
_EXPERTS = (
    "products of experts are in bf16 then; in fp32 weights they stay fp32, as grouped_mm is no autocast operation"
)


@check(order=105, title="Weights in bf16 with fp32 masters", is_for_speed=True, fallback={DTYPE: "auto"})
def look(context: Context) -> Verdict:
    planned, setup = context.planned.weights_dtype, context.basis.setup
    kept = f"weights are kept in {planned.value}: {planned.reason}"
    if setup.has_adapter:
        return not_applicable(
            f"none: frozen weights are never updated, and adapters train in fp32; {kept}", switch="fp32 masters: none"
        )
    why_not = _why_not(context)
    if planned.value == "bfloat16":
        # Emulated, it costs more than it saves.
        if context.basis.target.bf16 is False:
            return warned(f"bfloat16: {why_not}", kept, fix={DTYPE: "auto"}, switch="fp32 masters: on")
        opposite = {DTYPE: "float32"}
        return passed(f"on: {_compared(context, 'float32')}", kept, switch="fp32 masters: on", opposite=opposite)
    if why_not:
        return not_applicable(f"off: {why_not}", kept, switch="fp32 masters: off")
    sentence = f"off: {_compared(context, 'bfloat16')}"
    changed = context.basis.changed({DTYPE: "bfloat16"})
    budget = context.basis.room.budget_bytes
    if budget is not None and context.planned.memory_bytes.value <= budget < changed.needed_bytes():
        return not_applicable(f"{sentence}, more than there is", kept, _BYTES, switch="fp32 masters: off")
    experts = (_EXPERTS,) if context.basis.shape.has_grouped_experts else ()
    return warned(sentence, _RECKONED, _BYTES, *experts, kept, fix={DTYPE: "bfloat16"}, switch="fp32 masters: off")


def _compared(context: Context, other: Dtype) -> str:
    now, changed = context.planned.memory_bytes.value, context.basis.changed({DTYPE: other}).needed_bytes()
    return f"{format_bytes(now)} in all, {format_bytes(changed)} with weights in {other}"


def _why_not(context: Context) -> str:
    """Why fp32 weights are not advised against, as a clause; empty: they are."""
    plan, target, basis = context.planned, context.basis.target, context.basis
    strategy = plan.strategy.value
    if target.gpu is None:
        return "on a CPU nothing was measured; training.mixed_precision decides the products"
    if not target.bf16:
        return "the card has no bf16" if target.bf16 is False else "the card does not report whether it has bf16"
    if plan.precision.value != "bf16":
        return f"products are in {plan.precision.value}, {plan.precision.reason}"
    if plan.is_group and strategy in ZERO_STAGES:
        return f"{strategy} keeps fp32 masters of its own, whatever the weights are"
    if plan.is_group and strategy != "ddp":
        return f"{strategy} keeps its parts in fp32 and gathers them in bf16: they are the masters"
    if plan.is_group:
        return (
            "ddp sums fp32 gradients of masters behind the backward pass, and those of fp32 weights while it computes"
        )
    if basis.shape.head != "causal_lm":
        return "it was reckoned for decoders alone"
    return ""
