"""The parts of the Train screen while a run trains, each as a list of lines of one width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len

from tui_trainer.lines import gauges_words
from tui_trainer.runs.events import PlanMade, Progress, StepDone
from tui_trainer.runs.gauges import GaugeSummary
from tui_trainer.runs.remaining import eta_seconds
from tui_trainer.runs.score_words import number, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, Role, Span, beside, fit, width_of
from tui_trainer.units import format_bytes, format_bytes_of, format_count, format_seconds

_STATUS_ROLES: Final[dict[str, Role]] = {
    "preparing": "accent", "loading": "accent", "training": "good", "paused": "warn", "saving": "accent",
    "finished": "good", "stopped": "warn", "failed": "bad", "interrupted": "bad",
}  # fmt: skip
_STATUS_WIDTH: Final = max(map(len, _STATUS_ROLES))
_LONGEST_BAR: Final = 60
_NAME_LIMIT: Final = 60
_PARTS: Final[dict[str, Role]] = {
    "data": "warn", "forward": "chart_smooth", "backward": "accent", "optimizer": "chart_eval", "rest": "dim",
}  # fmt: skip
_SHORTEST_STACK: Final = 6
# The promise is 10 % (DESIGN.md): beyond it a plan was wrong.
_CLEARLY_MORE: Final = 1.1


def shown(text: str, glyphs: Glyphs) -> str:
    """Foreign text on one line, made harmless, and in ASCII where only that may appear."""
    line = one_line(text)
    return line.encode("ascii", "replace").decode() if glyphs.ascii else line


def wrapped(text: str, width: int, glyphs: Glyphs, most: int = 8, role: Role = "text", indent: str = "") -> list[Line]:
    """Foreign text in lines of at most `width` cells; the last of `most` ends with an ellipsis when there is more."""
    lay = textwrap.TextWrapper(
        width, subsequent_indent=indent, max_lines=most, placeholder=f" {glyphs.ellipsis}", break_on_hyphens=False
    )
    # Signs that take two cells make a row wider than textwrap counts.
    return [fit([(row, role)], min(cell_len(row), width)) for row in lay.wrap(shown(text, glyphs))]


def run_line(state: RunState, interrupted: bool, width: int, glyphs: Glyphs) -> Line:
    """Name, status, step, and what is left of the time; `interrupted` when nobody works at it any more."""
    word = state.phase if state.phase in ("loading", "saving") else state.status
    if state.status in ("finished", "stopped", "failed"):
        word = state.status
    elif interrupted:
        word = "interrupted"
    line: Line = [("  ", "text"), (word.ljust(_STATUS_WIDTH), _STATUS_ROLES[word])]
    if state.total_steps:
        total = f"{state.total_steps:,}"
        line += [("  step ", "dim"), (f"{state.step:>{len(total)},}", "text"), (f" of {total}", "dim")]
    eta = None if interrupted else eta_seconds(state)
    right: Line = [("  ETA ", "dim"), (f"{format_seconds(eta):>12}", "text")] if eta is not None else []
    name: Line = [(shown(state.name[:_NAME_LIMIT], glyphs), "bold")]
    room = max(width - width_of(line) - width_of(right), 8)
    return beside([*fit(name, min(room, width_of(name)), glyphs.ellipsis), *line], right, width)


def progress_line(state: RunState, width: int, glyphs: Glyphs) -> Line:
    """A bar with the share of the steps, the epoch and the losses; while work is prepared, how far that is."""
    if state.progress is not None:
        return work_line(state.progress, width, glyphs)
    share = state.step / state.total_steps if state.total_steps else None
    if state.finished is not None and state.finished.reason != "stopped":
        share = 1.0
    percent = "    --" if share is None else f"{int(share * 100):>4} %"
    losses = _losses(state)
    length = min(width - width_of(losses) - 6, _LONGEST_BAR)
    drawn: Line = [(bar(share, length, glyphs), "accent")] if length >= 8 else []
    return beside([*drawn, (percent, "text")], losses, width)


def _losses(state: RunState) -> Line:
    last, evaluation = state.last_step, state.evals[-1].loss if state.evals else None
    epochs = ""
    if state.plan is not None and state.plan.steps_per_epoch:
        total = state.total_steps / state.plan.steps_per_epoch
        epochs = f" of {total:.2f}" if total < 10 else f" of {total:.1f}"
    fields = [
        ("epoch ", f"{last.epoch:.2f}" if last else "0.00", epochs),
        ("loss ", "--    " if state.loss_smoothed is None else f"{state.loss_smoothed:.4f}", ""),
        ("held out ", "--    " if evaluation is None else f"{evaluation:.4f}", ""),
    ]
    if state.evals and (words := score_words(state.evals[-1].scores, {})):
        # The first score stands for all.
        fields.append((f"{words[0].name} ", number(words[0].value), ""))
    line: Line = []
    for label, value, rest in fields:
        line += [("   ", "text"), (label, "dim"), (value, "text"), (rest, "dim")]
    return [span for span in line if span[0]]


def work_line(progress: Progress, width: int, glyphs: Glyphs) -> Line:
    """`tokenising ████····  42 %  of 1.2 M characters`; without a total only how much is done."""
    what, unit = shown(progress.what, glyphs)[:40], shown(progress.unit, glyphs)[:20]
    if not progress.total:
        return fit([(f"{what}  ", "text"), (f"{format_count(progress.done)} {unit}", "dim")], width, glyphs.ellipsis)
    share = min(max(progress.done / progress.total, 0.0), 1.0)
    end: Line = [(f"  {int(share * 100):>3} %", "text"), (f" of {format_count(progress.total)} {unit}", "dim")]
    length = min(width - len(what) - 2 - width_of(end), _LONGEST_BAR)
    drawn: Line = [(bar(share, length, glyphs), "accent")] if length >= 4 else []
    return fit([(f"{what}  ", "text"), *drawn, *end], width, glyphs.ellipsis)


def rates_line(state: RunState, width: int) -> Line:
    """Speed, learning rate and gradient norm, in fields that do not move."""
    last, rows = state.last_step, state.samples_per_second
    return [
        (f"{format_count(state.tokens_per_second):>6}", "text"),
        (" tokens/s   ", "dim"),
        (f"{'--' if rows is None else f'{rows:.1f}':>6}", "text"),
        (" rows/s   ", "dim"),
        (f"{format_seconds(_mean_seconds(state)):>7}", "text"),
        (" a step   lr ", "dim"),
        (f"{last.lr:.2e}" if last else "--      ", "text"),
        ("   gradient " if width >= 80 else "   norm ", "dim"),
        (f"{last.grad_norm:<6.3g}" if last else "--    ", "text"),
    ]


def _mean_seconds(state: RunState) -> float | None:
    return sum(done.step_seconds for done in state.recent) / len(state.recent) if state.recent else None


def part_shares(steps: Iterable[StepDone]) -> list[float] | None:
    """The shares of a step that go to data, forward, backward, optimizer and the rest; None without time."""
    rows = [
        (done.data_seconds, done.forward_seconds, done.backward_seconds, done.optimizer_seconds, done.step_seconds)
        for done in steps
    ]
    *parts, whole = (sum(column) for column in zip(*rows, strict=True)) if rows else (0.0,)
    if whole <= 0:
        return None
    shares = [part / whole for part in parts]
    return [*shares, max(1 - sum(shares), 0.0)]


def parts_line(state: RunState, width: int) -> Line:
    """Where the time of a step goes, in numbers and, where they fit, as letters."""
    shares = part_shares(state.recent)
    line: Line = []
    for at, (name, role) in enumerate(list(_PARTS.items())[:-1]):
        value = "--" if shares is None else f"{shares[at] * 100:.0f}"
        line += [(f"{name} ", role), (f"{value:>2} %  ", "text")]
    room = width - width_of(line)
    return [*line, *stack(shares, room)] if shares and room >= _SHORTEST_STACK else line


def stack(shares: Sequence[float], width: int) -> list[Span]:
    """The shares as `width` cells of the parts' first letters: `dffffbbbbbbo`."""
    spans: list[Span] = []
    begin, total = 0, 0.0
    for (name, role), share in zip(_PARTS.items(), shares, strict=True):
        total += share
        end = width if name == "rest" else round(total * width)
        spans.append(("." * (end - begin) if name == "rest" else name[0] * (end - begin), role))
        begin = max(begin, end)
    return [span for span in spans if span[0]]


