"""Plans, events, results and tables of runs as plain lines of text. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len

from tui_trainer.runs import events, result, wording
from tui_trainer.runs.labels import tag_words
from tui_trainer.runs.result import display_name, format_score
from tui_trainer.runs.state import GaugeSummary, RunState
from tui_trainer.runs.steps_and_eta import eta_seconds, speed_rows
from tui_trainer.tasks import holds_conversations, labels_rows, loss_unit, scores_answers
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import (
    figure_text,
    format_bytes,
    format_bytes_of,
    format_count,
    format_rate,
    format_seconds,
    quantity,
)

if TYPE_CHECKING:
    from tui_trainer.config.toml_files import Profile
    from tui_trainer.launching.estimate_other_gpus import CardPlan
    from tui_trainer.planning.plan import Plan
    from tui_trainer.runs.overview import RunOverview, RunResult

_PROMPT_CHARACTERS, _SAMPLE_CHARACTERS = 40, 200
_PHASES = {"loading": "loading torch and transformers, building the model", "saving": "writing the final model"}


def event_line(event: events.Event, state: RunState) -> str | None:
    """Return the line to print for an event; None for an event that is not printed."""
    match event:
        case events.RunStarted(resumed_from_step=int(step)):
            verb = f"resumes from step {step}" if step else "starts over because it had no checkpoint"
            return f"run {event.name} {verb}"
        case events.DataPrepared():
            return _data_line(event)
        case events.PlanMade():
            return _plan_made_line(event)
        case events.BaselinesMeasured():
            return _baselines_line(event)
        case events.PhaseChanged(phase="paused"):
            return f"step {event.step}: paused; resume with: tui-trainer ask {shell_word(state.name)} resume"
        case events.PhaseChanged(phase="training") if state.resumed_from_step and not state.steps_since_start:
            return f"resumed from step {state.resumed_from_step}"
        case events.PhaseChanged(phase=phase):
            return _PHASES.get(phase)
        case events.StepDone():
            return step_line(event, state)
        case events.EvalDone():
            weights = result.kept_weights(state)
            note_text = weights.patience_words
            if event.best:
                note_text = "best of the scheduled evaluations" if weights.requested_was_better else "best so far"
            elif not event.scheduled:
                scope = "; the best weights are chosen from scheduled evaluations only"
                note_text = "requested" + scope * weights.requested_was_better
            recent_loss, targets_text = state.loss_smoothed, result.targets_summary(state)
            parts = [
                f"step {event.step}: held-out loss {event.loss:.4f}" + (f" ({note_text})" if note_text else ""),
                result.scores_line(event.scores, state.baselines.scores if state.baselines else {}),
                "" if recent_loss is None else f"recent training loss {recent_loss:.4f}",
                format_seconds(event.seconds),
                targets_text and f"targets {targets_text}",
            ]
            return ", ".join(filter(None, parts))
        case events.EpochDone():
            rows_text = format_rate(event.samples_per_second, "rows")
            time_text, planned_seconds = format_seconds(event.seconds), result.planned_epoch_seconds(state.plan)
            time_text += "" if planned_seconds is None else f" ({format_seconds(planned_seconds)} planned)"
            speeds = f"{rows_text}, {format_rate(event.tokens_per_second, 'tokens')}"
            speeds += f": {grade_text}" if (grade_text := result.grade(state, event.samples_per_second)) else ""
            return f"epoch {event.epoch}: mean loss {event.mean_loss:.4f}, {time_text}, {speeds}"
        case events.CheckpointSaved():
            size_text, time_text = format_bytes(event.bytes), format_seconds(event.seconds)
            return f"step {event.step}: saved {event.path} ({size_text}, {time_text})"
        case events.TextSampled():
            verb = "writes" if not labels_rows(state.task) else "reads"
            text = wording.sample_words(event.prompt, event.text, _PROMPT_CHARACTERS)
            return f"step {event.step}: {verb}: {one_line(text, _SAMPLE_CHARACTERS)}"
        case events.ControlApplied(action="resume" | "stop"):  # other actions are reported by their own events
            return f"step {event.step}: {event.action} (requested)"
        case events.RunProblem():
            return f"step {event.step}: " + "; ".join(one_line(text) for text in (event.message, event.hint) if text)
    return None


def _baselines_line(event: events.BaselinesMeasured) -> str | None:
    losses_text = ", ".join(f"{name} {loss:.4f}" for name, loss in event.losses.items())
    counts_text = f"nats/{event.unit} (n-gram models that count {event.unit} sequences)"
    parts = [f"held-out loss {losses_text} {counts_text}"] if losses_text else []
    parts += [one_line(result.baselines_line(event.scores))] if event.scores else []
    return f"to beat: {'; '.join(parts)}" if parts else None


def _plan_made_line(event: events.PlanMade) -> str:
    rate_warning = wording.high_rate_words(event)
    return (
        f"plan: {wording.takes_words(event)}; {quantity(event.steps_per_epoch, 'step')} per epoch, "
        f"{format_count(event.parameters)} parameters, {format_bytes(event.disk_bytes)} of disk"
        + (f"\nlearning rate: {rate_warning}" if rate_warning else "")
        + (f"\nattention: {one_line(event.attention)}" if event.attention else "")
        + (f"\nstarts: {one_line(event.command, 300)}" if event.command else "")
    )


def _data_line(event: events.DataPrepared) -> str:
    source_text = "read from the cache" if event.from_cache else f"prepared in {format_seconds(event.seconds)}"
    documents_text = f" ({quantity(event.eval_documents, 'document')})" if event.eval_rows else ""
    held_out_text = wording.held_out_words(event.eval_rows) + documents_text
    line = (
        f"data: {wording.rows_words(event.rows, event.tokens)} to train on ({quantity(event.documents, 'document')}), "
        f"{held_out_text}, vocabulary {event.vocabulary:,}; {source_text}"
    )
    return "\n".join([line, *(f"data: {one_line(note)}" for note in event.notes)])


def step_line(event: events.StepDone, state: RunState) -> str:
    """Return `step 120/600  loss 1.853  lr 2.9e-03  grad 0.81  41 k tokens/s  ETA 32.0 s`, with scores after the loss.

    The loss is `RunState.loss_smoothed`, and the scores are means over up to 50 steps."""
    loss = state.loss_smoothed if state.loss_smoothed is not None else event.loss
    rate_text = format_rate(state.tokens_per_second or event.tokens_per_second, "tokens")
    seconds_left = eta_seconds(state)
    eta_text = f"  ETA {format_seconds(seconds_left)}" if seconds_left else ""
    named_scores = state.training_scores.items()
    scores = "".join(f"  {one_line(display_name(name), 40)} {format_score(mean)}" for name, mean in named_scores)
    loss_text = f"step {event.step}/{state.total_steps}  loss {loss:.4f}{scores}"
    return f"{loss_text}  lr {event.lr:.1e}  grad {event.grad_norm:.2f}  {rate_text}{eta_text}"


def progress_line(event: events.Progress) -> str:
    """Return the progress of an operation as a line, such as `tokenising 42 % of 1.2 M characters`."""
    operation = one_line(event.what, 60)
    if event.total:
        return f"{operation} {event.done / event.total:4.0%} of {format_count(event.total)} {event.unit}"
    return f"{operation} {format_count(event.done)} {event.unit}"


def gauges_line(step: int, summary: GaugeSummary) -> str | None:
    """Return the summary of recent gauges, such as `step 1200: GPU 93 %, ...`; None if no gauge was reported."""
    words = gauges_words(summary)
    return f"step {step}: {words}" if words else None


def gauges_words(summary: GaugeSummary) -> str:
    """Return the peaks of memory and temperature, and the means of other gauges; empty if no gauge was reported.

    For example `GPU 93 %, 61.3 of 139.8 GiB, 512 W, 71 °C; process 3.2 GiB, CPU 1.4 of 2 cores`."""
    mean, peak = summary.mean, summary.peak

    def text_or_empty(write: Callable[..., str], *values: float | None) -> str:
        return "" if None in values else write(*values)

    gpu_texts = [
        text_or_empty(lambda share: f"{100 * share:.0f} %", mean("utilization_share")),
        text_or_empty(format_bytes_of, peak("memory_used_bytes"), peak("memory_bytes") or None),
        text_or_empty("{:.0f} W".format, mean("power_watts")),
        text_or_empty("{:.0f} \u00b0C".format, peak("temperature_celsius")),
    ]
    process_texts = [
        text_or_empty(
            lambda memory_bytes: f"process {format_bytes(memory_bytes)} with libraries", peak("process_memory_bytes")
        ),
        text_or_empty("CPU {:.1f} of {:g} cores".format, mean("busy_cores"), summary.usable_cores),
    ]
    gpu_text = ", ".join(filter(None, gpu_texts))
    return "; ".join(filter(None, [gpu_text and f"GPU {gpu_text}", ", ".join(filter(None, process_texts))]))


REHEARSAL_SECONDS = 600.0
"""A rehearsal takes a minute, so it is suggested only for runs that are planned to take at least this long."""


def start_lines(name: str, folder: str, plan: Plan) -> list[str]:
    """Return the lines to print when a run starts. The data is not prepared yet, so the plan is estimated."""
    from tui_trainer.planning.summary import place_words, tuning_words

    recipe_text = f"recipe {plan.recipe}, " if plan.recipe else ""
    profiles_text = f"{recipe_text}hardware profile {plan.hardware_profile or 'none'}"
    lines = [one_line(f"run {name} in {folder}"), profiles_text, f"trains {place_words(plan)}; {tuning_words(plan)}"]
    if not plan.train_rows.exact:
        lines.append(f"about {wording.takes_words(plan)} (estimated; exact once the data is prepared)")
    if (plan.duration_seconds.value or 0) > REHEARSAL_SECONDS:
        lines.append("`tui-trainer rehearse` with the same arguments tries the largest batch, a save and an evaluation")
    return lines


def end_lines(state: RunState, name: str, folder: str, adapter_base: str = "") -> list[str]:
    """Return the lines about the result of a run. `adapter_base` is the adapter's base model; empty without adapter."""
    finish_event, name = state.finished, one_line(name)
    if finish_event is None:
        return []
    if finish_event.reason == "stopped":
        verb = "resume" if finish_event.step else "start"
        return [f"{result.ending_words(state)}; {verb} with: tui-trainer resume {shell_word(name)}"]
    rows = []
    if (loss := finish_event.eval_loss) is not None:
        rows.append(("held-out loss", f"{loss:.4f}{loss_unit(state.task)}{result.kept_at_words(state)}"))
        for label, value in (state.baselines.losses if state.baselines else {}).items():
            rows.append((f"  {label:<15}", f"{value:.4f}  ({result.beaten_words(loss < value)})"))
    for score in result.scores_of(state):
        verdict = result.beaten_words(score.beats_baseline)
        baseline_text = f"  ({score.baseline_words}: {verdict})" if score.baseline else ""
        rows.append((one_line(score.name), format_score(score.value) + one_line(baseline_text)))
    rows += [("target", f"{one_line(target.words)}: {target.verdict}") for target in result.targets_of(state)]
    rows += [(label, one_line(words, 400)) for label, words in speed_rows(state)]
    if words := gauges_words(state.gauge_summary):
        rows.append(("used", f"{words} (averages; for memory and temperature, peaks)"))
    lines = [result.ended_after_words(state), *(f"{label:<14} {words}" for label, words in rows)]
    if words := result.better_words(state):
        advice = "; set evaluation.early_stopping_patience = 3 to stop early and keep the best weights"
        advice = "" if state.plan and state.plan.early_stopping_patience else advice
        lines.append(f"{words}. This model has the weights of the last step{advice}")
    if not finish_event.model_path:
        return lines
    rows = [("adapter" if adapter_base else "model", f"{one_line(folder)}/{finish_event.model_path}")]
    if words := result.adapter_words(state):
        rows.append(("  size", f"{format_bytes(state.plan.merged_bytes if state.plan else None)} {words}"))
    if adapter_base:
        rows.append(("  base model", f"{adapter_base}; the adapter's README.md shows how to load it with peft"))
    command = "chat" if holds_conversations(state.task) else "predict" if scores_answers(state.task) else "generate"
    options = " --data FILE --out FILE" if command == "predict" else ""
    rows.append(("try it", f"tui-trainer {command} {shell_word(name)}{options}"))
    return [*lines, *(f"{label:<14} {words}" for label, words in rows)]


