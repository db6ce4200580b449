"""Is the model larger than what it will read can teach it?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tui_trainer.checklist.contract import Check, Context, Verdict, passed, warned
from tui_trainer.config.sections import ScratchSection
from tui_trainer.planning.model_shape import ModelShape
from tui_trainer.units import format_count

# Compute is spent best at 20 tokens read for each parameter (Hoffmann et al., arXiv:2203.15556). Below a hundredth of
# that, a smaller model reaches a lower loss in the same time.
_LEAST_TOKENS_A_PARAMETER = 0.2
_TABLE = "model.scratch."


def look(context: Context) -> Verdict:
    plan = context.planned
    parameters = plan.parameters.value
    read = plan.total_steps.value * min(plan.effective_batch_size.value, plan.train_rows.value)
    read *= context.config.data.max_length
    sentence = (
        f"{format_count(parameters)} parameters read {format_count(read)} tokens, {read / parameters:.2g} for each"
    )
    if read >= _LEAST_TOKENS_A_PARAMETER * parameters:
        return passed(sentence)
    most = int(read / _LEAST_TOKENS_A_PARAMETER)
    advice = "give the model more text or more steps" if (fix := _smaller(context, most)) is None else ""
    return warned(f"{sentence}; fewer than {_LEAST_TOKENS_A_PARAMETER:g} teach it little", fix=fix, advice=advice)


def _smaller(context: Context, most_parameters: int) -> dict[str, Any] | None:
    """The largest model below the limit that differs in one setting: the width, else the number of layers."""
    scratch, vocabulary = context.config.model.scratch, context.planned.vocabulary.value
    for change in _changes(scratch):
        if ModelShape.of(scratch.model_copy(update=change), vocabulary).parameters <= most_parameters:
            return {f"{_TABLE}{name}": value for name, value in change.items()}
    return None


def _changes(scratch: ScratchSection) -> Iterator[dict[str, int]]:
    # Heads of an even width: half of a head is rotated by sines, half by cosines.
    step = 2 * scratch.num_attention_heads
    yield from ({"hidden_size": width} for width in range(scratch.hidden_size - step, max(step, 16) - 1, -step))
    yield from ({"num_hidden_layers": layers} for layers in range(scratch.num_hidden_layers - 1, 0, -1))


CHECK = Check(
    name="model_size",
    order=200,
    title="Model size suits the data",
    guides=("A quick win 1", "D underutilisation 5"),
    claim="2-3x faster, 40 % less memory with a smaller model (guide A)",
    why="Time and memory grow with the parameters; what they can learn is limited by the text.",
    look=look,
)
