"""What came of a run: which of its evaluations is that of its model, whether another was better, and how good its rate
is beside the best that this machine has reached with steps of the same shape, or what it can compute.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tui_trainer.runs.events import EvalDone, PlanMade
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import GIB, format_bytes, format_bytes_of, format_rate, format_seconds

# Scores of a run in words, each beside what a simple model reaches: `accuracy 0.83 (most frequent class 0.31)`.
#
# The baseline of a score is named "NAME of WHAT" (`tasks/contract.py`), such as "accuracy of the most frequent class".

_OF = " of "
_LESS_IS_BETTER = frozenset({"mse", "mae"})


@dataclass(frozen=True, slots=True)
class ScoreWords:
    """`name` for people, `value`, and what is to be beaten, if that is known: (what it is, its value)."""

    name: str
    value: float
    baseline: tuple[str, float] | None
    less_is_better: bool

    @property
    def beaten(self) -> bool | None:
        if self.baseline is None:
            return None
        return self.value < self.baseline[1] if self.less_is_better else self.value > self.baseline[1]

    @property
    def baseline_words(self) -> str:
        """`most frequent class 0.310`; empty if nothing is to be beaten."""
        return f"{self.baseline[0]} {number(self.baseline[1])}" if self.baseline else ""

    @property
    def words(self) -> str:
        """`0.834 (most frequent class 0.310)`."""
        return number(self.value) + (f" ({self.baseline_words})" if self.baseline else "")


def score_words(scores: Mapping[str, float], baselines: Mapping[str, float]) -> list[ScoreWords]:
    """All scores, in their order; of several baselines of one score the first."""
    return [
        ScoreWords(plain(name), value, next(iter(baselines_of(name, baselines).items()), None), less_is_better(name))
        for name, value in scores.items()
    ]


def baselines_of(name: str, baselines: Mapping[str, float]) -> dict[str, float]:
    """What simpler models reach of one score, by what they are: `most frequent class`."""
    titles = ((title.partition(_OF), value) for title, value in baselines.items())
    return {what.removeprefix("the "): value for (scored, of, what), value in titles if of and scored == name}


def less_is_better(name: str) -> bool:
    return name in _LESS_IS_BETTER


def scores_line(scores: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """`accuracy 0.83 (most frequent class 0.31), macro F1 0.80`."""
    return ", ".join(f"{score.name} {score.words}" for score in score_words(scores, baselines))


def baselines_line(baselines: Mapping[str, float]) -> str:
    """`accuracy 0.31 and macro F1 0.06 of the most frequent class`, what belongs together said once."""
    groups: dict[str, list[str]] = {}
    for title, value in baselines.items():
        name, _, what = title.partition(_OF)
        groups.setdefault(what, []).append(f"{plain(name)} {number(value)}")
    return "; ".join(" and ".join(values) + (f" of {what}" if what else "") for what, values in groups.items())


def plain(name: str) -> str:
    """`macro_f1` as `macro F1`."""
    return name.replace("_", " ").replace("f1", "F1")


def number(value: float) -> str:
    """Three decimals; of a larger number four digits."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


_CLEARLY_WORSE = 1.02
# Shares of the best rate of this machine, or of the usual one. They are the bounds of a guide that grades 2,000 samples
# a second as excellent, 1,500 as good, 1,000 as acceptable and fewer than 500 as a problem.
_GOOD, _SLOW, _WAITING, _NOTED_OTHERS_SHARE = 0.75, 0.5, 2.5, 0.1
_GRADES = ((0.95, "excellent"), (_GOOD, "good"), (_SLOW, "acceptable"), (0.25, "slow"), (0.0, "very slow"))


def final_evaluation(state: RunState) -> EvalDone | None:
    """The evaluation that a run ended with: of its model, where it has one. None before the end, and without one."""
    finished = state.finished
    if finished is None or finished.eval_loss is None:
        return None
    # Journals of before the step of the model was noted have the loss alone.
    found = [done for done in state.evals if done.loss == finished.eval_loss]
    return next((done for done in reversed(found) if finished.model_step in (None, done.step)), None)


def held_out_loss(state: RunState) -> float | None:
    """The final one, else the last so far, in nats; None before the first evaluation."""
    if state.finished and state.finished.eval_loss is not None:
        return state.finished.eval_loss
    return state.evals[-1].loss if state.evals else None