def after_screens_line(state: RunState, name: str, *, is_active: bool) -> str:
    """Return a line about a run after its screens were closed: its state, and the commands that show or stop it."""
    name = one_line(name)
    if not is_active:
        ending_text = result.ending_words(state) or wording.interrupted_words(state)
        return f"{name}: {ending_text}; `tui-trainer attach {shell_word(name)}` shows it again"
    step_text = f" at step {state.step:,} of {state.total_steps:,}" if state.steps else ""
    return f"{name} is {state.status}{step_text}; {wording.come_back_words(name)}"


_CPU_MEMORY = "what training needs in addition to the loaded libraries"


def plan_lines(plan: Plan, data_lines: Sequence[str] = (), notes: Sequence[str] = ()) -> list[str]:
    """Return the whole plan as lines. Each figure has a reason, and `~` if it is an estimate.

    `data_lines` describe the data, and `notes` report changed or ignored settings."""
    from tui_trainer.planning.summary import model_words, place_words

    lines = [
        f"{plan.recipe or 'no recipe'}: {plan.config.task.type}, {model_words(plan)}",
        *(data_lines or [f"trains on {one_line(plan.config.data.path)}"]),
        *(f"  {one_line(source.words(exact=plan.train_rows.exact))}" for source in plan.sources),
        *(f"  {one_line(split.words())}" for split in plan.splits),
        *(f"  {one_line(note)}" for note in plan.data_notes),
        f"trains {place_words(plan)}",
        f"hardware profile {plan.hardware_profile or 'none'}: {plan.hardware_reason}",
        *map(one_line, notes),
    ]
    lines += _figure_lines(plan)
    memory_text = "GPU memory" if plan.device == "cuda" else _CPU_MEMORY
    return [*lines, "", f"~ estimated, = exact; memory is {memory_text}"]


