"""After the best held-out loss each further pass costs time and makes the model worse.

Source: Prechelt, Early Stopping - But When?, 1998.
"""

from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.runs.cadence import times
from tui_trainer.units import format_number

_KEY, _EVERY = "evaluation.early_stopping_patience", "evaluation.eval_steps"
_MANY_EPOCHS, _PATIENCE, _EVAL_SHARE = 5, 3, 0.1


@check(
    order=480,
    title="Stops when it no longer improves",
)
def look(context: Context) -> Verdict:
    plan, patience = context.planned, context.config.evaluation.early_stopping_patience
    if not plan.eval_rows.value:
        return not_applicable("no text is held out to stop by")
    passes = context.epochs
    evaluations = times(plan.total_steps.value, plan.eval_every_steps.value)
    sentence = f"{format_number(passes)} epochs, {evaluations} evaluations, patience {patience}"
    if patience and evaluations <= patience:
        return warned(f"{sentence}: it can never stop", fix=_fix(context, patience, evaluations))
    if patience or passes <= _MANY_EPOCHS:
        return passed(sentence if patience else f"{sentence}: too few passes to need it")
    return warned(f"{sentence}: nothing stops it when it begins to memorise", fix=_fix(context, 0, evaluations))


def _fix(context: Context, patience: int, evaluations: int) -> dict[str, Any]:
    """As little as makes it work: a patience below the number of evaluations, and evaluations where there are few."""
    total = context.planned.total_steps.value
    oftener = times(total, max(1, round(_EVAL_SHARE * total)))
    helps = evaluations <= _PATIENCE and oftener > evaluations
    fix: dict[str, Any] = {_EVERY: _EVAL_SHARE} if helps else {}
    often = oftener if helps else evaluations
    if not 0 < patience < often:
        fix[_KEY] = min(_PATIENCE, max(often - 1, 0))
    return fix
