"""Intervals in steps, the remaining time of a run, and its speed and time in comparison with the plan."""

from statistics import fmean
from typing import Final

from tui_trainer.runs.result import in_use_words, others_words, throughput_words
from tui_trainer.runs.state import WARM_UP_STEPS, RunState, measured_figures
from tui_trainer.units import figure_text, figures_of, format_seconds


def interval_steps(setting: float, total_steps: int) -> int:
    """Return the interval in steps that a setting such as `eval_steps` means; a setting below 1 is a share of all."""
    if 0 < setting < 1:
        return max(1, round(setting * total_steps))
    return int(setting)


def is_due(step: int, every_steps: int) -> bool:
    """Return whether an action with this interval is due after `step`. An interval of 0 means never."""
    return every_steps > 0 and step % every_steps == 0


def count_due(total_steps: int, every_steps: int, *, after: int = 0) -> int:
    """Return how often an action with this interval happens after the step `after`. It always happens at the end."""
    if after >= total_steps:
        return 0
    if every_steps <= 0:
        return 1
    return total_steps // every_steps - after // every_steps + (total_steps % every_steps != 0)


# The time that a run still takes: the remaining steps, and the work between them.

# Time of a row in an evaluation as a share of its time in a step, until it was measured. The forward pass is a third of
# a step, because the backward pass has two matmuls for each matmul of the forward pass.
EVALUATION_SHARE: Final = 1 / 3
# The assumed rate of a checkpoint before one was measured: weights and two moments are copied, hashed and synced.
_SAVE_BYTES_PER_SECOND: Final = 300e6
_CHECKPOINT_BYTES_PER_PARAMETER: Final = 12
# Measured for 160 tokens from a model of four to eight layers: 0.3 to 1 s, and the first text of a process is slowest.
_SAMPLE_SECONDS: Final = 0.5


def eta_seconds(state: RunState) -> float | None:
    """Return the seconds to the end of the run: the remaining steps at the recent speed, and the work between them.

    Evaluations, checkpoints and samples count with their mean time so far. Before the first, an estimate from the plan
    is used. Returns None for a run that has ended, if the number of steps is unknown, and during the first two steps of
    this start, which are slower.
    """
    if state.has_ended or state.total_steps <= 0 or state.steps_since_start <= WARM_UP_STEPS:
        return None
    steps_left = max(state.total_steps - state.step, 0)
    mean_seconds = sum(step.step_seconds for step in state.recent_sums) / len(state.recent_sums)
    return steps_left * mean_seconds + _between_seconds_left(state)


# A planned time should be right within 15 %. A larger difference is reported with its reason.
_CORRECTED_FROM: Final = 1.15
_LEAST_MEASURED_STEPS: Final = 20


def whole_seconds(state: RunState) -> float | None:
    """Return the estimated seconds of the whole run, past and remaining; None as long as `eta_seconds` is."""
    remaining_seconds = 0.0 if state.finished else eta_seconds(state)
    if remaining_seconds is None:
        return None
    between_seconds = sum(event.seconds for event in state.evals if event.step > 0)
    between_seconds += sum(event.seconds for event in state.checkpoints if event.step > 0)
    return sum(state.step_seconds) + between_seconds + sum(event.seconds for event in state.samples) + remaining_seconds


def time_words(state: RunState) -> str:
    """Return a run's time, its planned time and the reason for a large difference; empty before there is a plan."""
    plan, total_seconds = state.plan, whole_seconds(state)
    if plan is None:
        return ""
    if total_seconds is None:
        text = f"about {format_seconds(plan.duration_seconds)} planned"
        return "; ".join(filter(None, (f"{text}: {plan.step_seconds_reason}".rstrip(": "), plan.busy_words)))
    is_over = state.finished is not None
    text = format_seconds(total_seconds)
    text = text if is_over else f"about {text} estimated from the steps so far"
    if plan.duration_seconds is not None and not (is_over and state.step < state.total_steps):
        text += f", {format_seconds(plan.duration_seconds)} planned"
        if plan.beginning_seconds:
            text += f", including {format_seconds(plan.beginning_seconds)} before the first step"
    return "; ".join(filter(None, (text, step_words(state), others_words(state))))