def newest_scores(state: RunState) -> dict[str, float]:
    """The scores of the run's model, else of the last evaluation so far."""
    finished, done = state.finished, final_evaluation(state)
    if finished is not None and finished.scores:
        return dict(finished.scores)
    if done is None and (finished is None or finished.eval_loss is None):
        done = state.evals[-1] if state.evals else None
    return dict(done.scores) if done else {}


def kept_step(state: RunState) -> int | None:
    """The earlier step that the run's model went back to, with early stopping; None where it has the last weights."""
    finished = state.finished
    if finished is None or finished.reason == "stopped":
        return None
    step = finished.model_step
    if step is None and (kept := final_evaluation(state)) and kept.best:  # a journal that does not name it
        step = kept.step
    return None if step == finished.step else step


def ending_words(state: RunState) -> str:
    """How a run ended: `stopped early at step 40; kept step 30: macro F1 0.810`. Empty before its end."""
    finished = state.finished
    if state.failed is not None:
        return f"failed at step {state.step:,}{_of(state.step, state.total_steps)}"
    if finished is None:
        return ""
    if finished.reason == "stopped" and not finished.step:
        return "stopped before the first step"
    if finished.reason == "stopped":
        return f"stopped at step {finished.step:,}{_of(finished.step, state.total_steps)}"
    metric = state.plan.metric if state.plan else "loss"
    value = finished.eval_loss if metric == "loss" else newest_scores(state).get(metric)
    return ended_words(finished.reason, finished.step, kept_step(state), metric, value)


def ended_words(reason: str, step: int, kept: int | None, metric: str, value: float | None) -> str:
    """Return how a finished run ended. `value` is that of `metric` at the step that was kept."""
    how = f"stopped early at step {step:,}" if reason == "early stopping" else f"finished after {step:,} steps"
    if kept is None:
        return how
    return f"{how}; kept step {kept:,}" + ("" if value is None else f": {metric_words(metric, value)}")


def metric_words(metric: str, value: float) -> str:
    """Return the value of `evaluation.metric_for_best_model`: `held-out loss 1.2500`, `macro F1 0.810`."""
    return f"held-out loss {value:.4f}" if metric == "loss" else f"{plain(metric)} {number(value)}"


def metric_value(done: EvalDone, metric: str) -> float | None:
    """Return the value of `evaluation.metric_for_best_model` in an evaluation; None if it was not measured."""
    return done.loss if metric == "loss" else done.scores.get(metric)


def ended_after_words(state: RunState) -> str:
    """Return how a run ended, and how long it trained; only for a run that has finished."""
    assert state.finished is not None
    return f"{ending_words(state)}, {format_seconds(state.finished.seconds)} of training"


def kept_at_words(state: RunState) -> str:
    """Return `, at step 30` if the run's model went back to that step, else an empty text."""
    kept = kept_step(state)
    return "" if kept is None else f", at step {kept:,}"


def _of(step: int, total_steps: int) -> str:
    return f" of {total_steps:,}" if total_steps > step else ""


def best_evaluation(state: RunState) -> EvalDone | None:
    """The newest one that was the best by `evaluation.metric_for_best_model` when it was made."""
    return next((done for done in reversed(state.evals) if done.best), None)


def _measured(done: EvalDone, metric: str) -> float:
    """The metric of an evaluation, the lower the better; NaN where it has none."""
    value = metric_value(done, metric)
    return math.nan if value is None else value if metric == "loss" or less_is_better(metric) else -value


