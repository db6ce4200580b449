"""Rules about training on pairs of a chosen and a rejected answer."""

import math

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Verdict, fault, not_applicable, passed, rule, symptom
from tui_trainer.advice.run_view import RunView
from tui_trainer.methods.preference_losses import ACCURACY, LOG_PROBABILITIES, MARGIN
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import EvalDone
from tui_trainer.tasks import find_task
from tui_trainer.tasks.preference import beta_of, loss_type_of
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_number, format_percent

_LOSS_TYPE = "task.loss_type"
# Accuracies of a hundred pairs that differ by less may be chance.
_CLEAR_SHARE = 0.1
# DPO begins with this loss, because the model equals its reference.
_FIRST_LOSS = math.log(2)
_LEAST_DROP = 0.01
_LEAST_FALL = 0.1
_CERTAIN = 0.99


def _trains_on_pairs(plan: Plan) -> bool:
    return MARGIN in find_task(plan.config.task.type).metrics


def _evaluations(view: RunView) -> list[EvalDone]:
    """Return the evaluations of pairs, in order; [] for a run of another task."""
    return [done for done in view.state.evals if MARGIN in done.scores]


@symptom("Preferences not learned", can_occur=_trains_on_pairs)
def preferences_unlearned(view: RunView) -> Cause | None:
    """A loss that stays at ln 2, and an accuracy of one half, are those of the model before training."""
    evaluations = _evaluations(view)
    if not evaluations or evaluations[-1].step < view.state.total_steps / 2:
        return None
    last = evaluations[-1]
    is_first_loss = abs(last.loss - _FIRST_LOSS) < _LEAST_DROP
    if not is_first_loss or last.scores[ACCURACY] > 0.5 + _CLEAR_SHARE:
        return None
    return fault(
        cause="The model has learned no preference.",
        evidence=f"step {last.step:,}: held-out loss {last.loss:.4f}, at the start {_FIRST_LOSS:.4f}; accuracy "
        f"{format_percent(last.scores[ACCURACY])}",
        advice="raise training.learning_rate, or check whether the chosen answers really differ from the rejected ones",
    )


@symptom("Both answers fall", can_occur=_trains_on_pairs)
def both_answers_fall(view: RunView) -> Cause | None:
    """The margin grows as well if the rejected answers only become unlikely faster than the chosen ones."""
    evaluations = _evaluations(view)
    if len(evaluations) < 2 or LOG_PROBABILITIES[0] not in evaluations[-1].scores:
        return None
    first, last = evaluations[0].scores, evaluations[-1].scores
    chosen_fall, rejected_fall = (first[name] - last[name] for name in LOG_PROBABILITIES)
    before, now = (scores[LOG_PROBABILITIES[0]] for scores in (first, last))
    if chosen_fall < _LEAST_FALL * abs(before) or rejected_fall < chosen_fall:
        return None
    return fault(
        cause="Both answers become less likely, also the chosen one.",
        evidence=f"log-probability of the chosen answers: {format_number(before)} at step {evaluations[0].step:,}, "
        f"{format_number(now)} at step {evaluations[-1].step:,}",
        advice="read the samples on Train; then lower training.learning_rate, or set task.sft_weight",
    )


@symptom("Preferences overfitted", can_occur=_trains_on_pairs)
def preferences_overfitted(view: RunView) -> Cause | None:
    """The margin of known pairs can grow without limit, while held-out pairs are ranked worse."""
    evaluations = _evaluations(view)
    if not evaluations:
        return None
    best, last = max(evaluations, key=lambda done: done.scores[ACCURACY]), evaluations[-1]
    lost = best.scores[ACCURACY] - last.scores[ACCURACY]
    if lost < _CLEAR_SHARE or last.scores[MARGIN] <= best.scores[MARGIN]:
        return None
    return fault(
        cause="The margin grows, but more held-out pairs are ranked wrongly.",
        evidence=f"accuracy {format_percent(best.scores[ACCURACY])} at step {best.step:,}, "
        f"{format_percent(last.scores[ACCURACY])} at step {last.step:,}",
        advice="train fewer epochs, or stop early: evaluation.metric_for_best_model = accuracy",
    )


@symptom("Pairs too easy", can_occur=_trains_on_pairs)
def preferences_too_easy(view: RunView) -> Cause | None:
    """A model that is right at once uses a difference that has nothing to do with quality, such as length."""
    evaluations = _evaluations(view)
    if not evaluations or evaluations[0].scores[ACCURACY] < _CERTAIN:
        return None
    first = evaluations[0]
    if not 0 < first.step <= max(view.state.total_steps / 10, 1):
        return None
    return fault(
        cause="Nearly all held-out pairs are ranked correctly after a tenth of the run.",
        evidence=f"accuracy {format_percent(first.scores[ACCURACY])} at step {first.step:,}",
        advice="look for a difference between all chosen and all rejected answers, such as their length or beginning",
    )


@rule(
    "Preferences", 487, _LOSS_TYPE, needs_plan=False,
    symptoms=(preferences_unlearned, both_answers_fall, preferences_overfitted, preferences_too_easy),
)  # fmt: skip
def preferences(context: Context) -> Verdict:
    """Losses on pairs of answers differ in what they compare: the model with itself before training, or only the two
    answers."""
    config = context.config
    task = find_task(config.task.type)
    if MARGIN not in task.metrics:
        return not_applicable("the task does not train on pairs of answers")
    if task.scores_answers:
        centering = config.task.center_rewards_coefficient
        kept_words = f"kept near 0 with the weight {centering:g}" if centering else "not kept near 0"
        return passed(f"reward model: the chosen answer should get the higher score; scores are {kept_words}")
    loss_type = loss_type_of(config)
    model = one_line(config.task.reference) or "the model before training"
    reference = f"{model}, computed once" if loss_type.has_reference else "none"
    return passed(f"{loss_type.label} with beta {beta_of(config):g}; reference: {reference}")
