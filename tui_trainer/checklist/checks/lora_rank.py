"""The rank bounds what adapters can learn; beyond that it costs memory and time for nothing.

Source: Hu et al., LoRA, arXiv:2106.09685, section 7.2.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.models.targets import ALL_LINEAR, adapted
from tui_trainer.units import format_count

_RANK, _TARGETS = "tuning.r", "tuning.target_modules"
_USUAL_RANK = 16
# Attention holds a third of a layer's weights. With adapters there alone LoRA stays behind the training of all weights,
# with adapters on every linear layer it does not (QLoRA, arXiv:2305.14314, section 4 and figure 2).
_LEAST_SHARE = 0.5
# A weight holds 2 bits of what a text says (Allen-Zhu and Li, arXiv:2404.05405); a token of text says about 1.
_BITS_A_PARAMETER, _BITS_A_TOKEN = 2.0, 1.0


@check(
    order=204,
    title="LoRA rank suits the data",
)
def look(context: Context) -> Verdict:
    plan, tuning, shape = context.planned, context.config.tuning, context.basis.shape
    trained, tokens = plan.trained_parameters.value, plan.train_tokens.value
    if not tuning.has_adapter:
        return not_applicable(f"all {format_count(trained)} parameters are trainable: there is no adapter")
    layers = adapted(shape, context.basis.setup.lora_targets)
    share = sum(layer.matrix_parameters for layer in layers) / sum(
        layer.matrix_parameters for layer in shape.linears if not layer.is_head
    )
    sentence = (
        f"r {tuning.r} in a model {shape.hidden_size:,} wide: {format_count(trained)} trained parameters "
        f"({plan.trained_parameters.reason}) for {format_count(tokens)} tokens"
    )
    # The rank at which an adapter, r x (inputs + outputs), has as many weights as the narrowest layer.
    most = min(layer.inputs * layer.outputs // (layer.inputs + layer.outputs) for layer in layers)
    if tuning.r > most:
        fix = min(_USUAL_RANK, _power_of_two(most))
        return warned(f"{sentence}; above {most} an adapter is larger than its layer", fix={_RANK: fix})
    if share < _LEAST_SHARE:
        return warned(f"{sentence}; adapters beside only {share:.0%} of the weights", fix={_TARGETS: ALL_LINEAR})
    if _BITS_A_TOKEN * tokens > _BITS_A_PARAMETER * trained and 2 * tuning.r <= _power_of_two(most):
        wider = _wide_enough(tuning.r, tokens / trained, _power_of_two(most))
        return warned(f"{sentence}, more than adapters of this width can hold", fix={_RANK: wider})
    return passed(f"{sentence}, beside {share:.0%} of the weights")


def _wide_enough(rank: int, tokens_a_parameter: float, most: int) -> int:
    """The rank by doublings that holds all tokens, or the most there is; trained parameters grow with it."""
    wider = rank
    while wider / rank * _BITS_A_PARAMETER < tokens_a_parameter * _BITS_A_TOKEN and 2 * wider <= most:
        wider *= 2
    return wider


def _power_of_two(most: int) -> int:
    return 1 << max(0, most.bit_length() - 1)