def best_by(state: RunState, metric: str) -> EvalDone | None:
    """Return the first evaluation that no other exceeds in this score, or in `loss`; None before it was measured."""
    having = (done for done in state.evals if math.isfinite(_measured(done, metric)))
    return min(having, key=lambda done: _measured(done, metric), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptWeights:
    """Which weights are the run's model, or would be if it ended now, and how near early stopping is.

    `best` is by `metric`, which is `evaluation.metric_for_best_model`. `patience_used` of `patience` evaluations came
    since then without a better one; a `patience` of 0 stops nothing, and keeps the last weights. All of it counts the
    scheduled evaluations alone; `asked_was_better` where one that a person asked for was better than the best of them.
    """

    step: int
    best: EvalDone | None
    metric: str
    patience: int
    patience_used: int
    asked_was_better: bool = False

    @property
    def best_words(self) -> str:
        """`step 30, macro F1 0.810`; empty before the first evaluation."""
        if self.best is None:
            return ""
        of = " (scheduled evaluations only)" if self.asked_was_better else ""
        value = metric_value(self.best, self.metric)
        return f"step {self.best.step:,}" + ("" if value is None else f", {metric_words(self.metric, value)}") + of

    @property
    def patience_words(self) -> str:
        """`1 of 3 evaluations without improvement`; empty without early stopping."""
        return f"{self.patience_used} of {self.patience} evaluations without improvement" if self.patience else ""


def kept_weights(state: RunState, patience: int | None = None) -> KeptWeights:
    """`patience` is that of the plan's file, for journals that have none."""
    plan, best = state.plan, best_evaluation(state)
    metric = plan.metric if plan else "loss"
    if plan is not None and plan.early_stopping_patience is not None:
        patience = plan.early_stopping_patience
    since = state.evals[state.evals.index(best) + 1 :] if best else state.evals
    better = best is not None and any(
        not done.scheduled and _measured(done, metric) < _measured(best, metric) for done in state.evals
    )
    used = sum(done.scheduled and (metric == "loss" or metric in done.scores) for done in since)
    step = state.step
    if state.finished is not None:
        step = kept_step(state) or state.step
    elif patience and best is not None:
        step = best.step
    return KeptWeights(step=step, best=best, metric=metric, patience=patience or 0, patience_used=used,
                       asked_was_better=better)  # fmt: skip


def best_before(state: RunState) -> EvalDone | None:
    """The best evaluation of a run that was clearly better then than at its end; else None.

    A model that went back to its best evaluation, or ended with it, is the best by what the user asked for.
    """
    finished, best, last = state.finished, best_by(state, "loss"), final_evaluation(state)
    if finished is None or finished.reason != "done" or finished.eval_loss is None or best is None:
        return None
    if kept_step(state) is not None or (last is not None and last.best):
        return None
    return None if finished.eval_loss <= best.loss * _CLEARLY_WORSE else best


def better_words(state: RunState) -> str:
    """Return that an earlier evaluation was clearly better than the end of the run; empty if none was."""
    best = best_before(state)
    return f"an earlier evaluation was better: held-out loss {best.loss:.4f} at step {best.step:,}" if best else ""


def scores_of(state: RunState) -> list[ScoreWords]:
    """Return the scores of the run's model, or of the last evaluation so far, each beside its baseline."""
    return score_words(newest_scores(state), state.baselines.scores if state.baselines else {})


def beaten_words(is_beaten: bool | None) -> str:
    return {True: "beaten", False: "not beaten", None: ""}[is_beaten]


def grade(state: RunState, samples_per_second: float | None = None) -> str:
    """Return the words of `rated_speed`."""
    return rated_speed(state, samples_per_second)[0]


def rated_speed(state: RunState, samples_per_second: float | None = None) -> tuple[str, bool]:
    """Return `good, 82 % of the best speed here (1.42 k rows/s)` for a rate, by default that of the whole run so far,
    and whether that is slow.

    Without such steps on this machine it is `good, 82 % of the usual speed for this model width`, by the plan's rates,
    or why that would mean nothing. It is empty if neither is known.

    What others used of the cores is named before it, and instead of it where that explains why the run was slow.
    """
    plan = state.plan
    samples_per_second = _samples_per_second(state) if samples_per_second is None else samples_per_second
    if plan is None or samples_per_second <= 0:
        return "", False
    if best := plan.best_samples_per_second:
        return _graded(samples_per_second / best, f"of the best speed here ({format_rate(best, 'rows')})", state)
    rates, reached = plan.compute_rates, _flops_per_second(samples_per_second, plan)
    # The usual share is that of the maker's rate on a card, and of the measured one on a CPU.
    rate = rates and (rates.maker if plan.cpu_threads is None else rates.measured)
    if rates is None or reached is None or not rate:
        return "", False
    computing = rates.row_flops * plan.effective_batch_size / plan.processes / (rate * rates.usual_share)
    starting = rates.starting_seconds * plan.gradient_accumulation_steps
    if starting > computing:
        compared = f"overhead {format_seconds(starting)}, computing {format_seconds(computing)}"
        return f"not rated: steps are so small that launch overhead dominates ({compared})", False
    return _graded(reached / rate / rates.usual_share, "of the usual speed for this model width", state)


def _graded(share: float, what: str, state: RunState) -> tuple[str, bool]:
    graded = f"{next(word for least, word in _GRADES if share >= least)}, {100 * share:.0f} % {what}"
    others = others_words(state) if state.plan and state.plan.cpu_threads else ""
    if not others:
        return graded, share < _SLOW
    # Threads wait for the slowest of them: beside one busy process two threads on two cores reached 0.18 to 0.5 of it.
    is_explained = max(1 - _others_share(state), 0.0) ** _WAITING <= share < _GOOD
    return (f"not rated: {others}", False) if is_explained else (f"{others}; {graded}", share < _SLOW)


def others_words(state: RunState) -> str:
    """Return `other programs used 0.9 of 2 cores`, or nothing where other programs hardly used any."""
    share, cores = _others_share(state), state.gauge_summary.usable_cores or 0.0
    return f"other programs used {share * cores:.1f} of {cores:g} cores" if share >= _NOTED_OTHERS_SHARE else ""


def _others_share(state: RunState) -> float:
    """Return the share of the usable cores that other programs used; 0 where nobody measured it."""
    others, cores = state.gauge_summary.mean("others_cores"), state.gauge_summary.usable_cores
    return others / cores if others is not None and cores else 0.0


def _flops_per_second(samples_per_second: float, plan: PlanMade) -> float | None:
    """Floating-point operations a second of one process; None where the plan does not say what a row has."""
    return None if plan.compute_rates is None else plan.compute_rates.row_flops * samples_per_second / plan.processes


def computing_words(samples_per_second: float, plan: PlanMade | None) -> str:
    """`48 % of the 130 GFLOP/s of fp32 matmuls here, 41 % of the 312 TFLOP/s of A100 (NVIDIA data sheet)`."""
    reached = _flops_per_second(samples_per_second, plan) if plan else None
    if plan is None or reached is None or (rates := plan.compute_rates) is None:
        return ""
    parts = []
    if rates.measured:
        parts.append(f"{_share_of(reached, rates.measured)} of {rates.measured_of} here")
    if rates.maker:
        parts.append(f"{_share_of(reached, rates.maker)} of {rates.maker_source}")
    return ", ".join(parts)


def _share_of(reached: float, rate: float) -> str:
    shown, unit = (rate / 1e12, "TFLOP/s") if rate >= 1e12 else (rate / 1e9, "GFLOP/s")
    return f"{100 * reached / rate:.2g} % of the {shown:.3g} {unit}"


def throughput_words(state: RunState) -> str:
    """Of a whole run so far: its grade, and what share it is of what this machine and its card compute; empty where
    nothing is known."""
    return "; ".join(filter(None, (grade(state), computing_words(_samples_per_second(state), state.plan))))


def _samples_per_second(state: RunState) -> float:
    seconds, rows = sum(state.step_seconds), state.plan.effective_batch_size if state.plan else 0
    return state.samples_per_second or (len(state.steps) * rows / seconds if seconds else 0.0)


def planned_epoch_seconds(plan: PlanMade | None) -> float | None:
    """Of the steps of an epoch; None where the plan does not say."""
    return None if plan is None or plan.step_seconds is None else plan.steps_per_epoch * plan.step_seconds


# What was expected to be in use, beside what was.

# What a card does that trains as it should: document D's target.
_BUSY_GPU = "75 to 95 % expected"


def training_memory_bytes(state: RunState) -> int | None:
    """The peak so far, counted as the plan counts it; None where that is not known.

    On a GPU what was allocated on the card, on a CPU what training has added to the process with its libraries.
    """
    # Until a resumed run has made a step, the newest peak is that of another process, which had another base.
    if state.last_step is None or not state.steps_since_start:
        return None
    peak = state.last_step.peak_memory_bytes
    if state.device.startswith("cuda"):
        return peak
    before = state.resident_bytes_before
    return None if before is None else max(peak - before, 0)


# A plan is meant to hold within 10 %: what is more was planned wrongly.
_ABOVE_PLAN = 1.1


def memory_above_plan(state: RunState, beside_bytes: int = 0) -> str:
    """`23% above the plan` where a run takes clearly more than was planned, else empty. `beside_bytes`: of the process,
    what is not the run's."""
    measured, plan = training_memory_bytes(state), state.plan
    if measured is None or plan is None or measured - beside_bytes <= _ABOVE_PLAN * plan.memory_bytes:
        return ""
    return f"{measured / plan.memory_bytes - 1:.0%} above the plan"


def memory_words(state: RunState, beside_bytes: int = 0) -> str:
    """`2.1 of 2.4 GiB planned`; what is known where the peak cannot be compared."""
    if state.plan is None:
        return ""
    measured, planned = training_memory_bytes(state), state.plan.memory_bytes
    if measured is not None:
        above = memory_above_plan(state, beside_bytes)
        return ", ".join(filter(None, (f"{format_bytes_of(measured, planned)} planned", above)))
    process = f", {format_bytes(state.last_step.peak_memory_bytes)} used by the process" if state.last_step else ""
    return f"{format_bytes(planned)} planned{process}"


def in_use_words(state: RunState) -> str:
    """`memory 2.1 of 2.4 GiB planned, CPU 1.4 of 2 threads`; empty before a step."""
    plan, summary = state.plan, state.gauge_summary
    if plan is None or not state.steps:
        return ""
    parts = [f"memory {memory_words(state)}"]
    cores, busy = summary.mean("busy_cores"), summary.mean("utilization_share")
    if plan.cpu_threads is not None and cores is not None:
        threads = plan.cpu_threads * plan.processes
        parts.append(f"CPU {cores:.1f} of {threads} thread{'s' if threads > 1 else ''} planned")
    if busy is not None:
        parts.append(f"GPU {100 * busy:.0f} % busy, {_BUSY_GPU}")
    return ", ".join(parts)


# What a run was meant to reach, beside what it has reached: from the journal alone, while it runs and afterwards.


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One `setting` of [targets]. `measured` is None while it is not known; bytes where `requested` is bytes too."""

    setting: str
    label: str
    requested: float
    measured: float | None
    at_most: bool
    beside: str = ""
    """What the measured value is, or how it is measured."""

    @property
    def met(self) -> bool | None:
        """None: not known yet. A loss that is not a number meets nothing."""
        if self.measured is None:
            return None
        return self.measured <= self.requested if self.at_most else self.measured >= self.requested

    @property
    def verdict(self) -> str:
        return {True: "met", False: "not met", None: "unknown yet"}[self.met]

    @property
    def words(self) -> str:
        """`samples/s 28.3 (at least 20)`."""
        show = format_bytes if self.setting.endswith("_gib") else number
        measured = "--" if self.measured is None else show(self.measured)
        bound = "at most" if self.at_most else "at least"
        return f"{self.label} {measured}{self.beside and f', {self.beside}'} ({bound} {show(self.requested)})"


def targets_of(state: RunState) -> list[Target]:
    requested = state.plan.targets if state.plan else {}
    metric = plain(state.plan.metric) if state.plan else ""
    return [
        Target(
            setting=name,
            label=metric if name == "score" else label,
            requested=requested[name] * (GIB if name.endswith("_gib") else 1),
            measured=measure(state),
            at_most=at_most,
            beside=_BESIDE[name](state) if name in _BESIDE else "",
        )
        for name, (label, at_most, measure) in _TARGETS.items()
        if requested.get(name)
    ]


def targets_summary(state: RunState) -> str:
    """`2 of 3 met`; empty where none was set."""
    targets = targets_of(state)
    unknown = sum(target.met is None for target in targets)
    met = f"{sum(target.met is True for target in targets)} of {len(targets)} met"
    return "" if not targets else met + (f", {unknown} unknown yet" if unknown else "")


def _score(state: RunState) -> float | None:
    """Of the model where it has one, of the best evaluation so far before."""
    metric = state.plan.metric if state.plan else ""
    best = best_evaluation(state)
    scores = newest_scores(state) if state.finished or best is None else best.scores
    return scores.get(metric)


def _loss(state: RunState) -> float | None:
    lowest = best_by(state, "loss")
    loss = held_out_loss(state) if state.finished else lowest.loss if lowest else None
    return None if loss is None else loss if math.isfinite(loss) else math.inf


def _model_bytes(state: RunState) -> float | None:
    """Of what is deployed: of a model with its adapter merged."""
    if state.finished is None or state.finished.model_bytes is None:
        return None
    merged = state.plan.merged_bytes if state.plan else None
    return state.finished.model_bytes if merged is None else merged


def adapter_words(state: RunState) -> str:
    """`merged; the adapter alone 12.0 MiB`; empty for a run that trains a whole model, and before its end."""
    finished, plan = state.finished, state.plan
    if plan is None or plan.merged_bytes is None or finished is None or finished.model_bytes is None:
        return ""
    return f"merged; the adapter alone {format_bytes(finished.model_bytes)}"


_BESIDE: dict[str, Callable[[RunState], str]] = {
    "model_size_gib": adapter_words,
    "inference_samples_per_second": lambda state: (
        "in batches" if state.inference else f"measure it with `tui-trainer bench {shell_word(state.name)}`"
    ),
}
# By the name of the setting: label, whether less is better, what it is compared with.
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
