"""What came of a run: which of its evaluations is that of its model, whether another was better, and how good its rate
is beside the best that this machine has reached with steps of the same shape."""

import math

from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.score_words import number, plain, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.units import format_count

_CLEARLY_WORSE = 1.02
# Of the best rate that this machine had itself.
_GRADES = ((0.95, "excellent"), (0.75, "good"), (0.5, "acceptable"), (0.25, "slow"), (0.0, "a problem"))


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
    """The same of what a run that came to its end ended with. `value`: of `metric`, at the step that was kept."""
    how = f"stopped early at step {step:,}" if reason == "early stopping" else f"finished after {step:,} steps"
    if kept is None:
        return how
    measured = "held-out loss" if metric == "loss" else plain(metric)
    shown = "" if value is None else f": {measured} {f'{value:.4f}' if metric == 'loss' else number(value)}"
    return f"{how}; kept step {kept:,}{shown}"


def _of(step: int, total_steps: int) -> str:
    return f" of {total_steps:,}" if total_steps > step else ""


def best_evaluation(state: RunState) -> EvalDone | None:
    """The newest one that was the best by `evaluation.metric_for_best_model` when it was made."""
    return next((done for done in reversed(state.evals) if done.best), None)


def lowest_evaluation(state: RunState) -> EvalDone | None:
    finite = (done for done in state.evals if math.isfinite(done.loss))
    return min(finite, key=lambda done: done.loss, default=None)


def best_before(state: RunState) -> EvalDone | None:
    """The best evaluation of a run that was clearly better then than at its end; else None.

    A model that went back to its best evaluation, or ended with it, is the best by what the user asked for.
    """
    finished, best, last = state.finished, lowest_evaluation(state), final_evaluation(state)
    if finished is None or finished.reason != "done" or finished.eval_loss is None or best is None:
        return None
    if kept_step(state) is not None or (last is not None and last.best):
        return None
    return None if finished.eval_loss <= best.loss * _CLEARLY_WORSE else best


def score_lines(state: RunState) -> list[str]:
    if state.finished is None:
        return []
    lines = []
    for score in score_words(newest_scores(state), state.baselines.scores if state.baselines else {}):
        what = f"{score.baseline[0]} {number(score.baseline[1])}: " if score.baseline else ""
        beaten = {True: "beaten", False: "not beaten", None: ""}[score.beaten]
        beside = f"  ({what}{beaten})" if what else ""
        lines.append(f"{one_line(score.name):<14} {number(score.value)}{one_line(beside)}")
    return lines


def grade(samples_per_second: float, best: float | None) -> str:
    """`good, 82 % of the best here (1.42 k)`; empty where none is known."""
    if not best or samples_per_second <= 0:
        return ""
    share = samples_per_second / best
    word = next(word for least, word in _GRADES if share >= least)
    return f"{word}, {share * 100:.0f} % of the best here ({format_count(best)} rows/s)"


def grade_of(state: RunState) -> str:
    """Of a whole run so far; empty where none is known."""
    seconds, rows = sum(state.step_seconds), state.plan.effective_batch_size if state.plan else 0
    rate = state.samples_per_second or (len(state.steps) * rows / seconds if seconds else 0.0)
    return grade(rate, state.plan.best_samples_per_second if state.plan else None)