def _figure_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each figure of a plan. A memory figure is followed by a line for each of its parts."""
    parts_of_figure = {"memory_bytes": plan.memory_parts, "host_memory_bytes": plan.host_memory_parts}
    for name, figure, planned_figure in plan.shown_figures():
        text = wording.plan_time(plan) if name == "duration_seconds" else figure_text(figure, planned_figure.value)
        text = "all" if name == "loss_chunk_tokens" and not planned_figure.value else one_line(text)
        yield f"{figure.title:<19} {text:>12} {'=' if planned_figure.exact else '~'} {one_line(planned_figure.reason)}"
        for part in parts_of_figure.get(name, ()):
            yield f"  {part.name:<17} {format_bytes(part.bytes):>12}  {part.formula}"


def profile_line(profile: Profile, reason: str) -> str:
    """Return a profile's line for `tui-trainer profiles`. A `reason` says why it matches this machine, and adds `*`."""
    suffix = f"  [{reason}]" if reason else ""
    return f"{'*' if reason else ' '} {profile.name:<19} {profile.title}{suffix}"


def card_lines(plans: Sequence[CardPlan], width: int) -> list[str]:
    """Return a table of the plans for several GPUs, and a line that names the smallest GPU that is large enough."""
    from tui_trainer.launching.estimate_other_gpus import smallest_that_fits

    titles = ("GPU", "memory", "step", "time", "precision", "rows/step", "lr", "profile")
    rows = table_lines([titles, *map(_card_row, plans)], width, right=("memory", "step", "time"))
    rows += [f"no plan for {_cards_words(item)}: {one_line(item.problem)}" for item in plans if item.plan is None]
    best = smallest_that_fits(plans)
    too_small = "the run does not fit on any of these GPUs"
    best_text = f"smallest sufficient GPU: {_cards_words(best)}" if best else too_small
    rates_note = "step and time are estimated from the vendors' peak rates, not measured"
    names = sorted({name for item in plans for name in item.missing_libraries})
    library_notes = [f"these plans assume libraries that are not installed here: {', '.join(names)}"] if names else []
    return [*rows, "", best_text, f"{rates_note}; `-` means that no rate is published", *library_notes]


