"""Rules about evaluations, checkpoints and samples during a run, and about the files that it leaves."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    IDLE_GPU_SHARE,
    LEAST_CAUSE_SHARE,
    Cause,
    Remedy,
    Verdict,
    failed,
    fault,
    not_applicable,
    passed,
    rule,
    symptom,
    warned,
)
from tui_trainer.advice.remedies import planned_memory_bytes
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import value_of
from tui_trainer.config.sections import EVALUATIONS_SHARE, EvaluationSection
from tui_trainer.planning.basis import EVAL_BATCH, Basis
from tui_trainer.planning.disk import SAVE_FIXED_BYTES, run_bytes, space_words
from tui_trainer.planning.duration import answer_seconds, generated_token_seconds
from tui_trainer.planning.effective_batch import LEAST_STEPS_OF_A_RUN
from tui_trainer.runs.result import display_name
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE, count_due, interval_steps
from tui_trainer.tasks import find_task
from tui_trainer.tasks.parts.free_answers import EXACT, JSON, KEPT, LOOPING, STOPPED
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import format_bytes, format_number, format_percent, format_seconds, quantity

SAVE_LIMIT = "checkpoint.save_total_limit"
_PATIENCE_KEY = "evaluation.early_stopping_patience"
_LOG, _SAMPLE, _SAVE = "logging.logging_steps", "logging.sample_steps", "checkpoint.save_steps"
_ANSWERS = "evaluation.generate_rows"
# Shares of answers that differ by less may be chance: two of eight answers.
_WORSE_SHARE = 0.25
_LEAST_STOPPED = 0.5
_LIMITED = f'evaluation.max_eval_rows = "auto" limits evaluations to {100 * EVALUATIONS_SHARE:g} % of the time'
_EVAL, _EVAL_ROWS, _EMPTY_CACHE = "evaluation.eval_steps", "evaluation.max_eval_rows", "training.empty_cache_steps"
# Interruptions that the plan keeps short unless the user wrote one of these settings.
_AUTOMATIC_INTERVAL_KEYS = {_EVAL: (_EVAL, _EVAL_ROWS), _SAMPLE: (_SAMPLE,)}
# A run that takes up to half of the free space on a disk leaves room for the next run.
_ROOMY_SHARE = 0.5
# In fewer epochs or steps a run has no time to overfit.
_MANY_EPOCHS, _MANY_STEPS = 5, LEAST_STEPS_OF_A_RUN
_PATIENCE = 3
_EVAL_SHARE = EvaluationSection().eval_steps
# Two evaluations whose losses are this many times the best loss are not noise.
_CLEAR_LOSS_RATIO = 1.02
_LEAST_LATER_EVALUATIONS = 2
# Interruptions may take the first share of the time. A fix reduces them below the second, so that no other fix follows.
_MAX_INTERRUPTION_SHARE = 0.1
_PROPOSED_INTERRUPTION_SHARE = 0.08
# Kinds of interruptions that take a smaller share of the time are not named.
_SHOWN_SHARE = 0.001
# With this interval, which ends after the middle of the run, one checkpoint is saved before the end.
_LONGEST_SAVE_SHARE = 0.6
# Used until a run on this machine has measured it. Saving (hash and sync) took 16 to 33 ms for 9.8 MB, and 0.5 to 2.5 s
# for 456 MB, on 2 cores of an AMD EPYC.
_ASSUMED_SAVE_BYTES_PER_SECOND = 400e6
# tests/benchmarks/journal.py measures 10 microseconds per step in groups of ten, nearly all of it once per group.
_JOURNAL_GROUP_SECONDS = 1e-4
# A crash may cost half an hour of work. A fix saves three times as often.
_MAX_SAVE_INTERVAL_SECONDS = 1800.0
_PROPOSED_SAVE_INTERVAL_SECONDS = 600.0
# Generating this many texts at once takes hardly longer than generating one.
_FEW_ROWS = 4


@rule("Disk space", 340, SAVE_LIMIT, group="Machine")
def disk(context: Context) -> Verdict:
    """If the disk fills up during a run, no further checkpoints can be saved."""
    plan, free_bytes = context.required_plan, context.disk_free_bytes
    needed_bytes = plan.disk_bytes.value
    if free_bytes is None:
        return not_applicable(f"the run writes {format_bytes(needed_bytes)}; how much disk space is free is unknown")
    sentence = f"{space_words('the run writes', needed_bytes, free_bytes)} ({plan.disk_bytes.reason})"
    if needed_bytes <= _ROOMY_SHARE * free_bytes:
        return passed(sentence)
    # With one checkpoint kept, as many saves as there would be.
    least_bytes, _ = run_bytes(
        plan.checkpoint_bytes.value,
        plan.final_model_bytes,
        save_total_limit=1,
        saves=plan.total_steps.value,
        keeps_best=plan.config.evaluation.early_stopping_patience > 0,
        total_steps=plan.total_steps.value,
    )
    fits = least_bytes <= _ROOMY_SHARE * free_bytes and context.config.checkpoint.save_total_limit > 1
    advice = "" if fits else f"choose another disk: --set output.runs_dir=FOLDER (now {context.config.output.runs_dir})"
    fix = {SAVE_LIMIT: 1} if fits else None
    return (failed if needed_bytes > free_bytes else warned)(sentence, fix=fix, advice=advice)


@symptom("Overfitting", can_occur=lambda plan: plan.eval_rows.value > 0)
def overfitting(view: RunView) -> Cause | None:
    """Steps after the best held-out loss cost time and make the model worse."""
    evals = [done for done in view.state.evals if math.isfinite(done.loss)]
    blocks = view.losses
    if not evals or len(blocks) < 2:
        return None
    best = min(evals, key=lambda done: done.loss)
    after = [done for done in evals if done.step > best.step]
    if len(after) < _LEAST_LATER_EVALUATIONS or after[-1].loss < _CLEAR_LOSS_RATIO * best.loss:
        return None
    loss_at_best = [loss for step, loss in blocks if step >= best.step][:1]
    if not loss_at_best or blocks[-1][1] >= loss_at_best[0]:
        return None
    share = 1 - best.step / max(view.state.step, 1)
    return Cause(
        cause="The run is overfitting: the held-out loss rises while the training loss falls.",
        evidence=(
            f"held-out loss {best.loss:.4g} at step {best.step:,}, {after[-1].loss:.4g} at step {after[-1].step:,}; "
            f"the training loss fell from {loss_at_best[0]:.4g} to {blocks[-1][1]:.4g} meanwhile; "
            f"{format_percent(share)} of the steps came after the best evaluation"
        ),
        share=share,
        fix={_PATIENCE_KEY: _PATIENCE},
        advice="or try fewer epochs, more data, a smaller model, dropout or weight decay",
    )


@rule("Early stopping", 480, _PATIENCE_KEY, _EVAL, symptoms=(overfitting,))
def early_stopping(context: Context) -> Verdict:
    """After the best held-out loss, each further epoch costs time and makes the model worse.

    Source: Prechelt, Early Stopping - But When?, 1998.
    """
    plan, patience = context.required_plan, context.config.evaluation.early_stopping_patience
    if not plan.eval_rows.value:
        return not_applicable("early stopping needs held-out rows, but the data has none")
    epochs = context.epochs
    evaluations = count_due(plan.total_steps.value, plan.eval_every_steps.value)
    sentence = f"{format_number(epochs)} epochs, {quantity(evaluations, 'evaluation')}, patience {patience}"
    if patience and evaluations <= patience:
        message = f"{sentence}, so the run can never stop early"
        return warned(message, fix=_early_stopping(context, patience, evaluations))
    if patience or epochs <= _MANY_EPOCHS or plan.total_steps.value < _MANY_STEPS:
        return passed(sentence if patience else f"{sentence}: too few epochs or steps to need early stopping")
    return warned(
        f"{sentence}, so nothing stops the run when it starts to overfit", fix=_early_stopping(context, 0, evaluations)
    )


def _early_stopping(context: Context, patience: int, evaluations: int) -> dict[str, Any]:
    """Return settings with which early stopping can take effect: a patience below the number of evaluations, and, if
    there are few, more evaluations."""
    total_steps = context.required_plan.total_steps.value
    more_evals = count_due(total_steps, max(1, round(_EVAL_SHARE * total_steps)))
    adds_evals = evaluations <= _PATIENCE and more_evals > evaluations
    fix: dict[str, Any] = {_EVAL: _EVAL_SHARE} if adds_evals else {}
    eval_count = more_evals if adds_evals else evaluations
    if not 0 < patience < eval_count:
        fix[_PATIENCE_KEY] = min(_PATIENCE, max(eval_count - 1, 0))
    return fix


@symptom("Degenerate answers", can_occur=lambda plan: bool(plan.answer_rows or plan.config.evaluation.gate_suite))
def degenerate_answers(view: RunView) -> Cause | None:
    """The held-out loss measures each token after a correct beginning, so it can fall while free answers get worse."""
    answered = [done for done in view.state.evals if {LOOPING, STOPPED, KEPT} & {*done.scores}]
    if not answered:
        return None
    last, faults = answered[-1], list[str]()
    for name, sign in ((STOPPED, 1), (LOOPING, -1), (JSON, 1), (EXACT, 1), (KEPT, 1)):
        if name not in last.scores:
            continue
        best = max((done for done in answered if name in done.scores), key=lambda done: sign * done.scores[name])
        now, before = last.scores[name], best.scores[name]
        if sign * (before - now) >= _WORSE_SHARE and last.loss <= best.loss:
            change = (
                f"from {format_percent(before)} at step {best.step:,} to {format_percent(now)} at step {last.step:,}"
            )
            faults.append(f"{display_name(name)} went {change}, although the held-out loss fell")
        elif name == STOPPED and now < _LEAST_STOPPED and last.step >= view.state.total_steps / 2:
            faults.append(f"only {format_percent(now)} of the answers stop by themselves at step {last.step:,}")
        elif name == KEPT and 1 - now >= _WORSE_SHARE:
            faults.append(f"only {format_percent(now)} of the suite's answers stayed right at step {last.step:,}")
    if not faults:
        return None
    return fault(
        cause="The model's free answers degenerate.",
        evidence="; ".join(faults),
        advice="read the samples on Train; then try fewer epochs, a lower learning rate, or more varied data",
    )


@rule("Generated answers", 485, _ANSWERS, symptoms=(degenerate_answers,))
def generated_answers(context: Context) -> Verdict:
    """A held-out loss does not show a model that never stops, repeats itself or loses its format; free answers do."""
    task, answers = find_task(context.config.task.type), context.required_plan.answer_rows
    if not task.usual_answer_rows or not context.required_plan.eval_rows.value:
        return not_applicable("no text is generated at evaluations")
    if answers is None:
        return warned("the model answers no held-out rows at evaluations", fix={_ANSWERS: "auto"})
    return passed(f"{quantity(answers.value, 'held-out row')} answered {answers.reason}")


@symptom("Cache emptied often", can_occur=lambda plan: plan.config.training.empty_cache_steps > 0)
def cache_emptied(view: RunView) -> Cause | None:
    """Released memory is allocated again in the next step; a healthy run does not need this."""
    share, interval = view.share_of_time(view.empty_cache_seconds), view.plan.empty_cache_steps if view.plan else None
    interval_text = f", every {interval} steps" if interval else ""
    return Cause(
        cause="Garbage collection and emptying the cache take much of the time.",
        evidence=f"{format_percent(share)} of the time, "
        f"{view.seconds_of_step_words(view.empty_cache_seconds)}{interval_text}",
        share=share,
        fix={_EMPTY_CACHE: 0},
    )


def _interruptions(
    view: RunView, cause: str, key: str, every_steps: int | None, seconds: float, costs: list[float], size: str = ""
) -> Cause | None:
    """Return the Cause for interruptions such as evaluations; None without any, or if the plan chose their interval.
    `costs` has the seconds of each interruption, and `seconds` is their time per step."""
    if not costs or (key in _AUTOMATIC_INTERVAL_KEYS and view.is_by_default(*_AUTOMATIC_INTERVAL_KEYS[key])):
        return None
    share, mean_seconds = view.share_of_time(seconds), fmean(costs)
    interval_text = f", every {every_steps} steps" if every_steps else ""
    steps = view.affordable_interval_steps(mean_seconds, seconds)
    if key == _SAVE:
        steps = min(steps, interval_steps(_LONGEST_SAVE_SHARE, view.state.total_steps or steps))
    return Cause(
        cause=cause,
        evidence=f"{format_percent(share)} of the time, {format_seconds(mean_seconds)}{size} each{interval_text}",
        share=share,
        # Journals of earlier versions do not say how often checkpoints are saved.
        fix={key: steps} if every_steps or (every_steps is None and key != _EVAL) else None,
        advice=_LIMITED if key == _EVAL else "",
    )


@symptom("Frequent evaluations", can_occur=lambda plan: plan.eval_rows.value > 0)
def evaluations(view: RunView) -> Cause | None:
    """While a run evaluates, it does not train."""
    seconds = [evaluation.seconds for evaluation in view.state.evals if evaluation.scheduled]
    interval = view.plan.eval_every_steps if view.plan else None
    return _interruptions(view, "Evaluations take much of the time.", _EVAL, interval, view.evaluation_seconds, seconds)


@symptom("Frequent checkpoints")
def checkpoints(view: RunView) -> Cause | None:
    """Training waits while a checkpoint is written and synced to the disk."""
    saves, interval = view.state.checkpoints, view.plan.save_every_steps if view.plan else None
    cause, costs = "Saving checkpoints takes much of the time.", [save.seconds for save in saves]
    size_text = f" and {format_bytes(saves[-1].bytes)}" if saves else ""
    # One checkpoint before the end is not counted, as in `cadence`.
    save_count = sum(save.step < view.state.total_steps for save in saves)
    seconds = view.checkpoint_seconds * (1 - 1 / save_count) if save_count else 0.0
    return _interruptions(view, cause, _SAVE, interval, seconds, costs, size_text)


@symptom("Frequent samples", can_occur=lambda plan: plan.sample_every_steps.value > 0)
def text_samples(view: RunView) -> Cause | None:
    """Generating a text takes one forward pass per token."""
    seconds = [sample.seconds for sample in view.state.samples]
    interval = view.plan.sample_every_steps if view.plan else None
    return _interruptions(
        view, "Generating samples takes much of the time.", _SAMPLE, interval, view.sample_seconds, seconds
    )


@symptom("Frequent logging")
def journal_writes(view: RunView) -> Cause | None:
    """Each time that steps are written to the journal, training waits for the device and for the file."""
    steps, usage = view.plan.logging_steps if view.plan else None, view.gpu_mean("utilization_share")
    share = view.share_of_time(view.journal_seconds)
    evidence = f"{format_percent(share)} of the time, {view.seconds_of_step_words(view.journal_seconds)}"
    if (
        steps == 1
        and usage is not None
        and usage < IDLE_GPU_SHARE
        and view.share_of_time(view.data_seconds) < LEAST_CAUSE_SHARE
    ):
        # On a GPU each group waits once for the device, which then has nothing queued.
        evidence = f"each step waits for the device, which is busy {format_percent(usage)} of the time"
        share = max(share, (1 - usage) / 2)
    return Cause(
        cause="Writing steps to the journal slows training.",
        evidence=evidence + (f"; steps are written in groups of {steps}" if steps else ""),
        share=share,
        fix={_LOG: 10 * steps} if steps else None,
    )


@symptom("Time between steps")
def between_steps(view: RunView) -> Cause | None:
    """Evaluations, checkpoints, samples, the journal and the cache are timed; the rest should take almost no time."""
    share = view.share_of_time(view.other_seconds)
    return Cause(
        cause="Time is lost between steps, and no timed work explains it.",
        evidence=f"{format_percent(share)} of the time is unaccounted for: "
        f"{view.seconds_of_step_words(view.other_seconds)}",
        share=share,
        advice="see the run's events; usual reasons: slow removal of checkpoints, failed saves or samples, swapping",
    )


@dataclass(frozen=True, slots=True)
class _Overhead:
    """One kind of interruption of training, without one at the end: its interval, number and seconds each."""

    key: str
    name: str
    every_steps: int
    count: int
    each_seconds: float
    source: str

    @property
    def seconds(self) -> float:
        return self.count * self.each_seconds

    @property
    def judged_seconds(self) -> float:
        """Seconds of all interruptions of this kind. One checkpoint is not counted, because a run needs it."""
        return self.seconds - self.each_seconds * bool(self.key == _SAVE and self.count)


@rule(
    "Evaluation overhead", 490, _EVAL, _EVAL_ROWS, _SAVE, _SAMPLE, _LOG, _EMPTY_CACHE, group="Speed",
    symptoms=(cache_emptied, evaluations, checkpoints, text_samples, journal_writes, between_steps),
)  # fmt: skip
def cadence(context: Context) -> Verdict:
    """While a run evaluates, saves or generates samples, it does not train.

    A single checkpoint during the run is not counted: without it, a crash would lose all work.
    """
    if context.step_seconds is None:
        return not_applicable("the step time is unknown, so the overhead cannot be estimated")
    training_seconds, kinds = context.required_plan.total_steps.value * context.step_seconds, _overheads(context, {})
    whole = training_seconds + sum(kind.seconds for kind in kinds)
    share = (whole - training_seconds) / whole
    shares = [f"{kind.name} {kind.seconds / whole:.1%}" for kind in kinds if kind.seconds / whole >= _SHOWN_SHARE]
    sentence = f"{share:.1%} of the time is overhead: {', '.join(shares) or 'almost none'}"
    details = [
        f"{kind.name}: {kind.count} during the run, {format_seconds(kind.each_seconds)} each ({kind.source})"
        for kind in kinds
    ]
    fix = _fewer(context, training_seconds)
    if not fix:
        if share > _MAX_INTERRUPTION_SHARE:
            sentence += "; no change needed: default evaluations and samples are short, and "
            sentence += "one checkpoint is worth its time"
        return passed(sentence, *details)
    new_seconds = training_seconds + sum(kind.seconds for kind in _overheads(context, fix))
    run_name = context.earlier.name if context.earlier else ""
    are_measured = run_name and all(run_name in kind.source for kind in kinds if kind.key in fix)
    source = f"from the timings of run {run_name}" if are_measured else "without a measurement on this machine"
    return warned(sentence, *details, fix=fix, reckoned_gain=whole / new_seconds, reckoned_from=source)


def _fewer(context: Context, training: float) -> dict[str, Any]:
    """Return settings with which interruptions take a small enough share of the time; empty if they already do.

    Repeatedly doubles the interval of the costliest kind of interruption, except kinds whose settings are defaults.
    """
    default_keys = {key for key, settings in _AUTOMATIC_INTERVAL_KEYS.items() if context.is_by_default(*settings)}

    def judged_overheads(patch: dict[str, Any]) -> list[_Overhead]:
        return [part for part in _overheads(context, patch) if part.key not in default_keys]

    def judged_share(patch: dict[str, Any]) -> float:
        kinds = judged_overheads(patch)
        return sum(part.judged_seconds for part in kinds) / (training + sum(part.seconds for part in kinds))

    patch: dict[str, Any] = {}
    if judged_share(patch) <= _MAX_INTERRUPTION_SHARE:
        return patch
    eval_rows, patience = context.required_plan.eval_rows.value, context.config.evaluation.early_stopping_patience
    while judged_share(patch) > _PROPOSED_INTERRUPTION_SHARE:
        kind = max(judged_overheads(patch), key=lambda part: part.judged_seconds)
        if kind.key == _EVAL and eval_rows > 1 and kind.count // 2 < patience:
            # Early stopping counts evaluations, so their number stays and they read fewer rows.
            eval_rows //= 2
            patch[_EVAL_ROWS] = eval_rows
        else:
            patch[kind.key] = _double_interval(context, kind, patch.get(kind.key, value_of(context.config, kind.key)))
    for key in list(patch):
        fewer = {other: value for other, value in patch.items() if other != key}
        if fewer and judged_share(fewer) <= _MAX_INTERRUPTION_SHARE:
            patch = fewer
    return patch


def _double_interval(context: Context, part: _Overhead, setting: float) -> float:
    """Return the value of a setting for twice the interval: in steps, or as a share of all steps if `setting` is one.

    An interval longer than the run becomes 0, which means never. Checkpoints are still saved at least once.
    """
    total_steps = context.required_plan.total_steps.value
    new_value = float(f"{2 * setting:.6g}") if setting < 1 else 2 * part.every_steps
    if part.key == _SAVE:
        return min(new_value, _LONGEST_SAVE_SHARE if setting < 1 else interval_steps(_LONGEST_SAVE_SHARE, total_steps))
    exceeds_run = new_value * (total_steps if setting < 1 else 1) >= total_steps
    return 0 if exceeds_run and part.key != _LOG else new_value


def _overheads(context: Context, patch: Patch) -> list[_Overhead]:
    """Return all kinds of interruptions that the plan has with the settings of the patch."""
    plan, earlier = context.required_plan, context.earlier
    total_steps, eval_rows = plan.total_steps.value, plan.eval_rows.value
    shape, setup, gpu = context.basis.shape, plan.training_setup, context.basis.target.gpu
    token_seconds = generated_token_seconds(shape, setup)

    def make(key: str, name: str, planned_steps: int, seconds: float, measured: float | None, source: str) -> _Overhead:
        steps = interval_steps(patch[key], total_steps) if key in patch else planned_steps
        # The evaluation and the checkpoint at the end are no interruptions.
        count = count_due(total_steps, steps) - 1 if key in (_EVAL, _SAVE) else total_steps // steps if steps else 0
        source = f"measured in run {earlier.name}" if earlier and measured else source
        return _Overhead(key, name, steps, count if eval_rows or key != _EVAL else 0, seconds, source)

    save_speed, sample_time, token_share = (
        (earlier.save_bytes_per_second, earlier.sample_seconds, earlier.evaluation_share) if earlier else (None,) * 3
    )
    # Seconds per row in training. An evaluation has only a forward pass, and takes less.
    row_seconds = (context.step_seconds or 0.0) / min(plan.effective_batch_size.value, plan.train_rows.value)
    eval_seconds = row_seconds * patch.get(_EVAL_ROWS, eval_rows) * (token_share or EVALUATION_SHARE)
    if plan.answer_rows and not token_share and context.config.evaluation.generate_rows != "auto":
        answer_tokens = find_task(context.config.task.type).answer_tokens(context.config)
        seconds = answer_seconds(shape, setup, gpu.card if gpu else None, plan.answer_rows.value, answer_tokens)
        eval_seconds += seconds / plan.answers_interval
    own_bytes, own_speed = plan.checkpoint_bytes.value, _ASSUMED_SAVE_BYTES_PER_SECOND
    save_seconds = (own_bytes + SAVE_FIXED_BYTES) / save_speed if save_speed else own_bytes / own_speed
    sample_seconds = sample_time or token_seconds * plan.sample_tokens.value
    sample_source = f"{1000 * token_seconds:.1f} ms/token, not measured here yet"
    group_steps, group_source = context.config.logging.logging_steps, "from a benchmark"
    eval_source, save_source = "assumed: a row takes 1/3 of its training time", "at 400 MB/s, not measured here yet"
    return [
        make(_EVAL, "evaluations", plan.eval_every_steps.value, eval_seconds, token_share, eval_source),
        make(_SAVE, "checkpoints", plan.save_every_steps.value, save_seconds, save_speed, save_source),
        make(_SAMPLE, "samples", plan.sample_every_steps.value, sample_seconds, sample_time, sample_source),
        make(_LOG, "journal", group_steps, _JOURNAL_GROUP_SECONDS, None, group_source),
    ]


@rule("Checkpoints", 500, _SAVE, name="checkpoints")
def saved_on_the_way(context: Context) -> Verdict:
    """A run that saves only at its end loses everything in a crash."""
    plan = context.required_plan
    interval, seconds = plan.save_every_steps.value, context.step_seconds
    steps = interval or plan.total_steps.value
    when = f"saved every {interval:,} steps" if interval else "saved only at the end"
    if seconds is None:
        return not_applicable(f"{when}; the time of {steps:,} steps is unknown")
    risk = f"a crash loses at most {format_seconds(steps * seconds)} of work"
    if steps * seconds <= _MAX_SAVE_INTERVAL_SECONDS or steps == 1:
        return passed(f"{when}: {risk}")
    return warned(
        f"{when}: {risk.replace('at most', 'up to')}",
        fix={_SAVE: max(1, int(_PROPOSED_SAVE_INTERVAL_SECONDS / seconds))},
    )


def _remedies_of_batched_writing(basis: Basis, budget: float) -> Iterator[Remedy]:
    if basis.config.evaluation.per_device_eval_batch_size != "auto":
        yield Remedy(patch={EVAL_BATCH: "auto"}, rank=2, cuts_batch=True)


@rule("Batched generation", 510, EVAL_BATCH, remedies=_remedies_of_batched_writing)
def batched_writing(context: Context) -> Verdict:
    """Generating a token reads all weights once, whether for one row or for thirty."""
    plan, config = context.required_plan, context.config
    task = find_task(config.task.type)
    if task.labels_rows:
        return not_applicable("this task generates no text; predictions run in batches in any case")
    rows = plan.per_device_eval_batch_size.value
    answers = min(task.answer_rows(config), plan.eval_rows.value)
    sentence = (
        f"tui-trainer predict generates in batches of rows of similar length, evaluations in batches of {rows} rows"
    )
    sentence += "; both use greedy decoding"
    if not answers or rows >= min(answers, _FEW_ROWS) or config.evaluation.per_device_eval_batch_size == "auto":
        return passed(sentence, "tui-trainer bench RUN compares single rows with batches on this machine")
    sentence += f"; each evaluation generates {answers} answers"
    budget, batch = context.basis.memory_budget.budget_bytes, plan.per_device_train_batch_size.value
    fits = budget is None or planned_memory_bytes(context, eval_batch=batch) <= budget
    advice = "" if fits and batch > rows else "raise evaluation.per_device_eval_batch_size as far as memory allows"
    return warned(sentence, fix={EVAL_BATCH: "auto"} if not advice else None, advice=advice)


@rule("Quantised export", 530, needs_plan=False)
def quantized_model(context: Context) -> Verdict:
    """One-byte weights are read in a quarter of the time; the export measures whether predictions stay the same."""
    earlier = context.earlier
    if earlier is None:
        return not_applicable("there is no earlier run to export; after training: tui-trainer export last --to int8")
    if not earlier.exports:
        hint = f"to export it: tui-trainer export {shell_word(earlier.name)} --to int8"
        return not_applicable(f"run {earlier.name} has not been exported to int8 yet; {hint}")
    smallest = min(earlier.exports, key=lambda export: export.bytes)
    change = f"{format_bytes(smallest.trained_bytes)} -> {format_bytes(smallest.bytes)}"
    gain = smallest.trained_seconds_per_row / smallest.seconds_per_row if smallest.seconds_per_row else 0.0
    sentence = f"{smallest.format} export of run {earlier.name}: {change}, {gain:.2f} times as fast on held-out rows"
    if smallest.faults:
        return warned(
            f"{sentence}, but its results differ from those of the trained model: {smallest.faults}",
            advice="use another format",
        )
    return passed(sentence)
