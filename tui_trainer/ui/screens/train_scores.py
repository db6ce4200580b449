"""What a task measures beside the loss: the newest score, what it had to beat, and the table of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tui_trainer.runs.events import EvalDone
from tui_trainer.runs.result import last_scores
from tui_trainer.runs.score_words import ScoreWords, baselines_line, number, score_words
from tui_trainer.runs.state import RunState
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.screens.train_panes import pane, shown
from tui_trainer.ui.spans import Line, Role, fit

_NAME_WIDTH: Final = 16
_LONGEST_NAME: Final = 24
_BASELINE_WIDTH: Final = 28


def newest_score(state: RunState) -> tuple[str, str] | None:
    """(`accuracy `, `0.771`) of the last evaluation; the first score stands for all."""
    scores = state.evals[-1].scores if state.evals else {}
    words = score_words(scores, {})
    return (f"{words[0].name} ", number(words[0].value)) if words else None


def to_beat(state: RunState, glyphs: Glyphs) -> str:
    """Scores of simple models, before anything was learnt."""
    return shown(baselines_line(state.baselines.scores), glyphs) if state.baselines else ""


def result_rows(state: RunState, glyphs: Glyphs) -> list[Line]:
    """The scores of the finished model, each beside its baseline."""
    done = last_scores(state)
    words = score_words(done.scores, state.baselines.scores if state.baselines else {}) if done else []
    return [_result_row(score, glyphs) for score in words]


def _result_row(score: ScoreWords, glyphs: Glyphs) -> Line:
    line: Line = [(f"{shown(score.name, glyphs)[:_NAME_WIDTH]:<{_NAME_WIDTH}} ", "dim"), (number(score.value), "bold")]
    if score.baseline is None:
        return line
    what, value = score.baseline
    role: Role = "good" if score.beaten else "bad"
    sign, word = (glyphs.good, "beaten") if score.beaten else (glyphs.bad, "not beaten")
    beside = fit([(f"  {shown(what, glyphs)} {number(value)} ", "dim")], _BASELINE_WIDTH + 8, glyphs.ellipsis)
    return [*line, *beside, (f"{sign} {word}", role)]


def table_pane(state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The table of the newest evaluation that has one, under a rule; a word where there is none."""
    done = next((done for done in reversed(state.evals) if done.table_rows), None)
    if done is None:
        return pane("scores", [[("no evaluation with a table of classes so far", "dim")]], width, glyphs)
    title = f"scores: {shown(done.table_title, glyphs)}" if done.table_title else "scores"
    return pane(title, table_rows(done, width, height - 1, glyphs), width, glyphs, f"after step {done.step:,}")


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
