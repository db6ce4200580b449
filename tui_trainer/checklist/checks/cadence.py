"""While a run evaluates, saves or writes text, it does not train.

One checkpoint on the way is not judged: it is what a crash leaves, and no fix takes it away.
"""

from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.config.load import value_of
from tui_trainer.runs.cadence import EVALUATION_SHARE, every, times
from tui_trainer.units import format_seconds

_MOST_SHARE, _GOOD_SHARE = 0.1, 0.08
_SHOWN_SHARE = 0.001
_LOG, _SAMPLE, _SAVE = "logging.logging_steps", "logging.sample_steps", "checkpoint.save_steps"
_EVAL, _EVAL_ROWS = "evaluation.eval_steps", "evaluation.max_eval_rows"
# Behind the middle, however steps are rounded: so often is once on the way.
_LONGEST_SAVE_SHARE = 0.6

# Until a run on this machine has measured them. A checkpoint of 9.8 MB took 16 to 33 ms, one of 456 MB 0.5 to 2.5 s
# (hashed, and safe on the disk); a text of 160 tokens 0.2 to 0.3 s with four layers (2 cores of an AMD EPYC).
_ASSUMED_SAVE_BYTES_PER_SECOND = 400e6
# On a GPU a layer is a dozen kernels, each about 10 microseconds to start, for each of 160 tokens.
_ASSUMED_SAMPLE_SECONDS_A_LAYER = {"cpu": 0.07, "cuda": 0.02}
# tests/benchmarks/journal.py: 10 microseconds a step in groups of ten, nearly all of it once a group.
_JOURNAL_GROUP_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class _Overhead:
    """One kind of interruption: how often on the way (the one at the end is made anyway) and how long each takes."""

    key: str
    name: str
    every_steps: int
    count: int
    each_seconds: float
    source: str

    @property
    def seconds(self) -> float:
        return self.count * self.each_seconds


@check(
    order=490,
    title="Few interruptions",
)
def look(context: Context) -> Verdict:
    if context.step_seconds is None:
        return not_applicable("how long a step takes is not known, so no share of it can be said")
    training, parts = context.planned.total_steps.value * context.step_seconds, _overheads(context)
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
    return warned(sentence, *details, fix=fix, reckoned_gain=whole / after, reckoned_from=source)


def _share(parts: list[_Overhead], training: float) -> float:
    """The share of the time that interruptions take, without the one checkpoint on the way that stays."""
    interrupted = sum(part.seconds for part in parts)
    kept = sum(part.each_seconds for part in parts if part.key == _SAVE and part.count)
    return (interrupted - kept) / (training + interrupted)


def _fewer(context: Context, parts: list[_Overhead], training: float) -> dict[str, Any]:
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


def _under(context: Context, parts: list[_Overhead], patch: dict[str, Any]) -> list[_Overhead]:
    """The same interruptions with some settings changed."""
    total, changed = context.planned.total_steps.value, []
    for part in parts:
        if part.key in patch:
            steps = every(patch[part.key], total)
            part = replace(part, every_steps=steps, count=_on_the_way(part.key, total, steps))
        if part.key == _EVAL and _EVAL_ROWS in patch:
            part = replace(part, each_seconds=evaluation_seconds(context, patch[_EVAL_ROWS]))
        changed.append(part)
    return changed


def _doubled(context: Context, part: _Overhead, setting: float) -> float:
    """The setting for half as often: a share stays a share; from the whole run on it is 0, which is never.

    Saving stays: at least once on the way.
    """
    total = context.planned.total_steps.value
    doubled = float(f"{2 * setting:.6g}") if setting < 1 else 2 * part.every_steps
    if part.key == _SAVE:
        return min(doubled, _LONGEST_SAVE_SHARE if setting < 1 else every(_LONGEST_SAVE_SHARE, total))
    never = doubled * (total if setting < 1 else 1) >= total
    return 0 if never and part.key != _LOG else doubled


def _overheads(context: Context) -> list[_Overhead]:
    """Every kind of interruption of this plan."""
    plan, earlier = context.planned, context.earlier
    total = plan.total_steps.value
    rate = earlier.save_bytes_per_second if earlier and earlier.save_bytes_per_second else None
    sample = earlier.sample_seconds if earlier and earlier.sample_seconds else None
    measured = f"measured in run {earlier.name}" if earlier else ""
    a_layer = _ASSUMED_SAMPLE_SECONDS_A_LAYER[context.basis.target.device]

    def kind(key: str, name: str, every_steps: int, each_seconds: float, source: str) -> _Overhead:
        return _Overhead(key, name, every_steps, _on_the_way(key, total, every_steps), each_seconds, source)

    eval_source = measured if earlier and earlier.evaluation_share else "a third of a training step for each row"
    eval_seconds = evaluation_seconds(context, plan.eval_rows.value)
    evaluations = kind(_EVAL, "evaluations", plan.eval_every_steps.value, eval_seconds, eval_source)
    save_seconds = plan.checkpoint_bytes.value / (rate or _ASSUMED_SAVE_BYTES_PER_SECOND)
    save_source = measured if rate else "at 400 MB/s, not measured here yet"
    sample_source = measured if sample else f"{1000 * a_layer:.0f} ms a layer, not measured here yet"
    sample_seconds, logging_steps = sample or a_layer * context.basis.shape.layers, context.config.logging.logging_steps
    return [
        evaluations if plan.eval_rows.value else replace(evaluations, count=0),
        kind(_SAVE, "checkpoints", plan.save_every_steps.value, save_seconds, save_source),
        kind(_SAMPLE, "text samples", plan.sample_every_steps.value, sample_seconds, sample_source),
        kind(_LOG, "journal", logging_steps, _JOURNAL_GROUP_SECONDS, "0.1 ms a group of steps"),
    ]


def _on_the_way(key: str, total_steps: int, every_steps: int) -> int:
    """How often it interrupts; the evaluation and the checkpoint at the end are no interruptions."""
    if key in (_EVAL, _SAVE):
        return times(total_steps, every_steps) - 1
    return total_steps // every_steps if every_steps else 0


def evaluation_seconds(context: Context, rows: int) -> float:
    """Seconds of one evaluation of so many rows, as the plan reckons them; 0 where a step's are not known."""
    plan = context.planned
    step_rows = min(plan.effective_batch_size.value, plan.train_rows.value)
    share = context.earlier.evaluation_share if context.earlier else None
    return (context.step_seconds or 0.0) / step_rows * rows * (share or EVALUATION_SHARE)