def _cards_words(card_plan: CardPlan) -> str:
    return f"{card_plan.card_count} x {card_plan.card.label}" if card_plan.card_count > 1 else card_plan.card.label


def _card_row(card_plan: CardPlan) -> tuple[str, ...]:
    if (plan := card_plan.plan) is None:
        return (_cards_words(card_plan), "too large", "-", "-", "-", "-", "-", card_plan.profile or "none")
    is_on_gpu = plan.device == "cuda"
    step_seconds, total_seconds = plan.step_seconds.value, plan.duration_seconds.value
    return (
        _cards_words(card_plan),
        f"{format_bytes(plan.memory_bytes.value)} of {card_plan.card.memory_gib} GiB" if is_on_gpu else "on the CPU",
        "-" if step_seconds is None or not is_on_gpu else format_seconds(step_seconds),
        "-" if step_seconds is None or total_seconds is None or not is_on_gpu else wording.plan_time(plan),
        plan.precision.value,
        f"{plan.effective_batch_size.value}: "
        + wording.split_words(plan.per_device_train_batch_size.value, plan.gradient_accumulation_steps.value),
        f"{plan.learning_rate.value:g}",
        card_plan.profile or "none",
    )


_RUN_COLUMNS: dict[str, Callable[[RunOverview, datetime], str]] = {
    "run": lambda run, _: one_line(run.name),
    "state": lambda run, _: run.status_words,
    "steps": lambda run, _: steps_words(run) if run.is_run else "",
    "loss": lambda run, _: loss_words(run.loss),
    "held out": lambda run, _: loss_words(run.eval_loss),
    "score": lambda run, _: one_line(run.score, 24),
    "last event": lambda run, now: age_words(run, now),
    "size": lambda run, _: format_bytes(run.size_bytes),
    "tags and note": lambda run, _: one_line(" ".join(filter(None, (tag_words(run.tags), run.note))), 60),
    "from": lambda run, _: one_line(run.came_from, 200),
    "started (UTC)": lambda run, _: one_line(run.started_at[:16].replace("T", " ")),
    "folder": lambda run, _: one_line(str(run.path)),
}


