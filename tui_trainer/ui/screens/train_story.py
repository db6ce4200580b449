"""What the Train screen says when no step is being made: before a run, while it is prepared, and after its end; and
what a task measures beside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.result import LABELLING, best_before, last_scores, loss_unit
from tui_trainer.runs.score_words import ScoreWords, baselines_line, number, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.train_lines import shown, work_line, wrapped
from tui_trainer.ui.spans import Line, Role, fit
from tui_trainer.units import format_count, format_seconds

_READING_WIDTH: Final = 100
_LABEL: Final = 9
_NAME_WIDTH: Final = 16
_LONGEST_NAME: Final = 24
_BASELINE_WIDTH: Final = 28


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
        ("reading and preparing the data", ready, not ready and not loading, done),
        ("making the exact plan", plan is not None, ready and plan is None, planned),
        ("loading libraries and the model", training, loading or (plan is not None and not training), ""),
        ("first step", False, training, ""),
    ]
    lines: list[Line] = []
    for text, over, now, note in stages:
        sign = glyphs.good if over else glyphs.pointer if now else glyphs.dot
        role: Role = "good" if over else "accent" if now else "dim"
        lines.append([(sign.ljust(3), role), (text.ljust(33), "text" if now or over else "dim"), (note, "dim")])
        if now and state.progress is not None:
            lines.append([("   ", "text"), *work_line(state.progress, min(width, _READING_WIDTH) - 5, glyphs)])
    if state.baselines is not None:
        losses = ", ".join(f"{shown(name, glyphs)} {loss:.4f}" for name, loss in state.baselines.losses.items())
        beat, unit = (
            (losses, loss_unit(state)) if losses else (shown(baselines_line(state.baselines.scores), glyphs), "")
        )
        lines += [[], [("to beat: ", "dim"), (beat, "text"), (unit, "dim")]]
    return _indented(lines, 2)


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
        done, baselines = last_scores(state), state.baselines.scores if state.baselines else {}
        lines += [_result_row(score, glyphs) for score in (score_words(done.scores, baselines) if done else [])]
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


def _result_row(score: ScoreWords, glyphs: Glyphs) -> Line:
    line: Line = [(f"{shown(score.name, glyphs)[:_NAME_WIDTH]:<{_NAME_WIDTH}} ", "dim"), (number(score.value), "bold")]
    if score.baseline is None:
        return line
    what, value = score.baseline
    role: Role = "good" if score.beaten else "bad"
    sign, word = (glyphs.good, "beaten") if score.beaten else (glyphs.bad, "not beaten")
    beside = fit([(f"  {shown(what, glyphs)} {number(value)} ", "dim")], _BASELINE_WIDTH + 8, glyphs.ellipsis)
    return [*line, *beside, (f"{sign} {word}", role)]


def _newest_table(state: RunState) -> EvalDone | None:
    return next((done for done in reversed(state.evals) if done.table_rows), None)


def scores_heading(state: RunState, glyphs: Glyphs) -> tuple[str, str]:
    """What the newest table is of, and when it was made."""
    done = _newest_table(state)
    if done is None:
        return "scores", ""
    title = f"scores: {shown(done.table_title, glyphs)}" if done.table_title else "scores"
    return title, f"after step {done.step:,}"


def score_rows(state: RunState, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """The table of the newest evaluation that has one; a word where there is none."""
    done = _newest_table(state)
    if done is None:
        return [[("no evaluation with a table of classes so far", "dim")]]
    return table_rows(done, width, most, glyphs)


def table_rows(done: EvalDone, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """A row of numbers for each class. Columns that are classes too have their row's number as a title, so that twenty
    of them fit; what does not fit is counted."""
    names = [shown(name, glyphs) for name in done.table_rows]
    square = list(done.table_columns) == list(done.table_rows)
    titles = [shown(name, glyphs) for name in done.table_columns]
    if square:
        titles = [str(at + 1) for at in range(len(names))]
    cells = _cells(done, square)
    widest = max(len(text) for text in (*titles, *(cell for row in cells for cell in row))) + 2
    label = min(max(map(len, names)), _LONGEST_NAME) + (4 if square else 0)
    columns = max(min((width - label) // widest, len(titles)), 1)
    left_out = len(titles) - columns
    head: Line = [(" " * label, "dim"), *((f"{title:>{widest}}", "dim") for title in titles[:columns])]
    rows = min(len(names), most - 1 - (1 if left_out or len(names) > most - 1 else 0))
    lines = [head, *(_row(at, names[at], cells[at][:columns], label, widest, square) for at in range(max(rows, 0)))]
    missing = [f"{left_out} columns" * bool(left_out), f"{len(names) - rows} rows" * (rows < len(names))]
    words = " and ".join(filter(None, missing))
    return [*lines, [(f"{words} more do not fit here", "dim")]] if words else lines


def _row(at: int, name: str, cells: Sequence[str], label: int, widest: int, square: bool) -> Line:
    text = f"{at + 1:>3} {name[: label - 4]}" if square else name[:label]
    line: Line = fit([(text, "text")], label)
    for column, cell in enumerate(cells):
        # What was taken for its own class stands on the diagonal.
        role: Role = "good" if square and column == at and cell != "0" else "dim" if cell == "0" else "text"
        line.append((f"{cell:>{widest}}", role))
    return line


def _cells(done: EvalDone, square: bool) -> list[list[str]]:
    """Counts are whole, shares have two decimals: a column is one or the other."""
    rows = list(done.table_rows.values())
    counts = [
        square or (all(float(value).is_integer() for value in column) and max(column) > 1)
        for column in zip(*rows, strict=True)
    ]
    return [
        [f"{value:.0f}" if whole else f"{value:.2f}" for value, whole in zip(row, counts, strict=True)] for row in rows
    ]
