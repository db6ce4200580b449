"""Time and memory grow with the parameters; what they can learn is limited by the text.

Source: Sanh et al., DistilBERT, arXiv:1910.01108.
"""

from itertools import chain
from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.checklist.memory_fit import is_short, way_to_fit
from tui_trainer.models.shape import scratch_shape
from tui_trainer.planning.measured_steps import LASTING
from tui_trainer.planning.remedies import METHOD
from tui_trainer.units import format_bytes, format_count, format_number

# Compute is spent best at 20 tokens read for each parameter (Hoffmann et al., arXiv:2203.15556). Below a hundredth of
# that, a smaller model reaches a lower loss in the same time.
_LEAST_TOKENS_A_PARAMETER = 0.2
_TABLE = "model.scratch."


@check(
    order=200,
    title="Model size suits the data",
    published="DistilBERT is 40 % smaller and 60 % faster than BERT (arXiv:1910.01108)",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    rows = plan.total_steps.value * min(plan.effective_batch_size.value, plan.train_rows.value)
    # Over the whole run, what is read again counted again.
    read = rows * plan.train_tokens.value / max(plan.train_rows.value, 1)
    return (_from_scratch if context.config.is_from_scratch else _pretrained)(context, read)


def _from_scratch(context: Context, read: float) -> Verdict:
    parameters = context.planned.parameters.value
    counted = f"{format_count(parameters)} parameters read {format_count(read)} tokens"
    sentence = f"{counted}, {format_number(read / parameters, 2)} for each"
    if read >= _LEAST_TOKENS_A_PARAMETER * parameters:
        return passed(sentence)
    most = int(read / _LEAST_TOKENS_A_PARAMETER)
    advice = "give the model more text or more steps" if (fix := _smaller(context, most)) is None else ""
    return warned(f"{sentence}; fewer than {_LEAST_TOKENS_A_PARAMETER:g} teach it little", fix=fix, advice=advice)


def _pretrained(context: Context, read: float) -> Verdict:
    """Few tokens are no fault here: what the model knows it brings along. Memory is what decides."""
    plan, room = context.planned, context.basis.room
    trained, whole = plan.trained_parameters.value, plan.parameters.value
    lasting = sum(part.bytes for part in plan.memory_parts if part.name in LASTING)
    sentence = (
        f"{format_count(trained)} of {format_count(whole)} parameters learn from {format_count(read)} "
        f"tokens; weights, gradients and optimizer take {format_bytes(lasting)}"
    )
    if room.free_bytes is None or lasting <= room.share * room.free_bytes:
        return passed(sentence)
    sentence += f", more than {room.share:.0%} of {format_bytes(room.free_bytes)} free on {room.where}"
    way = (way_to_fit(context) if is_short(context) else None) or {}
    fix = {METHOD: way[METHOD]} if METHOD in way else None
    return warned(sentence, fix=fix, advice="" if fix else "choose a smaller model, or a card with more memory")


def _smaller(context: Context, most_parameters: int) -> dict[str, Any] | None:
    """The largest model below the limit that differs in one setting: the width, else the number of layers.

    None where a config.json gives the shape, which no setting changes.
    """
    if context.config.model.model_name_or_path:
        return None
    scratch, vocabulary = context.config.model.scratch, context.planned.vocabulary.value
    # Heads of an even width: half of a head is rotated by sines, half by cosines.
    step, width, layers = 2 * scratch.num_attention_heads, scratch.hidden_size, scratch.num_hidden_layers
    narrower = ({"hidden_size": width} for width in range(width - step, max(step, 16) - 1, -step))
    fewer_layers = ({"num_hidden_layers": layers} for layers in range(layers - 1, 0, -1))
    for change in chain(narrower, fewer_layers):
        if scratch_shape(scratch.model_copy(update=change), vocabulary).parameters <= most_parameters:
            return {f"{_TABLE}{name}": value for name, value in change.items()}
    return None
