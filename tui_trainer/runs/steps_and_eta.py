"""Steps: how many there are, and on which of them something happens."""

from statistics import fmean
from typing import Final

from tui_trainer.runs.result import in_use_words, others_words, throughput_words
from tui_trainer.runs.state import WARM_UP_STEPS, RunState, measured_figures
from tui_trainer.units import figure_text, figures_of, format_seconds


def every(steps_or_share: float, total_steps: int) -> int:
    """A setting such as `eval_steps` as a number of steps: below 1 a share of all steps, 0 stays 0 (never)."""
    if 0 < steps_or_share < 1:
        return max(1, round(steps_or_share * total_steps))
    return int(steps_or_share)


def due(step: int, every_steps: int) -> bool:
    """Whether something that happens every so many steps happens after this one; 0 is never."""
    return every_steps > 0 and step % every_steps == 0


def times(total_steps: int, every_steps: int, *, after: int = 0) -> int:
    """How often `due` is true after that step, the end counted in."""
    if after >= total_steps:
        return 0
    if every_steps <= 0:
        return 1
    return total_steps // every_steps - after // every_steps + (total_steps % every_steps != 0)


# How long a run still takes: the steps left, and what happens between them.

# Until one was measured: forward alone is one of three equal parts of a step (the backward pass has two products for
# each), and this many bytes of weights and two moments (12 a parameter) are copied, hashed and synced in a second.
EVALUATION_SHARE: Final = 1 / 3
_SAVE_BYTES_PER_SECOND: Final = 300e6
_CHECKPOINT_BYTES_PER_PARAMETER: Final = 12
# A text of 160 tokens from a model of four to eight layers: 0.3 to 1 s, the first one of a process the longest.
_SAMPLE_SECONDS: Final = 0.5


def eta_seconds(state: RunState) -> float | None:
    """Seconds to the end: the steps left at a recent step's mean time, and what happens between them.

    What comes between costs what it did so far in the mean; before that, what the plan's numbers suggest. None when
    the run has ended or has no number of steps, and until three steps of this start are known: two warm up.
    """
    if state.has_ended or state.total_steps <= 0 or state.steps_since_start <= WARM_UP_STEPS:
        return None
    steps_left = max(state.total_steps - state.step, 0)
    mean_seconds = sum(done.step_seconds for done in state.recent) / len(state.recent)
    return steps_left * mean_seconds + _between_seconds_left(state)


# A plan is meant to hold within 15 %: what differs by more is corrected, with the reason.
_CORRECTED_FROM: Final = 1.15
_LEAST_MEASURED_STEPS: Final = 20


def whole_seconds(state: RunState) -> float | None:
    """Seconds of the whole run by its own steps: what is over, and what is left. None until that is known."""
    left = 0.0 if state.finished else eta_seconds(state)
    if left is None:
        return None
    between = sum(done.seconds for done in state.evals if done.step > 0)
    between += sum(done.seconds for done in state.checkpoints if done.step > 0)
    return sum(state.step_seconds) + between + sum(done.seconds for done in state.samples) + left


def time_words(state: RunState) -> str:
    """What the run takes by its own steps, what was planned and where that came from, and who else used the machine.
    Empty before a plan."""
    plan, whole = state.plan, whole_seconds(state)
    if plan is None:
        return ""
    if whole is None:
        words = f"about {format_seconds(plan.duration_seconds)} planned"
        return "; ".join(filter(None, (f"{words}: {plan.step_seconds_reason}".rstrip(": "), plan.busy_words)))
    is_over = state.finished is not None
    words = format_seconds(whole) if is_over else f"about {format_seconds(whole)} estimated from the steps so far"
    if plan.duration_seconds is not None and not (is_over and state.step < state.total_steps):
        words += f", {format_seconds(plan.duration_seconds)} planned"
        if plan.beginning_seconds:
            words += f", including {format_seconds(plan.beginning_seconds)} before the first step"
    return "; ".join(filter(None, (words, step_words(state), others_words(state))))


