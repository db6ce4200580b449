"""Rules about training on preferences: pairs of a chosen and a rejected answer, or marked answers."""

import math

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Verdict, fault, not_applicable, passed, rule, symptom, warned
from tui_trainer.advice.run_view import RunView
from tui_trainer.data.preparing.prepare import CLASS_ROWS_KEY
from tui_trainer.methods.preference_losses import ACCURACY, LOG_PROBABILITIES, MARGIN
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import EvalDone
from tui_trainer.tasks import find_task
from tui_trainer.tasks.kto import DESIRABLE, UNDESIRABLE, KtoTask
from tui_trainer.tasks.preference import PreferenceTask
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_number, format_percent

_LOSS_TYPE = "task.loss_type"
_DESIRABLE_WEIGHT, _UNDESIRABLE_WEIGHT = "task.desirable_weight", "task.undesirable_weight"
# Accuracies of a hundred pairs that differ by less may be chance.
_CLEAR_SHARE = 0.1
# Losses with a reference begin with a margin of 0, because the model equals its reference.
_LEAST_MARGIN = 0.02
_LEAST_FALL = 0.1
_CERTAIN = 0.99
# Desirable answers, times their weight, should count 1 to 1.33 times as much as undesirable ones: arXiv:2402.01306,
# equation 8.
_MOST_DESIRABLE = 1.33


def _trains_on_preferences(plan: Plan) -> bool:
    return MARGIN in find_task(plan.config.task.type).metrics


def _evaluations(view: RunView) -> list[EvalDone]:
    """Return the evaluations with preferences, in order; [] for a run of another task."""
    return [done for done in view.state.evals if MARGIN in done.scores]


@symptom("Preferences not learned", can_occur=_trains_on_preferences)
def preferences_unlearned(view: RunView) -> Cause | None:
    """A reward margin of 0 and an accuracy of one half are those of the model before training."""
    evaluations = _evaluations(view)
    if not evaluations or evaluations[-1].step < view.state.total_steps / 2:
        return None
    last = evaluations[-1]
    if abs(last.scores[MARGIN]) >= _LEAST_MARGIN or last.scores[ACCURACY] > 0.5 + _CLEAR_SHARE:
        return None
    return fault(
        cause="The model has learned no preference.",
        evidence=f"step {last.step:,}: reward margin {last.scores[MARGIN]:.4f}, accuracy "
        f"{format_percent(last.scores[ACCURACY])}",
        advice="raise training.learning_rate, or check whether the chosen answers really differ from the rejected ones",
    )


@symptom("Both answers fall", can_occur=_trains_on_preferences)
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
        advice="read the samples on Train; then lower training.learning_rate, or raise task.beta",
    )


@symptom("Preferences overfitted", can_occur=_trains_on_preferences)
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


@symptom("Pairs too easy", can_occur=_trains_on_preferences)
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
    config, task = context.config, find_task(context.config.task.type)
    if task.scores_answers:
        centering = config.task.center_rewards_coefficient
        kept_words = f"kept near 0 with the weight {centering:g}" if centering else "not kept near 0"
        return passed(f"reward model: the chosen answer should get the higher score; scores are {kept_words}")
    if not isinstance(task, PreferenceTask):
        return not_applicable("the task does not train on preferences")
    loss_type = task.loss_type(config)
    model = one_line(config.task.reference) or "the model before training"
    reference = f"{model}, computed once" if loss_type.has_reference else "none"
    return passed(f"{loss_type.label} with beta {task.beta(config):g}; reference: {reference}")


@rule(
    "Balance of marked answers", 488, _DESIRABLE_WEIGHT, _UNDESIRABLE_WEIGHT,
    needs_plan=False, needed_count="the number of desirable answers",
)  # fmt: skip
def marked_answer_balance(context: Context) -> Verdict:
    """The model learns little from the rarer mark, unless a weight balances both."""
    task, details = context.config.task, context.counted_facts.details if context.counted_facts else {}
    rows = details.get(CLASS_ROWS_KEY, {})
    if not isinstance(find_task(task.type), KtoTask) or len(rows) < 2:
        return not_applicable("the task does not train on marked answers")
    desirable, undesirable = rows[DESIRABLE] * task.desirable_weight, rows[UNDESIRABLE] * task.undesirable_weight
    ratio = desirable / undesirable
    sentence = f"{rows[DESIRABLE]:,} desirable and {rows[UNDESIRABLE]:,} undesirable answers; with their weights, "
    sentence += f"{ratio:.2f} to 1"
    if 1 <= round(ratio, 2) <= _MOST_DESIRABLE:
        return passed(sentence)
    # Rounded so that desirable answers do not count less.
    raised_desirable = math.ceil(undesirable / rows[DESIRABLE] * 100) / 100
    raised_undesirable = math.floor(desirable / rows[UNDESIRABLE] * 100) / 100
    fix = {_DESIRABLE_WEIGHT: raised_desirable} if ratio < 1 else {_UNDESIRABLE_WEIGHT: raised_undesirable}
    return warned(f"{sentence}; KTO's authors recommend 1 to {_MOST_DESIRABLE}", fix=fix)
