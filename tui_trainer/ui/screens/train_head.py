"""The two lines at the top of the Train screen: which run, how it is, how far it is."""

from __future__ import annotations

from typing import Final

from tui_trainer.runs.events import Progress
from tui_trainer.runs.remaining import eta_seconds
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.screens.train_panes import shown
from tui_trainer.ui.screens.train_scores import newest_score
from tui_trainer.ui.spans import Line, Role, beside, fit, width_of
from tui_trainer.units import format_count, format_seconds

_STATUS_ROLES: Final[dict[str, Role]] = {
    "preparing": "accent", "loading": "accent", "training": "good", "paused": "warn", "saving": "accent",
    "finished": "good", "stopped": "warn", "failed": "bad", "interrupted": "bad",
}  # fmt: skip
_STATUS_WIDTH: Final = max(map(len, _STATUS_ROLES))
_LONGEST_BAR: Final = 60
_NAME_LIMIT: Final = 60


def status_word(state: RunState, interrupted: bool = False) -> str:
    """The run's status, or its phase where that says more; `interrupted` when nobody works at it any more."""
    status = state.status
    if status in ("finished", "stopped", "failed"):
        return status
    if interrupted:
        return "interrupted"
    return state.phase if state.phase in ("loading", "saving") else status


def run_line(state: RunState, interrupted: bool, width: int, glyphs: Glyphs) -> Line:
    """Name, status, step, and what is left of the time."""
    word = status_word(state, interrupted)
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
    if score := newest_score(state):
        fields.append((*score, ""))
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