def parts_rows(state: RunState, width: int, glyphs: Glyphs) -> list[Line]:
    """The same as a small table with bars, one part on a line."""
    shares, mean_seconds = part_shares(state.recent), _mean_seconds(state)
    if shares is None or mean_seconds is None:
        return []
    room = min(width - 28, 30)
    return [
        [(f"{name:<11}", "text"), (bar(share, room, glyphs), role), (f"{share * 100:4.0f} %", "text"),
         (f"{format_seconds(share * mean_seconds):>10}", "dim")]
        for (name, role), share in zip(_PARTS.items(), shares, strict=True)
    ]  # fmt: skip


def readings_rows(state: RunState, width: int, glyphs: Glyphs) -> list[Line]:
    """What the run's own process used of its machine: at its last reading, and in all of them."""
    last = GaugeSummary()
    for reading in list(state.gauges)[-1:]:
        last.add(reading)
    rows = [("last", last)] + [("whole run", state.gauge_summary)] * (state.gauge_summary.readings > 1)
    return [
        [(f"{(name if not at else ''):<11}", "dim"), *line]
        for name, summary in rows
        # The sign of a degree is not ASCII.
        for at, line in enumerate(wrapped(gauges_words(summary).replace("\u00b0", ""), width - 11, glyphs))
    ]


