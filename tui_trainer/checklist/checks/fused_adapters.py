"""A layer and its LoRA adapter as one function make fewer passes over memory than two modules one after another."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.models.targets import adapted
from tui_trainer.planning.fused_kernels import FUSED_ADAPTERS, adapters_apart
from tui_trainer.units import format_bytes

_DROPOUT = "tuning.lora_dropout"


@check(order=147, title="Fused adapters", is_for_speed=True)
def look(context: Context) -> Verdict:
    config = context.config
    if not (why_not := adapters_apart(config, context.planned.strategy.value)):
        details = "a layer of each kind is compared with peft's before the first step; where one differs, all are apart"
        layers = adapted(context.basis.shape, context.basis.setup.lora_targets)
        return passed(
            f"one function for each of {sum(layer.count for layer in layers):,} layers and its adapter",
            details,
            switch="fused adapters: on",
            opposite={FUSED_ADAPTERS: False},
        )
    if config.tuning.has_adapter and config.tuning.lora_dropout:
        return _with_dropout(context)
    if config.tuning.has_adapter and not config.tuning.fused_adapters:
        return warned(f"off by {why_not}", fix={FUSED_ADAPTERS: True}, switch="fused adapters: off")
    return not_applicable(f"none: {why_not}", switch="fused adapters: none")


def _with_dropout(context: Context) -> Verdict:
    without = context.basis.changed({_DROPOUT: 0.0})
    peak, less = (format_bytes(basis.needed_bytes()) for basis in (context.basis, without))
    return warned(
        f"dropout keeps a mask and a copy of the input of each adapted layer: {peak} at the peak, {less} without",
        "an 8B model in rows of 4,096 takes a sixth longer with it, adapters being apart (counted, not measured)",
        # No fix: dropout is part of what is learnt, not only of how fast.
        advice=f"{_DROPOUT} = 0 is faster; dropout works against overfitting where the held-out loss begins to rise",
        switch="fused adapters: none, there is dropout",
        opposite={_DROPOUT: 0.0},
    )