def step_words(state: RunState) -> str:
    """`125 ms/step, planned 195 ms: numpy matmuls reach ...`; empty if that is unknown."""
    plan, whole, steps = state.plan, state.times.whole, state.step_seconds
    # Without the first two steps, if there are others.
    seconds, count = (whole.step_seconds, whole.steps) if whole.steps else (sum(steps), len(steps))
    if plan is None or plan.step_seconds is None or not count:
        return ""
    reason = f": {plan.step_seconds_reason}" if plan.step_seconds_reason else ""
    return f"{format_seconds(seconds / count)}/step, planned {format_seconds(plan.step_seconds)}{reason}"


def speed_rows(state: RunState) -> list[tuple[str, str]]:
    """How fast a run was, how long it took and what it had in use, each beside what was expected; with their labels."""
    rows = [("throughput", throughput_words(state)), ("time", time_words(state)), ("in use", in_use_words(state))]
    return [(label, words) for label, words in (*rows, *figure_rows(state)) if words and state.steps]


def figure_rows(state: RunState) -> list[tuple[str, str]]:
    """Return title and words of each measured figure, beside its planned value: `5.1%, 12.0% planned`."""
    planned, rows = state.plan.figures if state.plan else {}, list[tuple[str, str]]()
    for name, value in measured_figures(state).items():
        figure = figures_of(RunState)[name]
        expected = f", {figure_text(figure, planned[name])} planned" if name in planned else ""
        rows.append((figure.title, f"{figure_text(figure, value)}{expected}"))
    return rows


def is_off_plan(state: RunState, told_seconds: float | None) -> bool:
    """Whether the whole run takes clearly more or less, by its own steps, than was told last."""
    whole = whole_seconds(state) if state.times.whole.steps >= _LEAST_MEASURED_STEPS else None
    if whole is None or not told_seconds:
        return False
    return not 1 / _CORRECTED_FROM <= whole / told_seconds <= _CORRECTED_FROM


def _between_seconds_left(state: RunState) -> float:
    """Of evaluations, checkpoints and text samples."""
    plan, rate = state.plan, state.samples_per_second
    # What was done at step 0 does not come again.
    evals = [(done.step, done.seconds) for done in state.evals if done.scheduled and done.step > 0]
    saves = [(done.step, done.seconds) for done in state.checkpoints if done.step > 0]
    if plan is None:
        return _seconds_left(state, evals) + _seconds_left(state, saves)
    eval_guess = (plan.eval_rows or 0) * EVALUATION_SHARE / rate if rate else 0.0
    save_guess = _CHECKPOINT_BYTES_PER_PARAMETER * plan.parameters / _SAVE_BYTES_PER_SECOND
    seconds = _seconds_left(state, evals, None if plan.eval_rows is None else plan.eval_every_steps, eval_guess)
    seconds += _seconds_left(state, saves, plan.save_every_steps, save_guess)
    if plan.sample_every_steps:
        costs = [done.seconds for done in state.samples if done.seconds > 0]
        texts = state.total_steps // plan.sample_every_steps - state.step // plan.sample_every_steps
        seconds += texts * (fmean(costs) if costs else _SAMPLE_SECONDS)
    return seconds


def _seconds_left(
    state: RunState, costs: list[tuple[int, float]], every_steps: int | None = None, guess: float = 0.0
) -> float:
    """Return the seconds that are left of something that took so many after which step.

    In journals that do not record how often it happens, a step has its share of it.
    """
    if every_steps is None:
        per_step = sum(seconds for _, seconds in costs) / costs[-1][0] if costs else 0.0
        return max(state.total_steps - state.step, 0) * per_step
    mean_seconds = fmean(seconds for _, seconds in costs) if costs else guess
    return times(state.total_steps, every_steps, after=state.step) * mean_seconds
