"""What is said about plans and events, as plain lines, with a screen and without. Pure: objects in, text out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len

from tui_trainer.runs import events
from tui_trainer.runs.labels import tag_words
from tui_trainer.runs.result import (
    adapter_words,
    baselines_line,
    beaten_words,
    better_words,
    ended_after_words,
    ending_words,
    grade,
    kept_at_words,
    kept_weights,
    number,
    plain,
    planned_epoch_seconds,
    scores_line,
    scores_of,
    targets_of,
    targets_summary,
)
from tui_trainer.runs.state import GaugeSummary, RunState
from tui_trainer.runs.steps_and_eta import eta_seconds, speed_rows
from tui_trainer.runs.wording import (
    come_back_words,
    gone_words,
    held_out_words,
    plan_time,
    rows_words,
    sample_words,
    split_words,
    takes_words,
)
from tui_trainer.tasks import holds_conversations, labels_rows, loss_unit
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
    from tui_trainer.launching.other_cards import CardPlan
    from tui_trainer.planning.plan import Plan
    from tui_trainer.runs.overview import RunOverview, RunResult

_PROMPT_CHARACTERS, _SAMPLE_CHARACTERS = 40, 200
_PHASES = {"loading": "loading torch and transformers, building the model", "saving": "writing the final model"}


def event_line(event: events.Event, state: RunState) -> str | None:
    """One line for an event that people want to read; None for the rest."""
    match event:
        case events.RunStarted(resumed_from_step=int(step)):
            how = f"resumes from step {step}" if step else "starts over: it had no checkpoint"
            return f"run {event.name} {how}"
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
            kept = kept_weights(state)
            note = kept.patience_words
            if event.best:
                note = "best of the scheduled evaluations" if kept.asked_was_better else "best so far"
            elif not event.scheduled:
                note = "requested" + "; the best is chosen from the scheduled evaluations only" * kept.asked_was_better
            loss, targets = state.loss_smoothed, targets_summary(state)
            parts = [
                f"step {event.step}: held-out loss {event.loss:.4f}" + (f" ({note})" if note else ""),
                scores_line(event.scores, state.baselines.scores if state.baselines else {}),
                "" if loss is None else f"recent training loss {loss:.4f}",
                format_seconds(event.seconds),
                targets and f"targets {targets}",
            ]
            return ", ".join(filter(None, parts))
        case events.EpochDone():
            rates = f"{format_rate(event.samples_per_second, 'rows')}, {format_rate(event.tokens_per_second, 'tokens')}"
            took, planned = format_seconds(event.seconds), planned_epoch_seconds(state.plan)
            took += "" if planned is None else f" ({format_seconds(planned)} planned)"
            graded = grade(state, event.samples_per_second)
            rates += f": {graded}" if graded else ""
            return f"epoch {event.epoch}: mean loss {event.mean_loss:.4f}, {took}, {rates}"
        case events.CheckpointSaved():
            cost = f"{format_bytes(event.bytes)}, {format_seconds(event.seconds)}"
            return f"step {event.step}: saved {event.path} ({cost})"
        case events.TextSampled():
            verb = "writes" if not labels_rows(state.task) else "reads"
            text = sample_words(event.prompt, event.text, _PROMPT_CHARACTERS)
            return f"step {event.step}: {verb}: {one_line(text, _SAMPLE_CHARACTERS)}"
        case events.ControlApplied(action="resume" | "stop"):  # the others have an event of their own
            return f"step {event.step}: {event.action} (requested)"
        case events.RunProblem():
            return f"step {event.step}: " + "; ".join(one_line(text) for text in (event.message, event.hint) if text)
    return None


def _baselines_line(event: events.BaselinesMeasured) -> str | None:
    losses = ", ".join(f"{name} {loss:.4f}" for name, loss in event.losses.items())
    counts = f"nats/{event.unit} (n-gram models, from counts of {event.unit} sequences)"
    parts = [f"held-out loss {losses} {counts}"] if losses else []
    parts += [one_line(baselines_line(event.scores))] if event.scores else []
    return f"to beat: {'; '.join(parts)}" if parts else None


def _plan_made_line(event: events.PlanMade) -> str:
    return (
        f"plan: {takes_words(event)}; {quantity(event.steps_per_epoch, 'step')} per epoch, "
        f"{format_count(event.parameters)} parameters, {format_bytes(event.disk_bytes)} of disk"
        + (f"\nattention: {one_line(event.attention)}" if event.attention else "")
        + (f"\nstarts: {one_line(event.command, 300)}" if event.command else "")
    )


def _data_line(event: events.DataPrepared) -> str:
    how = "read from the cache" if event.from_cache else f"prepared in {format_seconds(event.seconds)}"
    apart = held_out_words(event.eval_rows) + f" ({quantity(event.eval_documents, 'document')})" * bool(event.eval_rows)
    line = (
        f"data: {rows_words(event.rows, event.tokens)} to train on ({quantity(event.documents, 'document')}), "
        f"{apart}, vocabulary {event.vocabulary:,}; {how}"
    )
    return "\n".join([line, *(f"data: {one_line(note)}" for note in event.notes)])


def step_line(event: events.StepDone, state: RunState) -> str:
    """`step 120/600  loss 1.853  lr 2.9e-03  grad 0.81  41 k tokens/s  ETA 32.0 s`. Scores follow the loss, if any.

    The loss is that of `RunState.loss_smoothed`, the scores are means of up to 50 steps.
    """
    loss = state.loss_smoothed if state.loss_smoothed is not None else event.loss
    rate = format_rate(state.tokens_per_second or event.tokens_per_second, "tokens")
    seconds = eta_seconds(state)
    eta = f"  ETA {format_seconds(seconds)}" if seconds else ""
    scores = "".join(f"  {one_line(plain(name), 40)} {number(mean)}" for name, mean in state.training_scores.items())
    return (
        f"step {event.step}/{state.total_steps}  loss {loss:.4f}{scores}  lr {event.lr:.1e}  "
        f"grad {event.grad_norm:.2f}  {rate}{eta}"
    )


def progress_line(event: events.Progress) -> str:
    """`tokenising 42 % of 1.2 M characters`."""
    what = one_line(event.what, 60)
    if event.total:
        return f"{what} {event.done / event.total:4.0%} of {format_count(event.total)} {event.unit}"
    return f"{what} {format_count(event.done)} {event.unit}"


def gauges_line(step: int, summary: GaugeSummary) -> str | None:
    """`step 1200: GPU 93 %, 61.3 of 139.8 GiB, 512 W, 71 \u00b0C; process 3.2 GiB, CPU 1.4 of 2 cores`: means, and of
    memory and temperature the peaks. None when nothing was reported.
    """
    words = gauges_words(summary)
    return f"step {step}: {words}" if words else None


def gauges_words(summary: GaugeSummary) -> str:
    """What was reported of several readings; empty when nothing was."""
    mean, peak = summary.mean, summary.peak

    def known(write: Callable[..., str], *values: float | None) -> str:
        return "" if None in values else write(*values)

    gpu = [
        known(lambda share: f"{100 * share:.0f} %", mean("utilization_share")),
        known(format_bytes_of, peak("memory_used_bytes"), peak("memory_bytes") or None),
        known("{:.0f} W".format, mean("power_watts")),
        known("{:.0f} \u00b0C".format, peak("temperature_celsius")),
    ]
    process = [
        known(lambda memory_bytes: f"process {format_bytes(memory_bytes)}", peak("process_memory_bytes")),
        known("CPU {:.1f} of {:g} cores".format, mean("busy_cores"), summary.usable_cores),
    ]
    on_gpu = ", ".join(filter(None, gpu))
    return "; ".join(filter(None, [on_gpu and f"GPU {on_gpu}", ", ".join(filter(None, process))]))


REHEARSAL_SECONDS = 600.0
"""Runs that are planned to take longer are worth a rehearsal of a minute."""


def start_lines(name: str, folder: str, plan: Plan) -> list[str]:
    """What is about to happen; the exact plan follows once the data is prepared."""
    from tui_trainer.planning.summary import place_words, tuning_words

    profiles = ", ".join(
        filter(None, [plan.recipe and f"recipe {plan.recipe}", f"hardware profile {plan.hardware_profile or 'none'}"])
    )
    lines = [one_line(f"run {name} in {folder}"), profiles, f"trains {place_words(plan)}; {tuning_words(plan)}"]
    if not plan.train_rows.exact:
        lines.append(f"about {takes_words(plan)} (estimated; exact once the data is prepared)")
    if (plan.duration_seconds.value or 0) > REHEARSAL_SECONDS:
        lines.append("`tui-trainer rehearse` with the same arguments tries the largest batch, a save and an evaluation")
    return lines


def end_lines(state: RunState, name: str, folder: str, adapter_base: str = "") -> list[str]:
    """What came out of a run. `adapter_base` is the model that an adapter is for; empty for a whole model."""
    finished, name = state.finished, one_line(name)
    if finished is None:
        return []
    if finished.reason == "stopped":
        verb = "resume" if finished.step else "start"
        return [f"{ending_words(state)}; {verb} with: tui-trainer resume {shell_word(name)}"]
    rows = []
    if (loss := finished.eval_loss) is not None:
        rows.append(("held-out loss", f"{loss:.4f}{loss_unit(state.task)}{kept_at_words(state)}"))
        losses = state.baselines.losses if state.baselines else {}
        rows += [(f"  {label:<15}", f"{other:.4f}  ({beaten_words(loss < other)})") for label, other in losses.items()]
    for score in scores_of(state):
        beside = f"  ({score.baseline_words}: {beaten_words(score.beaten)})" if score.baseline else ""
        rows.append((one_line(score.name), number(score.value) + one_line(beside)))
    rows += [("target", f"{one_line(one.words)}: {one.verdict}") for one in targets_of(state)]
    rows += [(label, one_line(words, 400)) for label, words in speed_rows(state)]
    if words := gauges_words(state.gauge_summary):
        rows.append(("used", f"{words} (mean values; peak values of memory and temperature)"))
    lines = [ended_after_words(state), *(f"{label:<14} {words}" for label, words in rows)]
    if words := better_words(state):
        keeps = "set evaluation.early_stopping_patience = 3 to stop early and keep the best weights"
        advice = "" if state.plan and state.plan.early_stopping_patience else f"; {keeps}"
        lines.append(f"{words}. This model has the weights of the last step{advice}")
    if not finished.model_path:
        return lines
    rows = [("adapter" if adapter_base else "model", f"{one_line(folder)}/{finished.model_path}")]
    if words := adapter_words(state):
        rows.append(("  size", f"{format_bytes(state.plan.merged_bytes if state.plan else None)} {words}"))
    if adapter_base:
        rows.append(("  base model", f"{adapter_base}; the adapter's README.md shows how to load it with peft"))
    tries = "chat" if holds_conversations(state.task) else "generate"
    rows.append(("try it", f"tui-trainer {tries} {shell_word(name)}"))
    return [*lines, *(f"{label:<14} {words}" for label, words in rows)]


def left_line(state: RunState, name: str, *, is_active: bool) -> str:
    """Return the state of a run whose screens were left, and the commands that show or stop it."""
    name = one_line(name)
    if not is_active:
        how = ending_words(state) or gone_words(state)
        return f"{name}: {how}; `tui-trainer attach {shell_word(name)}` shows it again"
    where = f" at step {state.step:,} of {state.total_steps:,}" if state.steps else ""
    return f"{name} is {state.status}{where}; {come_back_words(name)}"


_ADDED = "what training needs in addition to the loaded libraries"


def plan_lines(plan: Plan, found: Sequence[str] = (), notes: Sequence[str] = ()) -> list[str]:
    """The whole plan, each number with its reason; `~` marks an estimate. `found` says what the data is, `notes` what
    was made of the config.
    """
    from tui_trainer.planning.summary import model_words, place_words

    lines = [
        f"{plan.recipe or 'no recipe'}: {plan.config.task.type}, {model_words(plan)}",
        *(found or [f"trains on {one_line(plan.config.data.path)}"]),
        *(f"  {one_line(source.words(exact=plan.train_rows.exact))}" for source in plan.sources),
        *(f"  {one_line(use.words())}" for use in plan.splits),
        *(f"  {one_line(note)}" for note in plan.data_notes),
        f"trains {place_words(plan)}",
        f"hardware profile {plan.hardware_profile or 'none'}: {plan.hardware_reason}",
        *map(one_line, notes),
    ]
    lines += _figure_lines(plan)
    memory = "GPU memory" if plan.device == "cuda" else _ADDED
    return [*lines, "", f"~ estimated, = exact; memory is {memory}"]


def _figure_lines(plan: Plan) -> Iterator[str]:
    """Yield a line for each figure, and below a sum of memory one for each of its parts."""
    parts = {"memory_bytes": plan.memory_parts, "host_memory_bytes": plan.host_memory_parts}
    for name, figure, planned in plan.shown_figures():
        text = plan_time(plan) if name == "duration_seconds" else figure_text(figure, planned.value)
        text = "all" if name == "loss_chunk_tokens" and not planned.value else one_line(text)
        yield f"{figure.title:<19} {text:>12} {'=' if planned.exact else '~'} {one_line(planned.reason)}"
        for part in parts.get(name, ()):
            yield f"  {part.name:<17} {format_bytes(part.bytes):>12}  {part.formula}"


def profile_line(profile: Profile, reason: str) -> str:
    """One line of `tui-trainer profiles`; `*` marks what matches this machine."""
    why = f"  [{reason}]" if reason else ""
    return f"{'*' if reason else ' '} {profile.name:<19} {profile.title}{why}"


def card_lines(plans: Sequence[CardPlan], width: int) -> list[str]:
    """Plans for cards beside each other, and the smallest card that is large enough."""
    from tui_trainer.launching.other_cards import smallest_that_fits

    head = ("GPU", "memory", "step", "time", "precision", "rows/step", "lr", "profile")
    rows = table_lines([head, *map(_card_row, plans)], width, right=("memory", "step", "time"))
    rows += [f"{_cards_words(one)} does not fit: {one_line(one.problem)}" for one in plans if one.plan is None]
    best = smallest_that_fits(plans)
    found = f"smallest that fits: {_cards_words(best)}" if best else "the run does not fit on any of these GPUs"
    rates = (
        "step and time are estimated from the vendors' peak rates, not measured; `-` means that no rate is published"
    )
    assumed = sorted({name for one in plans for name in one.assumed})
    needed = [f"these plans assume libraries that are not installed here: {', '.join(assumed)}"] if assumed else []
    return [*rows, "", found, rates, *needed]


def _cards_words(one: CardPlan) -> str:
    return f"{one.cards} x {one.card.label}" if one.cards > 1 else one.card.label


def _card_row(one: CardPlan) -> tuple[str, ...]:
    if (plan := one.plan) is None:
        return (_cards_words(one), "too large", "-", "-", "-", "-", "-", one.profile or "none")
    on_card = plan.device == "cuda"
    step, whole = (value.value if on_card else None for value in (plan.step_seconds, plan.duration_seconds))
    return (
        _cards_words(one),
        f"{format_bytes(plan.memory_bytes.value)} of {one.card.memory_gib} GiB" if on_card else "on the CPU",
        "-" if step is None else format_seconds(step),
        "-" if whole is None or step is None else plan_time(plan),
        plan.precision.value,
        f"{plan.effective_batch_size.value}: "
        + split_words(plan.per_device_train_batch_size.value, plan.gradient_accumulation_steps.value),
        f"{plan.learning_rate.value:g}",
        one.profile or "none",
    )


_RUN_COLUMNS: dict[str, Callable[[RunOverview, datetime], str]] = {
    "run": lambda one, _: one_line(one.name),
    "state": lambda one, _: one.status_words,
    "steps": lambda one, _: steps_words(one) if one.is_run else "",
    "loss": lambda one, _: loss_words(one.loss),
    "held out": lambda one, _: loss_words(one.eval_loss),
    "score": lambda one, _: one_line(one.score, 24),
    "last event": lambda one, now: age_words(one, now),
    "size": lambda one, _: format_bytes(one.size_bytes),
    "tags and note": lambda one, _: one_line(" ".join(filter(None, (tag_words(one.tags), one.note))), 60),
    "from": lambda one, _: one_line(one.came_from, 200),
    "started (UTC)": lambda one, _: one_line(one.started_at[:16].replace("T", " ")),
    "folder": lambda one, _: one_line(str(one.path)),
}


def run_lines(overviews: Sequence[RunOverview], width: int, now: datetime) -> list[str]:
    """The table of `tui-trainer runs`: the columns that fit, from the left. Only some runs have scores, a note or an
    ancestor: without any of them, there is no such column."""
    columns = [[title, *(text(one, now) for one in overviews)] for title, text in _RUN_COLUMNS.items()]
    shown = [one for one in columns if any(one[1:]) or one[0] not in ("score", "tags and note", "from")]
    rows = [[cell or "--" for cell in row] for row in zip(*shown, strict=True)]
    return table_lines(rows, width, right=("steps", "loss", "held out", "last event", "size"))


def table_lines(rows: Sequence[Sequence[str]], width: int, right: Collection[str] = ()) -> list[str]:
    """Rows below each other, as many columns as fit; those of the titles `right` are set to the right."""
    columns = [(max(map(cell_len, cells)), cells[0] in right) for cells in zip(*rows, strict=True)]
    ends = list(accumulate(size + 2 for size, _ in columns))
    fitting = max(sum(end - 2 <= width for end in ends), 1)

    def placed(cell: str, size: int, to_right: bool) -> str:
        blanks = " " * (size - cell_len(cell))
        return blanks + cell if to_right else cell + blanks

    shown = [[placed(cell, *column) for cell, column in zip(row, columns, strict=True)] for row in rows]
    return ["  ".join(cells[:fitting]).rstrip() for cells in shown]


def age_words(one: RunOverview, now: datetime) -> str:
    """How long ago a run's last event was; `clock ahead` where another machine's clock is ahead of this one's."""
    seconds = one.age_seconds(now)
    return "clock ahead" if seconds is not None and seconds < 0 else format_seconds(seconds)


def steps_words(one: RunResult) -> str:
    """Return `120/500`, or `40/102, kept 30` if the model went back to an earlier step."""
    steps = f"{one.step}/{one.total_steps}" if one.total_steps else str(one.step or "--")
    return steps if one.kept_step is None else f"{steps}, kept {one.kept_step}"


def loss_words(loss: float | None) -> str:
    return "--" if loss is None else f"{loss:.3f}"
