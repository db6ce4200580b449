"""The parts of the Train screen below and beside the chart. Each is a list of lines of one width, title first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len

from tui_trainer.runs.events import EpochDone, StepDone
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.chart.frame import title_rule
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, Role, Span, fit
from tui_trainer.units import format_count, format_seconds

_PARTS: Final = ("data", "forward", "backward", "optimizer", "rest")
_PART_ROLES: Final[tuple[Role, ...]] = ("warn", "chart_smooth", "accent", "chart_eval", "dim")
_SHORTEST_STACK: Final = 6


def shown(text: str, glyphs: Glyphs) -> str:
    """Foreign text on one line, made harmless, and in ASCII where only that may appear."""
    line = one_line(text)
    return line.encode("ascii", "replace").decode() if glyphs.ascii else line


def pane(title: str, lines: Iterable[Line], width: int, glyphs: Glyphs, right: str = "") -> list[Line]:
    """The lines under a rule with a title, each in `width` cells; nothing at all without lines."""
    rows = [fit(line, width, glyphs.ellipsis) for line in lines]
    side: Line = [(right, "dim")] if right else []
    return [title_rule([(title, "title")], side, width, glyphs), *rows] if rows else []


def wrapped(text: str, width: int, glyphs: Glyphs, most: int = 8, role: Role = "text", indent: str = "") -> list[Line]:
    """Foreign text in lines of at most `width` cells; the last of `most` ends with an ellipsis when there is more."""
    ending = " " + glyphs.ellipsis
    lay = textwrap.TextWrapper(
        width, subsequent_indent=indent, max_lines=most, placeholder=ending, break_on_hyphens=False
    )
    rows = lay.wrap(shown(text, glyphs))
    # Signs that take two cells make a row wider than textwrap counts.
    return [
        fit([(row, role)], max(cell_len(row), 1)) if cell_len(row) <= width else fit([(row, role)], width)
        for row in rows
    ]


def rates_line(state: RunState, width: int, glyphs: Glyphs) -> Line:
    """Speed, learning rate and gradient norm, in fields that do not move."""
    last = state.last_step
    mean_seconds = _mean_seconds(state)
    rows = state.samples_per_second
    fields = [
        (f"{format_count(state.tokens_per_second):>6}", " tokens/s"),
        (f"{'--' if rows is None else f'{rows:.1f}':>6}", " rows/s"),
        (f"{format_seconds(mean_seconds):>7}", " a step"),
        ("lr ", f"{last.lr:.2e}" if last else "--      "),
        ("gradient " if width >= 80 else "norm ", f"{last.grad_norm:<6.3g}" if last else "--    "),
    ]
    line: Line = []
    for number, (first, second) in enumerate(fields):
        value_first = number < 3
        roles: tuple[Role, Role] = ("text", "dim") if value_first else ("dim", "text")
        line += [("   " if line else "", "text"), (first, roles[0]), (second, roles[1])]
    return fit(line, width, glyphs.ellipsis)


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


def parts_line(state: RunState, width: int, glyphs: Glyphs) -> Line:
    """Where the time of a step goes, in numbers and, where they fit, as letters."""
    shares = part_shares(state.recent)
    values = ["--"] * 4 if shares is None else [f"{share * 100:.0f}" for share in shares[:4]]
    line: Line = []
    for name, value, role in zip(_PARTS, values, _PART_ROLES, strict=False):
        line += [(f"{name} ", role), (f"{value:>2} %  ", "text")]
    room = width - sum(len(text) for text, _ in line)
    return fit([*line, *stack(shares, room)] if room >= _SHORTEST_STACK else line, width, glyphs.ellipsis)


def stack(shares: Sequence[float] | None, width: int) -> list[Span]:
    """The shares as `width` cells of the parts' first letters: `dffffbbbbbbo`."""
    if shares is None:
        return [(" " * width, "text")]
    ends = [round(sum(shares[: number + 1]) * width) for number in range(len(shares))]
    ends[-1] = width
    spans: list[Span] = []
    begin = 0
    for name, role, end in zip(_PARTS, _PART_ROLES, ends, strict=True):
        sign = "." if name == "rest" else name[0]
        spans.append((sign * max(end - begin, 0), role))
        begin = max(begin, end)
    return [span for span in spans if span[0]]


def parts_rows(state: RunState, width: int, glyphs: Glyphs) -> list[Line]:
    """The same as a small table with bars, one part on a line."""
    shares = part_shares(state.recent)
    mean_seconds = _mean_seconds(state)
    if shares is None or mean_seconds is None:
        return []
    room = min(width - 28, 30)
    return [
        [(f"{name:<11}", "text"), (bar(share, room, glyphs), role), (f"{share * 100:4.0f} %", "text"),
         (f"{format_seconds(share * mean_seconds):>10}", "dim")]
        for name, share, role in zip(_PARTS, shares, _PART_ROLES, strict=True)
    ]  # fmt: skip


def epoch_rows(state: RunState, most: int) -> list[Line]:
    """The last epochs as a table."""
    if not state.epochs or most < 2:
        return []
    head: Line = [("epoch   mean loss        time    rows/s  tokens/s", "dim")]
    rows: list[Line] = [[(_epoch_text(done), "text")] for done in state.epochs[-(most - 1) :]]
    return [head, *rows]


def _epoch_text(done: EpochDone) -> str:
    rates = f"{done.samples_per_second:>8.1f}  {format_count(done.tokens_per_second):>8}"
    return f"{done.epoch:>5}   {done.mean_loss:>9.4f}  {format_seconds(done.seconds):>10}  {rates}"


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
