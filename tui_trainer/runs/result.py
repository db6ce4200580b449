"""The result of a run: its scores, the evaluation of its model, a grade of its speed, its memory use, its targets.

The speed is compared with the best earlier speed for steps of this shape, or else with the machine's compute rates.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tui_trainer.runs.events import EvalDone, PlanMade
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import GIB, MIB, format_bytes, format_bytes_of, format_rate, format_seconds, quantity

# Scores of a run as text, each with the result of a simple model: `accuracy 0.83 (most frequent class 0.31)`.
#
# A baseline is named "SCORE of MODEL" (`tasks/contract.py`), such as "accuracy of the most frequent class".

_OF = " of "
_LESS_IS_BETTER = frozenset({"mse", "mae", "looping_answers"})
_ERROR_SCORE = "calibration_error"


@dataclass(frozen=True, slots=True)
class ScoreWords:
    """A score with its display name, its value, and the name and value of its baseline, if it has one."""

    name: str
    value: float
    baseline: tuple[str, float] | None
    less_is_better: bool

    @property
    def beats_baseline(self) -> bool | None:
        if self.baseline is None:
            return None
        return self.value < self.baseline[1] if self.less_is_better else self.value > self.baseline[1]

    @property
    def baseline_words(self) -> str:
        """Baseline as text: `most frequent class 0.310`; empty without one."""
        return f"{self.baseline[0]} {format_score(self.baseline[1])}" if self.baseline else ""

    @property
    def words(self) -> str:
        """Value and baseline as text: `0.834 (most frequent class 0.310)`."""
        return format_score(self.value) + (f" ({self.baseline_words})" if self.baseline else "")


def score_words(scores: Mapping[str, float], baselines: Mapping[str, float]) -> list[ScoreWords]:
    """Return the scores in their given order, each with its first baseline."""
    first_baselines = {name: next(iter(baselines_of(name, baselines).items()), None) for name in scores}
    return [
        ScoreWords(display_name(name), value, first_baselines[name], less_is_better(name))
        for name, value in scores.items()
    ]


def baselines_of(name: str, baselines: Mapping[str, float]) -> dict[str, float]:
    """Return the values of simple models for one score: `{"most frequent class": 0.31}`."""
    split_titles = ((title.partition(_OF), value) for title, value in baselines.items())
    return {model.removeprefix("the "): value for (score, mark, model), value in split_titles if mark and score == name}


def less_is_better(name: str) -> bool:
    return name in _LESS_IS_BETTER or _ERROR_SCORE in name


def scores_line(scores: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Return the scores as text: `accuracy 0.83 (most frequent class 0.31), macro F1 0.80`."""
    return ", ".join(f"{score.name} {score.words}" for score in score_words(scores, baselines))


def baselines_line(baselines: Mapping[str, float]) -> str:
    """Return the baselines as text, grouped by model: `accuracy 0.31 and macro F1 0.06 of the most frequent class`."""
    texts_of_model: dict[str, list[str]] = {}
    for title, value in baselines.items():
        score, _, model = title.partition(_OF)
        texts_of_model.setdefault(model, []).append(f"{display_name(score)} {format_score(value)}")
    return "; ".join(" and ".join(texts) + (f" of {model}" if model else "") for model, texts in texts_of_model.items())


# Scores whose values need an explanation.
_EXPLAINED_NAMES = {
    "answer_length": "answer length (reference: 1)",
    "looping_answers": "share of looping answers",
    "stopped_answers": "share of stopped answers",
}


def display_name(name: str) -> str:
    """Return the display name of a score: `macro F1` for `macro_f1`."""
    return _EXPLAINED_NAMES.get(name) or name.replace("_", " ").replace("f1", "F1")


def format_score(value: float) -> str:
    """Format a score with three decimals, or with four digits from 10 on."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


_CLEARLY_WORSE = 1.02
# Bounds of the grades as shares of the best or the usual rate. They follow a guide that grades 2,000 samples a second
# as excellent, 1,500 as good, 1,000 as acceptable and fewer than 500 as a problem.
_GOOD_SHARE, _SLOW_SHARE = 0.75, 0.5
# The exponent of the slowdown by other programs, explained in `_graded`.
_SLOWDOWN_EXPONENT = 2.5
_NOTED_OTHERS_SHARE = 0.1
# A multiple is easier to read than 182 %.
_LARGEST_PERCENT_SHARE = 1.05
_GRADES = {0.95: "excellent", _GOOD_SHARE: "good", _SLOW_SHARE: "acceptable", 0.25: "slow", 0.0: "very slow"}


def final_evaluation(state: RunState) -> EvalDone | None:
    """Return the evaluation of a finished run's final model; None before the end, and without an evaluation."""
    finish_event = state.finished
    if finish_event is None or finish_event.eval_loss is None:
        return None
    # Older journals do not record the step of the model, only its loss.
    same_loss_evals = [event for event in state.evals if event.loss == finish_event.eval_loss]
    return next((event for event in reversed(same_loss_evals) if finish_event.model_step in (None, event.step)), None)