def step_words(state: RunState) -> str:
    """Return the mean time of a step: `125 ms/step, planned 195 ms: numpy matmuls reach ...`; empty if unknown."""
    plan, sums, durations = state.plan, state.times.sums_since_start, state.step_seconds
    # The first two steps count only if there are no others.
    total_seconds, step_count = (sums.step_seconds, sums.steps) if sums.steps else (sum(durations), len(durations))
    if plan is None or plan.step_seconds is None or not step_count:
        return ""
    reason = f": {plan.step_seconds_reason}" if plan.step_seconds_reason else ""
    return f"{format_seconds(total_seconds / step_count)}/step, planned {format_seconds(plan.step_seconds)}{reason}"


def speed_rows(state: RunState) -> list[tuple[str, str]]:
    """Return labels and texts for the speed, the time and the resource use of a run, each compared with the plan."""
    rows = [("throughput", throughput_words(state)), ("time", time_words(state)), ("in use", in_use_words(state))]
    return [(label, text) for label, text in (*rows, *figure_rows(state)) if text and state.steps]


def figure_rows(state: RunState) -> list[tuple[str, str]]:
    """Return the title and the text of each measured figure. The text has the planned value: `5.1%, 12.0% planned`."""
    planned_figures, rows = state.plan.figures if state.plan else {}, list[tuple[str, str]]()
    for name, value in measured_figures(state).items():
        figure = figures_of(RunState)[name]
        planned_text = f", {figure_text(figure, planned_figures[name])} planned" if name in planned_figures else ""
        rows.append((figure.title, f"{figure_text(figure, value)}{planned_text}"))
    return rows


def is_off_plan(state: RunState, reported_seconds: float | None) -> bool:
    """Return whether the estimated time of the whole run differs clearly from the planned or last reported one."""
    total_seconds = whole_seconds(state) if state.times.sums_since_start.steps >= _LEAST_MEASURED_STEPS else None
    if total_seconds is None or not reported_seconds:
        return False
    return not 1 / _CORRECTED_FROM <= total_seconds / reported_seconds <= _CORRECTED_FROM


def _between_seconds_left(state: RunState) -> float:
    """Return the seconds of the remaining evaluations, checkpoints and text samples."""
    plan, rows_per_second = state.plan, state.samples_per_second
    # Evaluations and checkpoints at step 0 happen only once.
    eval_costs = [(event.step, event.seconds) for event in state.evals if event.scheduled and event.step > 0]
    save_costs = [(event.step, event.seconds) for event in state.checkpoints if event.step > 0]
    if plan is None:
        return _seconds_left(state, eval_costs) + _seconds_left(state, save_costs)
    eval_seconds = (plan.eval_rows or 0) * EVALUATION_SHARE / rows_per_second if rows_per_second else 0.0
    save_seconds = _CHECKPOINT_BYTES_PER_PARAMETER * plan.parameters / _SAVE_BYTES_PER_SECOND
    seconds = _seconds_left(state, eval_costs, None if plan.eval_rows is None else plan.eval_every_steps, eval_seconds)
    seconds += _seconds_left(state, save_costs, plan.save_every_steps, save_seconds)
    if plan.sample_every_steps:
        sample_seconds = [event.seconds for event in state.samples if event.seconds > 0]
        sample_count = state.total_steps // plan.sample_every_steps - state.step // plan.sample_every_steps
        seconds += sample_count * (fmean(sample_seconds) if sample_seconds else _SAMPLE_SECONDS)
    return seconds


def _seconds_left(
    state: RunState, costs: list[tuple[int, float]], every_steps: int | None = None, guessed_seconds: float = 0.0
) -> float:
    """Return the seconds that a repeated action, such as evaluation, will still take.

    `costs` has the step and the seconds of each action so far, and `guessed_seconds` is used if there is none yet.
    Without an interval, as in older journals, the remaining steps take as much per step as the steps so far.
    """
    if every_steps is None:
        seconds_per_step = sum(seconds for _, seconds in costs) / costs[-1][0] if costs else 0.0
        return max(state.total_steps - state.step, 0) * seconds_per_step
    mean_seconds = fmean(seconds for _, seconds in costs) if costs else guessed_seconds
    return count_due(state.total_steps, every_steps, after=state.step) * mean_seconds
