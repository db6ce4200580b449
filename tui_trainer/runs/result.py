"""What came of a run: which of its evaluations is that of its model, whether another was better, and how good its rate
is beside the best that this machine has reached with steps of the same shape."""

import math

from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.score_words import number, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.units import format_count

# Tasks whose samples are labels, not texts.
LABELLING = ("sequence_classification", "token_classification")
_CLEARLY_WORSE = 1.02
# Of the best rate that this machine had itself.
_GRADES = ((0.95, "excellent"), (0.75, "good"), (0.5, "acceptable"), (0.25, "slow"), (0.0, "a problem"))


def loss_unit(state: RunState) -> str:
    """Of a run's losses, behind the number: a classifier of texts has one label a row, or learns numbers."""
    return "" if state.task == "sequence_classification" else " nats a token"


def last_scores(state: RunState) -> EvalDone | None:
    """The evaluation whose loss a run ended with; None where it measured nothing else."""
    loss = state.finished.eval_loss if state.finished else None
    found = next((done for done in reversed(state.evals) if done.loss == loss), None)
    return found if found and found.scores else None


def held_out_loss(state: RunState) -> float | None:
    """The final one, else the last so far, in nats; None before the first evaluation."""
    if state.finished and state.finished.eval_loss is not None:
        return state.finished.eval_loss
    return state.evals[-1].loss if state.evals else None


def newest_scores(state: RunState) -> dict[str, float]:
    """The scores of the run's model, else of the last evaluation so far."""
    measured = last_scores(state) or (state.evals[-1] if state.evals else None)
    return dict(measured.scores) if measured else {}


def best_evaluation(state: RunState) -> EvalDone | None:
    """The newest one that was the best by `evaluation.metric_for_best_model` when it was made."""
    return next((done for done in reversed(state.evals) if done.best), None)


def lowest_evaluation(state: RunState) -> EvalDone | None:
    finite = (done for done in state.evals if math.isfinite(done.loss))
    return min(finite, key=lambda done: done.loss, default=None)


def best_before(state: RunState) -> EvalDone | None:
    """The best evaluation of a run that was clearly better then than at its end; else None."""
    finished, best = state.finished, lowest_evaluation(state)
    if finished is None or finished.reason != "done" or finished.eval_loss is None or best is None:
        return None
    return None if finished.eval_loss <= best.loss * _CLEARLY_WORSE else best


def score_lines(state: RunState) -> list[str]:
    done = last_scores(state)
    if done is None:
        return []
    lines = []
    for score in score_words(done.scores, state.baselines.scores if state.baselines else {}):
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