def held_out_loss(state: RunState) -> float | None:
    """Return the final held-out loss, or the last one so far, in nats; None before the first evaluation."""
    if state.finished and state.finished.eval_loss is not None:
        return state.finished.eval_loss
    return state.evals[-1].loss if state.evals else None


def newest_scores(state: RunState) -> dict[str, float]:
    """Return the scores of the run's final model, or of the last evaluation so far."""
    finish_event, evaluation = state.finished, final_evaluation(state)
    if finish_event is not None and finish_event.scores:
        return dict(finish_event.scores)
    if evaluation is None and (finish_event is None or finish_event.eval_loss is None):
        evaluation = state.evals[-1] if state.evals else None
    return dict(evaluation.scores) if evaluation else {}


def kept_step(state: RunState) -> int | None:
    """Return the step whose weights early stopping restored; None if the final model has the last step's weights."""
    finish_event = state.finished
    if finish_event is None or finish_event.reason == "stopped":
        return None
    step = finish_event.model_step
    if step is None and (evaluation := final_evaluation(state)) and evaluation.best:  # an older journal
        step = evaluation.step
    return None if step == finish_event.step else step


def ending_words(state: RunState) -> str:
    """Return how a run ended: `stopped early at step 40; kept step 30: macro F1 0.810`. Empty before its end."""
    finish_event = state.finished
    if state.failed is not None:
        return f"failed at step {state.step:,}{_step_of_total(state.step, state.total_steps)}"
    if finish_event is None:
        return ""
    if finish_event.reason == "stopped" and not finish_event.step:
        return "stopped before the first step"
    if finish_event.reason == "stopped":
        return f"stopped at step {finish_event.step:,}{_step_of_total(finish_event.step, state.total_steps)}"
    metric = state.plan.metric if state.plan else "loss"
    value = finish_event.eval_loss if metric == "loss" else newest_scores(state).get(metric)
    return ended_words(finish_event.reason, finish_event.step, kept_step(state), metric, value)


def ended_words(reason: str, step: int, kept: int | None, metric: str, value: float | None) -> str:
    """Return how a finished run ended, as text. `value` is the value of `metric` at the step `kept`."""
    is_early = reason == "early stopping"
    ending = f"stopped early at step {step:,}" if is_early else f"finished after {quantity(step, 'step')}"
    if kept is None:
        return ending
    return f"{ending}; kept step {kept:,}" + ("" if value is None else f": {metric_words(metric, value)}")


def metric_words(metric: str, value: float) -> str:
    """Return a metric with its value as text: `held-out loss 1.2500`, `macro F1 0.810`."""
    return f"held-out loss {value:.4f}" if metric == "loss" else f"{display_name(metric)} {format_score(value)}"


def metric_value(evaluation: EvalDone, metric: str) -> float | None:
    """Return the value of a metric (`loss`, or a score) in an evaluation; None if it was not measured."""
    return evaluation.loss if metric == "loss" else evaluation.scores.get(metric)


def ended_after_words(state: RunState) -> str:
    """Return as text how a run ended and how long it trained. The run must have finished."""
    assert state.finished is not None
    return f"{ending_words(state)}, {format_seconds(state.finished.seconds)} of training"


def kept_at_words(state: RunState) -> str:
    """Return `, at step 30` if early stopping restored the weights of that step, else an empty text."""
    step = kept_step(state)
    return "" if step is None else f", at step {step:,}"


def _step_of_total(step: int, total_steps: int) -> str:
    return f" of {total_steps:,}" if total_steps > step else ""


def best_evaluation(state: RunState) -> EvalDone | None:
    """Return the best evaluation by `evaluation.metric_for_best_model`, as the run itself recorded it."""
    return next((evaluation for evaluation in reversed(state.evals) if evaluation.best), None)