def epoch_rows(state: RunState, most: int) -> list[Line]:
    """The last epochs as a table."""
    rows: list[Line] = [[("epoch   mean loss        time    rows/s  tokens/s", "dim")]]
    for done in state.epochs[-most:]:
        rates = f"{done.samples_per_second:>8.1f}  {format_count(done.tokens_per_second):>8}"
        seconds = format_seconds(done.seconds)
        rows.append([(f"{done.epoch:>5}   {done.mean_loss:>9.4f}  {seconds:>10}  {rates}", "text")])
    return rows


def sample_rows(state: RunState, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """What the model wrote, newest first: whole texts, as many as there is room for."""
    rows: list[Line] = []
    for sample in reversed(state.samples):
        text = wrapped(f"{sample.prompt[-200:]}{sample.text}", width - 2, glyphs, most=6)
        block: list[Line] = [[(f"after step {sample.step}", "dim")], *([("  ", "text"), *line] for line in text)]
        if len(rows) + len(block) > most:
            return rows or block[:most]
        rows += block
    return rows


def event_rows(events: Sequence[tuple[str, Role]], width: int, most: int, back: int, glyphs: Glyphs) -> list[Line]:
    """The newest last; `back` of the newest are scrolled away."""
    end = max(len(events) - max(back, 0), min(most, len(events)))
    lines: list[Line] = []
    for text, role in reversed(events[:end]):
        rows = wrapped(text, width, glyphs, most=2, role=role, indent="  ")
        if len(lines) + len(rows) > most:
            break
        lines = [*rows, *lines]
    return lines


def log_rows(log_lines: Sequence[str], most: int, glyphs: Glyphs) -> list[Line]:
    """The tail of what programs wrote; a word when that is nothing."""
    rows: list[Line] = [[(shown(text, glyphs), "dim")] for text in log_lines[-most:]] if most > 0 else []
    return rows or [[("nothing has been written to standard output or error", "dim")]]


def saved_words(state: RunState) -> str:
    """When the last checkpoint was written, in steps: what a crash would cost."""
    if not state.checkpoints:
        return "not saved yet"
    age = max(state.step - state.checkpoints[-1].step, 0)
    return f"saved at step {state.checkpoints[-1].step}" + (f", {age:>4} steps ago" if age else "")


def training_memory_bytes(state: RunState) -> int | None:
    """The peak so far, counted as the plan counts it; None where that is not known.

    On a GPU what was allocated on the card, on a CPU what training has added to the process with its libraries.
    """
    if state.last_step is None:
        return None
    peak = state.last_step.peak_memory_bytes
    if state.device.startswith("cuda"):
        return peak
    before = state.resident_bytes_before
    return None if before is None else max(peak - before, 0)


def memory_words(state: RunState) -> str:
    """`2.1 of 2.4 GiB planned`; what is known where the peak cannot be compared."""
    if state.plan is None:
        return ""
    measured, planned = training_memory_bytes(state), state.plan.memory_bytes
    if measured is not None:
        return f"{format_bytes_of(measured, planned)} planned"
    process = f", process {format_bytes(state.last_step.peak_memory_bytes)}" if state.last_step else ""
    return f"{format_bytes(planned)} planned{process}"


def is_tuned(plan: PlanMade | None) -> bool:
    """Whether the run starts from a pretrained model."""
    return plan is not None and bool(plan.base_model) and plan.trained_parameters is not None


def tuning_line(plan: PlanMade, glyphs: Glyphs) -> Line:
    """`LoRA r 16 on TinyLlama-1.1B: 9.01 M of 1.1 G parameters are trainable (0.82 %)`."""
    how = f"LoRA r {plan.lora_rank} on " if plan.lora_rank else ""
    line: Line = [(how, "dim"), (_name(plan, glyphs), "text"), (": ", "dim"), (_trainable(plan), "text")]
    return [*line, (f" parameters are trainable{_share_words(plan)}", "dim")]


def plan_rows(state: RunState, glyphs: Glyphs) -> list[Line]:
    """What the plan said, to be compared with what happens."""
    plan, data = state.plan, state.data
    if plan is None:
        return []
    cut = f" = {plan.gradient_accumulation_steps} {glyphs.times} {plan.per_device_train_batch_size}"
    rows = [
        *_model_rows(plan, shown(state.device, glyphs) or "--", glyphs),
        ("data", f"{data.rows:,} rows, {format_count(data.tokens)} tokens" if data else "--"),
        ("batch", f"{plan.effective_batch_size} rows" + (cut if plan.gradient_accumulation_steps > 1 else "")),
        ("steps", f"{plan.total_steps:,}, {plan.steps_per_epoch:,} in an epoch"),
        ("time", f"about {format_seconds(plan.duration_seconds)}"),
    ]
    lines: list[Line] = [[(f"{name:<11}", "dim"), (text, "text")] for name, text in rows]
    return [*lines, [(f"{'memory':<11}", "dim"), (memory_words(state), memory_role(state))]]


def memory_role(state: RunState) -> Role:
    """A warning where training takes clearly more than was planned."""
    measured = training_memory_bytes(state)
    is_more = measured is not None and state.plan is not None and measured > _CLEARLY_MORE * state.plan.memory_bytes
    return "warn" if is_more else "text"


def _model_rows(plan: PlanMade, device: str, glyphs: Glyphs) -> list[tuple[str, str]]:
    if not is_tuned(plan):
        return [("model", f"{format_count(plan.parameters)} parameters on {device}")]
    trainable = f"{_trainable(plan)}{_share_words(plan)}"
    method = ("LoRA", f"r {plan.lora_rank}, {trainable}") if plan.lora_rank else ("trains", f"{trainable} parameters")
    return [("model", f"{_name(plan, glyphs)} on {device}"), method]


def _name(plan: PlanMade, glyphs: Glyphs) -> str:
    return shown(plan.base_model.rstrip("/").rpartition("/")[2], glyphs)


def _trainable(plan: PlanMade) -> str:
    trained, every = plan.trained_parameters or 0, plan.parameters
    return f"{format_count(trained)} of {format_count(every)}" if trained < every else f"all {format_count(every)}"


def _share_words(plan: PlanMade) -> str:
    trained = plan.trained_parameters or 0
    if not 0 < trained < plan.parameters:
        return ""
    percent = 100 * trained / plan.parameters
    return f" ({percent:.0f} %)" if percent >= 10 else f" ({percent:.2g} %)"