def run_lines(overviews: Sequence[RunOverview], width: int, now: datetime) -> list[str]:
    """Return the table of `tui-trainer runs`. Columns are left out if they do not fit, or are rarely used and empty."""
    columns = [[title, *(text(run, now) for run in overviews)] for title, text in _RUN_COLUMNS.items()]
    visible = [column for column in columns if any(column[1:]) or column[0] not in ("score", "tags and note", "from")]
    rows = [[cell or "--" for cell in row] for row in zip(*visible, strict=True)]
    return table_lines(rows, width, right=("steps", "loss", "held out", "last event", "size"))


def table_lines(rows: Sequence[Sequence[str]], width: int, right: Collection[str] = ()) -> list[str]:
    """Return a table with the titles `rows[0]`. Columns that do not fit are left out; `right` are aligned right."""
    column_formats = [(max(map(cell_len, cells)), cells[0] in right) for cells in zip(*rows, strict=True)]
    right_edges = list(accumulate(column_width + 2 for column_width, _ in column_formats))
    visible_count = max(sum(end - 2 <= width for end in right_edges), 1)

    def aligned(cell: str, column_width: int, to_right: bool) -> str:
        blanks = " " * (column_width - cell_len(cell))
        return blanks + cell if to_right else cell + blanks

    aligned_rows = [[aligned(cell, *column) for cell, column in zip(row, column_formats, strict=True)] for row in rows]
    return ["  ".join(cells[:visible_count]).rstrip() for cells in aligned_rows]


def age_words(run: RunOverview, now: datetime) -> str:
    """Return the age of a run's last event, or `clock ahead` if the clock of the run's machine is ahead."""
    seconds = run.age_seconds(now)
    return "clock ahead" if seconds is not None and seconds < 0 else format_seconds(seconds)


def steps_words(run: RunResult) -> str:
    """Return the steps of a run as `120/500`, or `40/102, kept 30` if the model has the weights of step 30."""
    steps_text = f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step or "--")
    return steps_text if run.kept_step is None else f"{steps_text}, kept {run.kept_step}"


def loss_words(loss: float | None) -> str:
    return "--" if loss is None else f"{loss:.3f}"