def _lower_is_better(event: EvalDone, metric: str) -> float:
    """Return the value of a metric, negated if higher is better; NaN if the evaluation does not have the metric."""
    value = metric_value(event, metric)
    if value is not None and metric == "answer_length":  # a share of the reference's length
        return abs(value - 1)
    return math.nan if value is None else value if metric == "loss" or less_is_better(metric) else -value


def best_by(state: RunState, metric: str) -> EvalDone | None:
    """Return the evaluation with the best value of a metric, the first if several; None without finite values."""
    finite_evals = (event for event in state.evals if math.isfinite(_lower_is_better(event, metric)))
    return min(finite_evals, key=lambda event: _lower_is_better(event, metric), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptWeights:
    """The step whose weights the final model has, or would have if the run ended now, and the state of early stopping.

    `best` is the best scheduled evaluation by `metric` (`evaluation.metric_for_best_model`). `patience_used` counts the
    scheduled evaluations since then. A `patience` of 0 means no early stopping: the last weights are kept.
    `requested_was_better` is true if an evaluation that the user requested was better than `best`.
    """

    step: int
    best: EvalDone | None
    metric: str
    patience: int
    patience_used: int
    requested_was_better: bool = False

    @property
    def best_words(self) -> str:
        """Best evaluation as text: `step 30, macro F1 0.810`; empty before the first evaluation."""
        if self.best is None:
            return ""
        scope = " (scheduled evaluations only)" if self.requested_was_better else ""
        value = metric_value(self.best, self.metric)
        return f"step {self.best.step:,}" + ("" if value is None else f", {metric_words(self.metric, value)}") + scope

    @property
    def patience_words(self) -> str:
        """State as text: `1 of 3 evaluations without improvement`; empty without early stopping."""
        evaluations = quantity(self.patience, "evaluation")
        return f"{self.patience_used} of {evaluations} without improvement" if self.patience else ""


def kept_weights(state: RunState, patience: int | None = None) -> KeptWeights:
    """Return which weights the run keeps. `patience` is used if the journal does not contain the run's patience."""
    plan, best_eval = state.plan, best_evaluation(state)
    metric = plan.metric if plan else "loss"
    if plan is not None and plan.early_stopping_patience is not None:
        patience = plan.early_stopping_patience
    later_evals = state.evals[state.evals.index(best_eval) + 1 :] if best_eval else state.evals
    best_value = _lower_is_better(best_eval, metric) if best_eval else -math.inf
    requested_evals = [event for event in state.evals if not event.scheduled]
    requested_was_better = any(_lower_is_better(event, metric) < best_value for event in requested_evals)
    patience_used = sum(event.scheduled and (metric == "loss" or metric in event.scores) for event in later_evals)
    step = state.step
    if state.finished is not None:
        step = kept_step(state) or state.step
    elif patience and best_eval is not None:
        step = best_eval.step
    return KeptWeights(step=step, best=best_eval, metric=metric, patience=patience or 0, patience_used=patience_used,
                       requested_was_better=requested_was_better)  # fmt: skip


def better_earlier_evaluation(state: RunState) -> EvalDone | None:
    """Return the evaluation with the lowest loss, if the loss at the end of the run was clearly higher.

    Returns None otherwise, and also if the final model is the best by `evaluation.metric_for_best_model`.
    """
    finish_event, lowest_eval, final_eval = state.finished, best_by(state, "loss"), final_evaluation(state)
    if finish_event is None or finish_event.reason != "done" or finish_event.eval_loss is None or lowest_eval is None:
        return None
    if kept_step(state) is not None or (final_eval is not None and final_eval.best):
        return None
    return None if finish_event.eval_loss <= lowest_eval.loss * _CLEARLY_WORSE else lowest_eval


def better_words(state: RunState) -> str:
    """Return a note if an earlier evaluation was clearly better than the one at the end of the run, else `""`."""
    event = better_earlier_evaluation(state)
    return f"an earlier evaluation was better: held-out loss {event.loss:.4f} at step {event.step:,}" if event else ""


def scores_of(state: RunState) -> list[ScoreWords]:
    """Return the scores of the final model, each with its baseline. Before the end, use the last evaluation."""
    return score_words(newest_scores(state), state.baselines.scores if state.baselines else {})


def beaten_words(is_beaten: bool | None) -> str:
    return {True: "beaten", False: "not beaten", None: ""}[is_beaten]


def grade(state: RunState, samples_per_second: float | None = None) -> str:
    """Return the grade of a speed as text, such as `good, 82 % of the best earlier speed here (1.42 k rows/s)`."""
    return rated_speed(state, samples_per_second)[0]


def rated_speed(state: RunState, samples_per_second: float | None = None) -> tuple[str, bool]:
    """Return a grade of a speed, and whether the speed is slow. The default is the speed of the whole run so far.

    The grade compares the speed with the best earlier steps of this shape on this machine: `good, 82 % of the best
    earlier speed here (1.42 k rows/s)`. Without earlier steps the plan's rates give the comparison: `good, 82 % of the
    usual speed for this model width`. The grade is empty if no rate is known.

    The load by other programs is mentioned before the grade. If it explains a slow run, it replaces the grade.
    """
    plan = state.plan
    samples_per_second = _samples_per_second(state) if samples_per_second is None else samples_per_second
    if plan is None or samples_per_second <= 0:
        return "", False
    if best_rate := plan.best_samples_per_second:
        reference = f"the best earlier speed here ({format_rate(best_rate, 'rows')})"
        return _graded(samples_per_second / best_rate, reference, state)
    rates, achieved_flops_per_second = plan.compute_rates, _flops_per_second(samples_per_second, plan)
    reference_flops_per_second = rates and (rates.maker if plan.cpu_threads is None else rates.measured)
    if rates is None or achieved_flops_per_second is None or not reference_flops_per_second:
        return "", False
    usual_flops_per_second = reference_flops_per_second * rates.usual_share
    compute_seconds = rates.row_flops * plan.effective_batch_size / plan.processes / usual_flops_per_second
    launch_seconds = rates.starting_seconds * plan.gradient_accumulation_steps
    if launch_seconds > compute_seconds:
        times_text = f"overhead {format_seconds(launch_seconds)}, computing {format_seconds(compute_seconds)}"
        return f"not rated: steps are so small that launch overhead dominates ({times_text})", False
    share = achieved_flops_per_second / reference_flops_per_second / rates.usual_share
    return _graded(share, "the usual speed for this model width", state)


def _graded(share: float, reference: str, state: RunState) -> tuple[str, bool]:
    share_text = f"{100 * share:.0f} % of" if share < _LARGEST_PERCENT_SHARE else f"{share:.1f} times"
    word = next(word for lowest_share, word in _GRADES.items() if share >= lowest_share)
    grade_text = f"{word}, {share_text} {reference}"
    others_text = others_words(state) if state.plan and state.plan.cpu_threads else ""
    if not others_text:
        return grade_text, share < _SLOW_SHARE
    # All threads wait for the slowest. One other busy process on two cores left two threads 0.18 to 0.5 of their speed.
    if max(1 - _others_share(state), 0.0) ** _SLOWDOWN_EXPONENT <= share < _GOOD_SHARE:
        return f"not rated: {others_text}", False
    return f"{others_text}; {grade_text}", share < _SLOW_SHARE


def others_words(state: RunState) -> str:
    """Return `other programs used 0.9 of 2 cores`, or an empty text if they used less than a tenth of the cores."""
    share, cores = _others_share(state), state.gauge_summary.usable_cores or 0.0
    return f"other programs used {share * cores:.1f} of {cores:g} cores" if share >= _NOTED_OTHERS_SHARE else ""


def _others_share(state: RunState) -> float:
    """Return the share of the usable cores that other programs used; 0 if it was not measured."""
    others_cores, usable_cores = state.gauge_summary.mean("others_cores"), state.gauge_summary.usable_cores
    return others_cores / usable_cores if others_cores is not None and usable_cores else 0.0


def _flops_per_second(samples_per_second: float, plan: PlanMade) -> float | None:
    """Return the FLOP/s of one process at this speed; None if the plan does not count the operations of a row."""
    return None if plan.compute_rates is None else plan.compute_rates.row_flops * samples_per_second / plan.processes


def computing_words(samples_per_second: float, plan: PlanMade | None) -> str:
    """Return the speed's shares of the compute rates: `48 % of the 130 GFLOP/s of fp32 matmuls here, 41 % of ...`."""
    achieved_flops_per_second = _flops_per_second(samples_per_second, plan) if plan else None
    if plan is None or achieved_flops_per_second is None or (rates := plan.compute_rates) is None:
        return ""
    parts = []
    if rates.measured:
        parts.append(f"{_share_of(achieved_flops_per_second, rates.measured)} of {rates.measured_of} here")
    if rates.maker:
        parts.append(f"{_share_of(achieved_flops_per_second, rates.maker)} of {rates.maker_source}")
    return ", ".join(parts)


def _share_of(achieved_flops_per_second: float, flops: float) -> str:
    scaled_rate, unit = (flops / 1e12, "TFLOP/s") if flops >= 1e12 else (flops / 1e9, "GFLOP/s")
    return f"{100 * achieved_flops_per_second / flops:.2g} % of the {scaled_rate:.3g} {unit}"


def throughput_words(state: RunState) -> str:
    """Return the grade of the run's speed so far, followed by `computing_words`; empty if both are unknown."""
    return "; ".join(filter(None, (grade(state), computing_words(_samples_per_second(state), state.plan))))


def _samples_per_second(state: RunState) -> float:
    seconds, rows_per_step = sum(state.step_seconds), state.plan.effective_batch_size if state.plan else 0
    return state.samples_per_second or (len(state.steps) * rows_per_step / seconds if seconds else 0.0)


def planned_epoch_seconds(plan: PlanMade | None) -> float | None:
    """Return the planned seconds for the steps of one epoch; None if the plan does not know the time of a step."""
    return None if plan is None or plan.step_seconds is None else plan.steps_per_epoch * plan.step_seconds


# Memory, CPU and GPU in use, compared with the plan.

# Share of the time that training usually keeps a GPU busy.
_USUAL_GPU_USE = "75 to 95 % expected"


def training_memory_bytes(state: RunState) -> int | None:
    """Return the peak memory so far in bytes, counted as the plan counts it; None if the peak is not known.

    On a GPU this is the allocated memory. On a CPU it is the memory that the process gained after loading libraries.
    """
    # Until a resumed run has made a step, the newest peak comes from an earlier process with another base memory.
    if state.last_step is None or not state.steps_since_start:
        return None
    peak_bytes = state.last_step.peak_memory_bytes
    if state.device.startswith("cuda"):
        return peak_bytes
    base_bytes = state.resident_bytes_before
    return None if base_bytes is None else max(peak_bytes - base_bytes, 0)


# A plan is meant to hold within 10 %. On a CPU the process has more: memory that glibc keeps, and often the screens.
_PLAN_EXCESS_SHARE, _CPU_EXCESS_BYTES = 0.1, 32 * MIB


def exceeds_plan(state: RunState) -> bool:
    """Return whether a run takes clearly more memory than planned."""
    measured_bytes, plan = training_memory_bytes(state), state.plan
    if measured_bytes is None or plan is None:
        return False
    tolerance_bytes = 0 if state.device.startswith("cuda") else _CPU_EXCESS_BYTES
    return measured_bytes > (1 + _PLAN_EXCESS_SHARE) * plan.memory_bytes + tolerance_bytes


def memory_words(state: RunState) -> str:
    """Return the peak memory as text: `2.1 of 2.4 GiB planned` or `2.9 GiB, 512.0 MiB more than planned`.

    If the plan is exceeded within its tolerance, the text is `171.7 MiB, planned 167.0 MiB`. If the peak cannot be
    compared with the plan, the text has the planned memory and the peak of the whole process.
    """
    if state.plan is None:
        return ""
    measured_bytes, planned_bytes = training_memory_bytes(state), state.plan.memory_bytes
    if measured_bytes is None:
        process_bytes = state.last_step.peak_memory_bytes if state.last_step else 0
        process_text = f", {format_bytes(process_bytes)} used by the process" if process_bytes else ""
        return f"{format_bytes(planned_bytes)} planned{process_text}"
    if exceeds_plan(state):
        return f"{format_bytes(measured_bytes)}, {format_bytes(measured_bytes - planned_bytes)} more than planned"
    if measured_bytes > planned_bytes:
        return f"{format_bytes(measured_bytes)}, planned {format_bytes(planned_bytes)}"
    return f"{format_bytes_of(measured_bytes, planned_bytes)} planned"


def in_use_words(state: RunState) -> str:
    """Return what a run uses: `memory 2.1 of 2.4 GiB planned, CPU 1.4 of 2 threads`; empty before the first step."""
    plan, gauge_summary = state.plan, state.gauge_summary
    if plan is None or not state.steps:
        return ""
    parts = [f"memory {memory_words(state)}"]
    busy_cores, gpu_share = gauge_summary.mean("busy_cores"), gauge_summary.mean("utilization_share")
    if plan.cpu_threads is not None and busy_cores is not None:
        threads = plan.cpu_threads * plan.processes
        parts.append(f"CPU {busy_cores:.1f} of {quantity(threads, 'thread')} planned")
    if gpu_share is not None:
        parts.append(f"GPU {100 * gpu_share:.0f} % busy, {_USUAL_GPU_USE}")
    return ", ".join(parts)


# The targets of a run, compared with its results so far. Both come from the journal.


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A target that the user set in [targets], and the run's value, None until it is known. Sizes are in bytes."""

    setting: str
    label: str
    requested: float
    measured: float | None
    at_most: bool
    beside: str = ""
    """Note on the run's value, or on how to measure it, such as `in batches`."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None while that is not known. NaN meets no target."""
        if self.measured is None:
            return None
        return self.measured <= self.requested if self.at_most else self.measured >= self.requested

    @property
    def verdict(self) -> str:
        return {True: "met", False: "not met", None: "unknown yet"}[self.met]

    @property
    def words(self) -> str:
        """Value and target as text: `samples/s 28.3 (at least 20)`."""
        text_of = format_bytes if self.setting.endswith("_gib") else format_score
        measured_text = "--" if self.measured is None else text_of(self.measured)
        bound = "at most" if self.at_most else "at least"
        return f"{self.label} {measured_text}{self.beside and f', {self.beside}'} ({bound} {text_of(self.requested)})"


def targets_of(state: RunState) -> list[Target]:
    requested_values = state.plan.targets if state.plan else {}
    metric_name = display_name(state.plan.metric) if state.plan else ""
    return [
        Target(
            setting=name,
            label=metric_name if name == "score" else label,
            requested=requested_values[name] * (GIB if name.endswith("_gib") else 1),
            measured=measure(state),
            at_most=at_most,
            beside=_BESIDE[name](state) if name in _BESIDE else "",
        )
        for name, (label, at_most, measure) in _TARGETS.items()
        if requested_values.get(name)
    ]


def targets_summary(state: RunState) -> str:
    """Return how many targets are met: `2 of 3 met`; empty if none is set."""
    targets = targets_of(state)
    unknown_count = sum(target.met is None for target in targets)
    met_text = f"{sum(target.met is True for target in targets)} of {len(targets)} met"
    return "" if not targets else met_text + (f", {unknown_count} unknown yet" if unknown_count else "")


def _score(state: RunState) -> float | None:
    """Return the value of the run's metric for the final model, or before the end at the best evaluation so far."""
    metric = state.plan.metric if state.plan else ""
    best_eval = best_evaluation(state)
    scores = newest_scores(state) if state.finished or best_eval is None else best_eval.scores
    return scores.get(metric)


def _loss(state: RunState) -> float | None:
    lowest_eval = best_by(state, "loss")
    loss = held_out_loss(state) if state.finished else lowest_eval.loss if lowest_eval else None
    return None if loss is None else loss if math.isfinite(loss) else math.inf


def _model_bytes(state: RunState) -> float | None:
    """Return the bytes of the final model, with an adapter counted as merged; None before the end of the run."""
    if state.finished is None or state.finished.model_bytes is None:
        return None
    merged_bytes = state.plan.merged_bytes if state.plan else None
    return state.finished.model_bytes if merged_bytes is None else merged_bytes


def adapter_words(state: RunState) -> str:
    """Return a note to a merged model's size: `merged; the adapter alone takes 12.0 MiB`; empty without such a size."""
    finish_event, plan = state.finished, state.plan
    if plan is None or plan.merged_bytes is None or finish_event is None or finish_event.model_bytes is None:
        return ""
    return f"merged; the adapter alone takes {format_bytes(finish_event.model_bytes)}"


_BESIDE: dict[str, Callable[[RunState], str]] = {
    "model_size_gib": adapter_words,
    "inference_samples_per_second": lambda state: (
        "in batches" if state.inference else f"measure it with `tui-trainer bench {shell_word(state.name)}`"
    ),
}
# Keyed by setting: the label, whether less is better, and the function that returns the run's value.
_TARGETS: dict[str, tuple[str, bool, Callable[[RunState], float | None]]] = {
    "samples_per_second": ("samples/s", False, lambda state: state.samples_per_second),
    "inference_samples_per_second": (
        "inference samples/s", False, lambda state: state.inference.samples_per_second if state.inference else None
    ),
    "memory_gib": ("memory", True, lambda state: state.peak_memory_bytes or None),
    "model_size_gib": ("model size", True, _model_bytes),
    "loss": ("held-out loss", True, _loss),
    "score": ("score", False, _score),
}  # fmt: skip
