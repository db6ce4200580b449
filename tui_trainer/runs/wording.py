"""Texts about plans and runs that screens, lines, reports and advice share. `units.py` formats single numbers."""

from typing import Any

from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import format_bytes, format_count, format_seconds, quantity

# A learning rate that is higher by a larger factor than this asks before the start.
_MOST_RATE_RATIO = 10.0


def split_words(rows: int, passes: int, processes: int = 1, *, width_tokens: int = 0) -> str:
    """Return how a batch is split as text: `4 rows x 8`, `1 row of 512 tokens x 8 x 2 processes`."""
    width_text = f" of {quantity(width_tokens, 'token')}" if width_tokens else ""
    processes_text = f" x {processes} processes" if processes > 1 else ""
    return f"{quantity(rows, 'row')}{width_text} x {passes}{processes_text}"


def _figure(plan: object, name: str) -> Any:
    """Return the value of a figure of a `Plan` or of a `PlanMade`, without the reason that a `Plan` has for it."""
    value = getattr(plan, name)
    return getattr(value, "value", value)


def batch_words(plan: object) -> str:
    """Return the effective batch as text, and how it is split, if it is: `64 rows (4 rows x 8 x 2 processes)`."""
    figure_names = ("per_device_train_batch_size", "gradient_accumulation_steps", "processes")
    effective_rows, split_values = _figure(plan, "effective_batch_size"), [_figure(plan, name) for name in figure_names]
    rows_text = quantity(effective_rows, "row")
    return f"{rows_text} ({split_words(*split_values)})" if max(split_values[1:]) > 1 else rows_text


def high_rate_words(plan: object) -> str:
    """Return a warning about a learning rate of a plan that is far above the usual one; empty for other rates."""
    rate, usual_rate = _figure(plan, "learning_rate"), _figure(plan, "usual_learning_rate")
    if not usual_rate or rate <= _MOST_RATE_RATIO * usual_rate:
        return ""
    return f"{rate:g} is {rate / usual_rate:,.0f} times the usual {usual_rate:g} for this model, method and loss"


def trained_words(plan: object) -> str:
    """Return how much of a plan is trainable: `6.7 k of 818 k parameters (0.82 %)` or `all 818 k parameters`."""
    trained_parameters, all_parameters = _figure(plan, "trained_parameters") or 0, _figure(plan, "parameters")
    if trained_parameters >= all_parameters:
        return f"all {format_count(all_parameters)} parameters"
    percent = 100 * trained_parameters / all_parameters
    share_text = f" ({percent:.0f} %)" if percent >= 10 else f" ({percent:.2g} %)" if trained_parameters else ""
    return f"{format_count(trained_parameters)} of {format_count(all_parameters)} parameters{share_text}"


def rows_words(rows: int, tokens: int) -> str:
    """Return the size of data as text: `1,870 rows, 1.2 M tokens`."""
    return f"{quantity(rows, 'row')}, {format_count(tokens)} tokens"


def held_out_words(rows: int) -> str:
    return f"{quantity(rows, 'row')} held out" if rows else "no rows held out"


_INCOMPLETE = "\ufffd"
UNDER_A_MINUTE = "under a minute"


def planned_time(seconds: float | None, *, is_measured: bool) -> str:
    """Return the planned time of a run: `2 min 05 s`, or `--` if it is not known.

    A time under a minute is `12 s after loading`, because loading takes much of a short run. It is `UNDER_A_MINUTE` if
    the steps were not measured, or if they take only a few seconds, because saving adds as much.
    """
    if seconds is None or seconds >= 60:
        return format_seconds(seconds)
    return f"{format_seconds(seconds)} after loading" if is_measured and seconds >= 10 else UNDER_A_MINUTE


def planned_time_words(seconds: float | None, *, is_measured: bool) -> str:
    """Return the planned time for use in a sentence: `about 2 min 05 s`, `time unknown`."""
    time_text = planned_time(seconds, is_measured=is_measured)
    return "time unknown" if seconds is None else time_text if time_text == UNDER_A_MINUTE else f"about {time_text}"


def plan_time(plan: object) -> str:
    """Return the planned time of a `Plan` or a `PlanMade` as text: `2 min 05 s`, or `--` if it is not known."""
    return planned_time(_figure(plan, "duration_seconds"), is_measured=_figure(plan, "has_measured_steps"))


def plan_time_words(plan: object) -> str:
    """Return the planned time of a `Plan` or a `PlanMade` for a sentence: `about 2 min 05 s`, `time unknown`."""
    return planned_time_words(_figure(plan, "duration_seconds"), is_measured=_figure(plan, "has_measured_steps"))


def takes_words(plan: object) -> str:
    """Return the steps, memory and time of a plan: `1,200 steps of 64 rows, 1.2 GiB of memory, about 2 min`."""
    step_count, memory_bytes = _figure(plan, "total_steps"), _figure(plan, "memory_bytes")
    steps_text = f"{quantity(step_count, 'step')} of {batch_words(plan)}"
    return f"{steps_text}, {format_bytes(memory_bytes)} of memory, {plan_time_words(plan)}"


def interrupted_words(state: RunState, key: str = "") -> str:
    """Return how an interrupted run ended, as text. With a `key`, add what it does: `; p resumes from step 100`."""
    moment_text = f"at step {state.step:,}" if state.step else "before the first step"
    message = f"the process stopped {moment_text} without an error"
    if not key:
        return message
    if not state.checkpoints:
        return f"{message}; {key} starts over, because no checkpoint was saved"
    return f"{message}; {key} resumes from step {state.checkpoints[-1].step:,}"


def sample_words(prompt: str, text: str, characters: int) -> str:
    """Return a sample on one line: `... end of the prompt -> text that the model wrote`.

    The answers of some tasks, such as a predicted class, begin with an arrow already. An incomplete last character of
    the text, which the tokenizer decodes as U+FFFD, is removed.
    """
    if len(prompt) > characters:
        prompt_end = prompt[-characters:]
        prompt = f"... {prompt_end.partition(' ')[2].lstrip() or prompt_end}"
    return f"{prompt.rstrip()} -> {text.removeprefix(' -> ').rstrip(_INCOMPLETE)}"


def come_back_words(name: str) -> str:
    """Return a text with the commands that show and stop a run which trains in another process."""
    run_word = shell_word(name)
    return f"`tui-trainer attach {run_word}` shows the run, `tui-trainer stop {run_word}` saves and stops it"


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
