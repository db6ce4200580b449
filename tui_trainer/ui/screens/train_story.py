"""What the Train screen says when no step is being made: before a run, while it is prepared, and after its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tui_trainer.runs.result import LABELLING, best_before, loss_unit
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.train_head import work_line
from tui_trainer.ui.screens.train_panes import shown, wrapped
from tui_trainer.ui.screens.train_scores import result_rows, to_beat
from tui_trainer.ui.spans import Line, Role
from tui_trainer.units import format_count, format_seconds

_READING_WIDTH: Final = 100
_LABEL: Final = 9
# An earlier evaluation that was lower by more than this is worth a word.
_WORK: Final[tuple[tuple[str, str], ...]] = (
    ("preparing", "reading and preparing the data"),
    ("loading", "loading libraries and the model"),
)


def invitation(start_key: str, offer: Sequence[str], width: int, glyphs: Glyphs) -> list[Line]:
    """For the one who has not started a run: which key does, and what would happen then."""
    room = min(width, _READING_WIDTH) - 4
    lines: list[Line] = [
        [("Nothing is training yet.", "bold")],
        [],
        [("Press ", "text"), (start_key, "key"), (" to start. You see the plan first, and confirm it.", "text")],
        [],
    ]
    for text in offer:
        first, *rest = wrapped(text, room - 2, glyphs) or [[]]
        lines += [[(f"{glyphs.dot} ", "dim"), *first], *([("  ", "text"), *line] for line in rest)]
    ending = "The run goes on when the connection is lost, and can be stopped and resumed at any step."
    lines += [[], *wrapped(ending, room, glyphs, role="dim")]
    return _indented(lines, 2)


def preparation(state: RunState, width: int, glyphs: Glyphs) -> list[Line]:
    """The stages before the first step: what is done, what is being done and how far it is."""
    data, plan = state.data, state.plan
    loading = state.phase == "loading"
    training = state.status == "training"
    done = "" if data is None else f"{data.rows:,} rows, {format_count(data.tokens)} tokens"
    planned = "" if plan is None else f"{plan.total_steps:,} steps, about {format_seconds(plan.duration_seconds)}"
    ready = data is not None
    stages = [
        (_WORK[0][1], ready, not ready and not loading, done),
        ("making the exact plan", plan is not None, ready and plan is None, planned),
        (_WORK[1][1], training, loading or (plan is not None and not training), ""),
        ("first step", False, training, ""),
    ]
    lines: list[Line] = []
    for text, over, now, note in stages:
        sign, role = (glyphs.good, "good") if over else (glyphs.pointer, "accent") if now else (glyphs.dot, "dim")
        words: Role = "text" if now or over else "dim"
        lines.append([(sign.ljust(3), _role(role)), (text.ljust(33), words), (note, "dim")])
        if now and state.progress is not None:
            lines.append([("   ", "text"), *work_line(state.progress, min(width, _READING_WIDTH) - 5, glyphs)])
    if state.baselines is not None:
        losses = ", ".join(f"{shown(name, glyphs)} {loss:.4f}" for name, loss in state.baselines.losses.items())
        beat, unit = (losses, loss_unit(state)) if losses else (to_beat(state, glyphs), "")
        lines += [[], [("to beat: ", "dim"), (beat, "text"), (unit, "dim")]]
    return _indented(lines, 2)


def _role(name: str) -> Role:
    return "good" if name == "good" else "accent" if name == "accent" else "dim"


def _indented(lines: Sequence[Line], by: int) -> list[Line]:
    return [[(" " * by, "text"), *line] if line else [] for line in lines]


def ending(
    state: RunState, folder: str, try_key: str, resume: str, interrupted: bool, width: int, glyphs: Glyphs
) -> list[Line]:
    """What came of a run that has ended, and what can be done next."""
    if state.failed is not None:
        return _failure(state, folder, resume, width, glyphs)
    if interrupted and state.finished is None:
        text = "Its process is gone: it was killed, or the machine went down."
        return [[(text, "bad")], *_how_to_go_on(state, resume, width, glyphs)]
    if state.finished is None:
        return []
    if state.finished.reason == "stopped":
        where = f"Stopped at step {state.finished.step:,} of {state.total_steps:,}."
        return [[(where, "bold")], *_how_to_go_on(state, resume, width, glyphs)]
    return _result(state, folder, try_key, width, glyphs)


def _labelled(label: str, text: str, width: int, glyphs: Glyphs, role: Role = "text") -> list[Line]:
    """A word and a text that is shown whole, on as many lines as it takes."""
    rows = wrapped(text, width - _LABEL, glyphs, role=role)
    return [[((label if not number else "").ljust(_LABEL), "dim"), *row] for number, row in enumerate(rows)]


def _how_to_go_on(state: RunState, resume: str, width: int, glyphs: Glyphs) -> list[Line]:
    if not state.checkpoints:
        where = "from the beginning: no checkpoint was written"
    else:
        where = f"from step {state.checkpoints[-1].step:,}, as if it had never stopped"
    return [*_labelled("go on", resume, width, glyphs, "key"), *_labelled("", where, width, glyphs)]


def _failure(state: RunState, folder: str, resume: str, width: int, glyphs: Glyphs) -> list[Line]:
    assert state.failed is not None
    lines = wrapped(state.failed.message, width, glyphs, most=4, role="bad") or [[("failed without a message", "bad")]]
    if state.failed.log_path:
        path = state.failed.log_path if state.failed.log_path.startswith("/") else f"{folder}/{state.failed.log_path}"
        lines += _labelled("log", path, width, glyphs)
    return [*lines, *_how_to_go_on(state, resume, width, glyphs)]


def _result(state: RunState, folder: str, try_key: str, width: int, glyphs: Glyphs) -> list[Line]:
    finished = state.finished
    assert finished is not None
    how = "Finished" if finished.reason == "done" else "Stopped early, as nothing improved any more:"
    lines: list[Line] = [
        [(f"{how} after {finished.step:,} steps, {format_seconds(finished.seconds)} of training.", "bold")]
    ]
    if finished.eval_loss is not None:
        lines += _against_baselines(state, finished.eval_loss, glyphs)
        lines += result_rows(state, glyphs)
        if best := best_before(state):
            lines.append([(f"it was better before: {best.loss:.4f} at step {best.step:,}", "warn")])
    if finished.model_path:
        is_adapter = state.plan is not None and bool(state.plan.lora_rank)
        lines += _labelled("adapter" if is_adapter else "model", f"{folder}/{finished.model_path}", width, glyphs)
        if state.plan is not None and is_adapter:
            lines += _labelled("on", shown(state.plan.base_model, glyphs), width, glyphs)
        does = "says what it makes of" if state.task in LABELLING else "continues"
        lines.append([("try it   ", "dim"), (try_key, "key"), (f"  the model {does} a text that you type", "text")])
    return lines


def _against_baselines(state: RunState, loss: float, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = [[("held out ", "dim"), (f"{loss:.4f}", "bold"), (loss_unit(state), "dim")]]
    for name, other in (state.baselines.losses if state.baselines else {}).items():
        beaten = loss < other
        sign, word = (glyphs.good, "beaten") if beaten else (glyphs.bad, "not beaten")
        role: Role = "good" if beaten else "bad"
        label = shown(name, glyphs)[:16]
        lines.append([(" " * 9, "text"), (f"{other:.4f}", "text"), (f"  {label:<16}", "dim"), (f"{sign} {word}", role)])
    return lines
