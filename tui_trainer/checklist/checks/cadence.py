"""Which share of the time goes to evaluations, checkpoints, text samples and the journal?

One checkpoint on the way is not judged: it is what a crash leaves, and no fix takes it away.
"""

from dataclasses import replace
from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.overheads import Overhead, evaluation_seconds, on_the_way, overheads, training_seconds
from tui_trainer.config.load import value_of
from tui_trainer.runs.cadence import every
from tui_trainer.units import format_seconds

_MOST_SHARE, _GOOD_SHARE = 0.1, 0.08
_SHOWN_SHARE = 0.001
_LOGGING, _EVAL, _EVAL_ROWS = "logging.logging_steps", "evaluation.eval_steps", "evaluation.max_eval_rows"
_SAVE = "checkpoint.save_steps"
# Behind the middle, however steps are rounded: so often is once on the way.
_LONGEST_SAVE_SHARE = 0.6


@check(
    order=490,
    title="Few interruptions",
    guides=("B evaluation and checkpointing", "D both low 3", "E configuration summary"),
    claim="20 % faster, evaluations 10 % instead of 25 % of the time (guide B)",
    why="While a run evaluates, saves or writes text, it does not train.",
)
def look(context: Context) -> Verdict:
    training = training_seconds(context)
    if training is None:
        return not_applicable("how long a step takes is not known, so no share of it can be said")
    parts = overheads(context)
    whole = training + sum(part.seconds for part in parts)
    share = (whole - training) / whole
    named = [f"{part.name} {part.seconds / whole:.1%}" for part in parts if part.seconds / whole >= _SHOWN_SHARE]
    sentence = f"{share:.1%} of the time goes to interruptions: {', '.join(named) or 'hardly any'}"
    details = [
        f"{part.name}: {part.count} on the way, {format_seconds(part.each_seconds)} each ({part.source})"
        for part in parts
    ]
    if _share(parts, training) <= _MOST_SHARE:
        kept = "; one checkpoint on the way is worth its time" if share > _MOST_SHARE else ""
        return passed(sentence + kept, *details)
    fix = _fewer(context, parts, training)
    after = training + sum(part.seconds for part in _under(context, parts, fix))
    measured = context.earlier.name if context.earlier else ""
    are_measured = measured and all(measured in part.source for part in parts if part.key in fix)
    source = f"from what run {measured} took for each" if are_measured else "from estimates, not measured here yet"
    return replace(warned(sentence, *details, fix=fix), reckoned_gain=whole / after, reckoned_from=source)


def _share(parts: list[Overhead], training: float) -> float:
    """The share of the time that interruptions take, without the one checkpoint on the way that stays."""
    interrupted = sum(part.seconds for part in parts)
    kept = sum(part.each_seconds for part in parts if part.key == _SAVE and part.count)
    return (interrupted - kept) / (training + interrupted)


def _fewer(context: Context, parts: list[Overhead], training: float) -> dict[str, Any]:
    """The costliest kind half as often, again and again, until all together take little enough."""
    patch: dict[str, Any] = {}
    eval_rows, patience = context.planned.eval_rows.value, context.config.evaluation.early_stopping_patience
    while _share(now := _under(context, parts, patch), training) > _GOOD_SHARE:
        worst = max(now, key=lambda part: part.seconds - part.each_seconds * (part.key == _SAVE))
        if worst.key == _EVAL and eval_rows > 1 and worst.count // 2 < patience:
            # Early stopping counts evaluations: they stay, and read fewer rows.
            eval_rows //= 2
            patch[_EVAL_ROWS] = eval_rows
        else:
            patch[worst.key] = _doubled(context, worst, patch.get(worst.key, value_of(context.config, worst.key)))
    for key in list(patch):
        rest = {other: value for other, value in patch.items() if other != key}
        if rest and _share(_under(context, parts, rest), training) <= _MOST_SHARE:
            patch = rest
    return patch


def _under(context: Context, parts: list[Overhead], patch: dict[str, Any]) -> list[Overhead]:
    """The same interruptions with some settings changed."""
    total, changed = context.planned.total_steps.value, []
    for part in parts:
        if part.key in patch:
            steps = every(patch[part.key], total)
            part = replace(part, every_steps=steps, count=on_the_way(part.key, total, steps))
        if part.key == _EVAL and _EVAL_ROWS in patch:
            part = replace(part, each_seconds=evaluation_seconds(context, patch[_EVAL_ROWS]))
        changed.append(part)
    return changed


def _doubled(context: Context, part: Overhead, setting: float) -> float:
    """The setting for half as often: a share stays a share; from the whole run on it is 0, which is never.

    Saving stays: at least once on the way.
    """
    total = context.planned.total_steps.value
    doubled = float(f"{2 * setting:.6g}") if setting < 1 else 2 * part.every_steps
    if part.key == _SAVE:
        return min(doubled, _LONGEST_SAVE_SHARE if setting < 1 else every(_LONGEST_SAVE_SHARE, total))
    never = doubled * (total if setting < 1 else 1) >= total
    return 0 if never and part.key != _LOGGING else doubled
