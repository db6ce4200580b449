"""Content of the Runs screen as plain data: filter, order and marks of the list, its rows, and a run's details."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from tui_trainer.files.local_paths import short_name
from tui_trainer.lines.plan_and_events import age_words, loss_words, steps_words
from tui_trainer.runs.comparison import MOST_RUNS, Difference, value_words
from tui_trainer.runs.labels import tag_words
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.result import display_name, format_score
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import spans
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, fit, labelled, pad, paragraph, title_rule, width_of
from tui_trainer.units import GIB, format_bytes, quantity

RUN_LETTERS: Final = "ABCDEF"
"""Letters of the compared runs, in the order in which they were marked."""
_STATE_ROLES: Final[dict[str, Role]] = {
    "training": "accent", "preparing": "accent", "paused": "warn", "interrupted": "warn", "failed": "bad",
    "unreadable": "bad", "half deleted": "warn", "finished": "good", "stopped": "warn",
}  # fmt: skip
_NAME, _CURVE, _CURVE_CELLS = "run", "curve", (24, 12, 6)
# Columns that are also filled for folders that are not runs.
_OF_ANY_FOLDER: Final = (_NAME, "state", "size")
# A name that is longer than this share of the width is cut, so that more columns fit.
_SHARE_OF_NAMES, _LABEL_CELLS = 0.4, 11


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list: `text(run, age, cells, glyphs)` gives the text of a cell, `order(run)` the sort key."""

    title: str
    cells: int
    """Largest width in cells. A column of short texts is narrower; the name gets the remaining cells."""
    rank: int
    """Priority: if not all columns fit, those with the smallest ranks are shown."""
    order: Callable[[RunOverview], Any] | None
    text: Callable[[RunOverview, str, int, Glyphs], str]
    is_descending: bool = False
    """Whether the largest value comes first if the list is sorted by this column."""
    is_right: bool = False
    role: Callable[[RunOverview], Role] | None = None
    """Function that returns the role of a cell; None for the role of the whole row."""


def _model_words(run: RunOverview) -> str:
    return one_line(run.came_from.rpartition(" > ")[2]) or short_name(run.model)


# fmt: off
COLUMNS: Final = {column.title: column for column in (
    Column(_NAME, 64, 0, attrgetter("name"), lambda run, *_: run.name),
    Column("tags", 12, 3, attrgetter("tags"), lambda run, *_: tag_words(run.tags), role=lambda _: "accent"),
    Column("state", 13, 0, attrgetter("status_words"), lambda run, *_: run.status_words,
           role=lambda run: _STATE_ROLES.get(run.status, "dim")),
    Column("done", 4, 1, attrgetter("share_done"),
           lambda run, *_: "" if run.share_done is None else f"{int(100 * run.share_done)}%",
           is_descending=True, is_right=True),
    Column(_CURVE, _CURVE_CELLS[-1], 4, None,
           lambda run, _, cells, glyphs: spans.sparkline(run.loss_curve, cells, glyphs), role=lambda _: "chart_smooth"),
    Column("loss", 7, 10, attrgetter("loss"), lambda run, *_: loss_words(run.loss), is_right=True),
    Column("held out", 8, 2, attrgetter("eval_loss"), lambda run, *_: loss_words(run.eval_loss), is_right=True),
    Column("score", 18, 7, lambda run: run.scores.get(run.metric, next(iter(run.scores.values()), None)),
           lambda run, *_: run.score, is_descending=True),
    Column("OOM", 3, 11, attrgetter("out_of_memory_events"), lambda run, *_: str(run.out_of_memory_events or ""),
           is_descending=True, is_right=True, role=lambda _: "warn"),
    Column("data", 14, 5, attrgetter("data"), lambda run, *_: short_name(run.data.partition(",")[0])),
    Column("model", 18, 6, _model_words, lambda run, *_: _model_words(run)),
    Column("task", 23, 13, attrgetter("task"), lambda run, *_: run.task),
    Column("began", 16, 12, attrgetter("started_at"), lambda run, *_: run.started_at[:16].replace("T", " "),
           is_descending=True),
    Column("last event", 11, 8, attrgetter("last_event_at"), lambda run, age, *_: age, is_descending=True,
    is_right=True),
    Column("size", 10, 9, attrgetter("size_bytes"),
           lambda run, *_: "" if run.size_bytes is None else format_bytes(run.size_bytes), is_descending=True,
           is_right=True),
)}
# fmt: on
_ORDERS: Final = {title: column.order for title, column in COLUMNS.items() if column.order}
_Condition = Callable[[RunOverview], bool]
_COMPARISON: Final = re.compile(r"([^<>=]+)(<=|>=|<|>)(-?(?:\d+\.?\d*|\.\d+))")
_SIGNS: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_Measure = Callable[[RunOverview], float | None]
_MEASURES: Final[dict[str, _Measure]] = {
    "loss": _ORDERS["loss"], "held_out": _ORDERS["held out"], "score": _ORDERS["score"],
    "size_gib": lambda run: None if run.size_bytes is None else run.size_bytes / GIB, "steps": attrgetter("step"),
}  # fmt: skip
_FIELDS: Final[dict[str, Callable[[RunOverview], str]]] = {
    "model": lambda run: f"{run.model} {run.came_from}", "data": attrgetter("data"), "task": attrgetter("task"),
    "state": lambda run: f"{run.status} {run.status_words}{' running' * run.alive}",
}  # fmt: skip
_EXPLANATIONS: Final = {
    "half deleted": "The deletion of this run was interrupted: delete the run again to remove the rest.",
    "no run folder": "This folder was not created by a run and is kept.",
    "unreadable": "This run cannot be shown, because its journal is unreadable or a symbolic link.",
    "gone": "The folder of this run is gone: delete the run to remove it from the list.",
}
# No terminal has more rows beside the list.
_MOST_DIFFERENCES: Final = 30


@dataclass
class RunsModel:
    """State of the list: all runs, the shown runs in their order, the chosen run, and the marked runs."""

    all_runs: Sequence[RunOverview] | None = None
    """All runs; None until they are read."""
    words: str = ""
    order: str = ""
    """Title of the column that the runs are sorted by; if empty, the newest run is first."""
    is_reversed: bool = False
    path: Path | None = None
    """Path of the chosen run; None if none is shown."""
    marked: list[Path] = field(default_factory=list)
    shown_runs: list[RunOverview] = field(default_factory=list)
    chosen_index: int = 0
    """Index of the chosen run among the shown ones."""
    problem: str = ""
    """Error message about the filter, which lists the valid names; empty if the filter is valid."""
    without_list: str = ""
    """Reason why the list of runs cannot be stored; empty if it can be."""
    _cells: dict[str, int] = field(default_factory=dict)
    """Width of each column in cells, by title; 0 or missing for a column without any text."""

    def set_runs(self, runs: Sequence[RunOverview]) -> None:
        """Replace the list of runs. The same run stays chosen, or if it is gone, the run now at its index."""
        self.all_runs = runs
        run_paths = {run.path for run in runs if run.is_run}
        self.marked = [path for path in self.marked if path in run_paths]
        self._cells = {}
        for title, column in COLUMNS.items():
            column_runs = (run for run in runs if run.is_run or title in _OF_ANY_FOLDER)
            texts = (column.text(run, "age", column.cells, spans.UNICODE).strip() for run in column_runs)
            if title == _CURVE or column.is_right:
                self._cells[title] = column.cells * any(texts)
            elif longest_cells := max((cell_len(one_line(text)) for text in texts), default=0):
                self._cells[title] = min(max(longest_cells, len(title)), column.cells)
        self._settle()

    def narrow(self, words: str) -> None:
        """Show the runs that have all words in their name, state, task, data, model, tags or note, and that meet
        conditions such as `loss<1.5`, `task:chat` and `#tag`. Runs that are gone are shown only for the word `gone`."""
        self.words = words.lower()
        self._settle()

    def _settle(self) -> None:
        """Filter and sort the runs. Runs without a value in the sorted column come last."""
        score_names, words = {name for run in self.all_runs or () for name in run.scores}, self.words.split()
        score_measures = {name.lower(): lambda run, name=name: run.scores.get(name) for name in sorted(score_names)}
        conditions = [_condition(word, _MEASURES | score_measures) for word in words]
        self.problem = next((condition for condition in conditions if isinstance(condition, str)), "")
        runs = [run for run in self.all_runs or () if run.status != "gone" or "gone" in words]
        self.shown_runs = [run for run in runs if all(isinstance(test, str) or test(run) for test in conditions)]
        if sort_key := _ORDERS.get(self.order):
            sorted_runs = [run for run in self.shown_runs if _is_known(sort_key(run))]
            sorted_runs.sort(key=sort_key, reverse=self.is_descending)
            self.shown_runs = sorted_runs + [run for run in self.shown_runs if not _is_known(sort_key(run))]
        indices = (index for index, run in enumerate(self.shown_runs) if run.path == self.path)
        self.choose(next(indices, self.chosen_index))

    @property
    def is_descending(self) -> bool:
        """Whether the largest value of the sorted column comes first."""
        return (self.order in COLUMNS and COLUMNS[self.order].is_descending) != self.is_reversed

    def sort_by(self, title: str) -> None:
        """Sort by a column and choose the first run. If the list is sorted by this column already, reverse it."""
        if title and title not in _ORDERS:
            return
        self.is_reversed = title == self.order and bool(title) and not self.is_reversed
        self.order = title
        self._settle()
        self.choose(0)

    def sort_by_next(self, width: int) -> None:
        self.is_reversed = False
        self.sort_by(spans.next_of(["", *(title for title, _ in self.columns(width) if title in _ORDERS)], self.order))

    def choose(self, index: int) -> None:
        self.chosen_index = max(min(index, len(self.shown_runs) - 1), 0)
        self.path = self.shown_runs[self.chosen_index].path if self.shown_runs else None

    @property
    def chosen(self) -> RunOverview | None:
        return self.shown_runs[self.chosen_index] if self.shown_runs else None

    @property
    def marked_runs(self) -> list[RunOverview]:
        """Marked runs in the order of marking, including those that the filter hides."""
        by_path = {run.path: run for run in self.all_runs or ()}
        return [by_path[path] for path in self.marked]

    def toggle_mark(self) -> None:
        if self.path in self.marked:
            self.marked.remove(self.path)
        elif self.path is not None:
            self.marked.append(self.path)

    def toggle_all(self) -> None:
        """Mark all shown runs. If all of them are marked already, remove their marks."""
        shown_paths = [run.path for run in self.shown_runs if run.is_run]
        paths = [path for path in shown_paths if path not in self.marked]
        self.marked = [*self.marked, *paths] if paths else [path for path in self.marked if path not in shown_paths]

    def sign(self, path: Path, glyphs: Glyphs) -> str:
        """Return the sign before a run: its letter or a mark if it is marked, the pointer if it is chosen, or " "."""
        if path in self.marked:
            return RUN_LETTERS[self.marked.index(path)] if len(self.marked) <= MOST_RUNS else glyphs.changed
        return glyphs.pointer if path == self.path else " "

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Return title and width of each column that fits. The curve widens into free cells; the name gets the rest."""
        cells = {_NAME: min(self._cells.get(_NAME, 0), int(width * _SHARE_OF_NAMES))}
        free_cells = width - cells[_NAME] - 2
        for column in sorted(COLUMNS.values(), key=attrgetter("rank")):
            column_cells = self._cells.get(column.title, 0)
            if column.title != _NAME and 0 < column_cells < free_cells:
                cells[column.title] = column_cells
                free_cells -= column_cells + 1
        if _CURVE in cells:
            free_cells += cells[_CURVE]
            free_cells -= (curve_cells := next(size for size in _CURVE_CELLS if size <= free_cells))
            cells[_CURVE] = curve_cells
        cells[_NAME] += free_cells
        return [(title, cells[title]) for title in COLUMNS if title in cells]


def _is_known(value: object) -> bool:
    return value not in (None, "", ()) and value == value


def _condition(word: str, measures: Mapping[str, _Measure]) -> _Condition | str:
    """Return a function that tests a run against one word of the filter, or an error message for an invalid word."""
    name, colon, value = word.partition(":")
    if word.startswith("#"):
        return lambda run: any(tag.startswith(word[1:]) for tag in run.tags)
    if not {"<", ">", "="}.isdisjoint(word):
        comparison = _COMPARISON.fullmatch(word)
        if comparison is None or comparison[1] not in measures:
            problem = f"no run has {comparison[1]!r}" if comparison else f"{word!r} is not a comparison"
            return one_line(f"{problem}. Write, for example, loss<1.5. Names: {', '.join(measures)}")
        measure, compare, limit = measures[comparison[1]], _SIGNS[comparison[2]], float(comparison[3])
        return lambda run: (value := measure(run)) is not None and compare(value, limit)
    if colon and name not in _FIELDS:
        return f"{one_line(name, 20) + ':'!r} is unknown. Use {': '.join(_FIELDS)}: #tag, or words without a colon"
    if colon:
        return lambda run: value in _FIELDS[name](run).lower()
    getters = _FIELDS.values()
    return lambda run: word in " ".join((run.name, run.note, *run.tags, *(get(run) for get in getters))).lower()


def empty_words(model: RunsModel, start_key: str) -> str:
    """Return the text that replaces an empty list."""
    if model.all_runs is None:
        return "reading ..."
    return "no matching runs" if model.words else model.without_list or f"no runs yet; {start_key} starts one"


def summary(model: RunsModel) -> str:
    """Return a line such as `12 here, 3 matching 'chat', 2 marked`."""
    if model.all_runs is None:
        return "reading ..."
    gone_count = sum(run.status == "gone" for run in model.all_runs)
    return ", ".join(filter(None, (
        quantity(len(model.all_runs) - gone_count, "run"),
        f"{len(model.shown_runs)} matching {one_line(model.words, 30)!r}" if model.words else "",
        f"sorted by {model.order}{', reversed' * model.is_reversed}" if model.order else "",
        f"{gone_count} gone" if gone_count else "",
        f"{len(model.marked)} marked" if model.marked else "",
    )))  # fmt: skip


def cut_inside(name: str, cells: int, glyphs: Glyphs) -> str:
    """Return the name in at most `cells` cells. A long name loses its middle, and keeps its start and its end."""
    if cell_len(name) <= cells:
        return name
    ending = set_cell_size(name[::-1], cells // 3).rstrip()[::-1]
    return f"{set_cell_size(name, max(cells - cell_len(ending) - 1, 0)).rstrip()}{glyphs.ellipsis}{ending}"


def run_titles(model: RunsModel, width: int, glyphs: Glyphs) -> list[tuple[str, Span]]:
    """Return `(title, styled text)` of each column. The text of the sorted column has a sign for the direction."""
    titles: list[tuple[str, Span]] = []
    for title, cells in model.columns(width):
        is_sorted, indent = title == model.order, " " * (title == _NAME)
        text = indent + ((glyphs.below if model.is_descending else glyphs.above) if is_sorted else " ") + title
        text = text.rjust(cells + 1) if COLUMNS[title].is_right else text
        titles.append((title, (pad(text, cells + 1 + len(indent)), "bold" if is_sorted else "dim")))
    return titles


def run_row(model: RunsModel, index: int, now: datetime, width: int, glyphs: Glyphs) -> Line:
    run = model.shown_runs[index]
    default_role: Role = "text" if run.is_run else "dim"
    age, line = age_words(run, now), [(model.sign(run.path, glyphs), default_role)]
    for title, cells in model.columns(width):
        column = COLUMNS[title]
        text = one_line(column.text(run, age, cells, glyphs)) if run.is_run or title in _OF_ANY_FOLDER else ""
        text = text.rjust(cells) if column.is_right else cut_inside(text, cells, glyphs)
        role = column.role(run) if column.role else default_role
        line += [(" ", "text"), *fit([(text, role)], cells, glyphs.ellipsis)]
    return spans.cursor_line(line) if index == model.chosen_index else line


def detail_lines(run: RunOverview, now: datetime, width: int, glyphs: Glyphs, *, is_wide: bool = True) -> list[Line]:
    """Return the facts about a run. If `is_wide`, each fact has a line of its own; otherwise several share a line."""
    state: Line = [(f" {run.status_words} ", _STATE_ROLES.get(run.status, "dim"))]
    state += [(f"{tag_words(run.tags)} ", "accent")] if run.tags else []
    name = cut_inside(one_line(run.name), max(width - 4 - width_of(state), 12), glyphs)
    title_start: Line = [(glyphs.rule * 2 + " ", "rule"), (name, "title"), *state]
    lines: list[Line] = [fit([*title_start, (glyphs.rule * width, "rule")], width, glyphs.rule)]
    lines += paragraph(run.note, width, "bold") if run.note else []
    lines += paragraph(one_line(str(run.path)), width, "dim")
    packed_lines: list[Line] = []
    for label, text in _facts(run, now).items():
        fact: Line = [(f"{label} ", "dim"), (text, "text")]
        if is_wide or width_of(fact) > width:
            lines += labelled(label, text, _LABEL_CELLS, width)
        elif packed_lines and width_of(packed_lines[-1]) + 3 + width_of(fact) <= width:
            packed_lines[-1] += [("   ", "text"), *fact]
        else:
            packed_lines.append(fact)
    return lines + packed_lines


def _facts(run: RunOverview, now: datetime) -> dict[str, str]:
    if not run.is_run:
        return {"folder": _EXPLANATIONS[run.status], "size": format_bytes(run.size_bytes)}
    is_shared = run.freed_bytes is not None and run.freed_bytes != run.size_bytes
    facts = {
        "task": run.task,
        "data": one_line(run.data),
        "model": one_line(run.came_from or run.model) or "from scratch",
        "steps": steps_words(run),
        "epoch": "" if run.epoch is None else f"{run.epoch:.2f}",
        "loss": f"{loss_words(run.loss)}, held out {loss_words(run.eval_loss)}",
        "best": "" if run.best is None else f"{display_name(run.metric)} {format_score(run.best)}",
        "scores": ", ".join(f"{display_name(name)} {format_score(value)}" for name, value in run.scores.items()),
        "memory": f"ran out {quantity(shortages, 'time')}" if (shortages := run.out_of_memory_events) else "",
        "started": f"{run.started_at[:16].replace('T', ' ')} UTC" if run.started_at else "",
        "last event": age_words(run, now) + " ago" * ((run.age_seconds(now) or 0) >= 0),
        "size": format_bytes(run.size_bytes) + f" (deleting it frees {format_bytes(run.freed_bytes or 0)})" * is_shared,
    }
    return {label: text for label, text in facts.items() if text}


def run_before(run: RunOverview, runs: Sequence[RunOverview], ancestor: str) -> RunOverview | None:
    """Return the run to compare `run` with: the run named `ancestor`, else the previous run of the same task."""
    other_runs = [other for other in runs if other.is_run and other.path != run.path]
    ancestors = [other for other in other_runs if ancestor and other.name == ancestor]
    earlier_runs = [other for other in other_runs if other.task == run.task and "" < other.started_at < run.started_at]
    return max(ancestors or earlier_runs, key=lambda other: other.started_at, default=None)


def difference_lines(
    differences: Sequence[Difference], before: str, is_ancestor: bool, width: int, glyphs: Glyphs
) -> list[Line]:
    """Return a title and one line for each differing setting, such as `training.learning_rate  3e-3 -> 1e-3`."""
    note = "started from" if is_ancestor else "previous run"
    name = cut_inside(one_line(before), max(width - 36, 12), glyphs)
    lines: list[Line] = [title_rule(f"differs from {name}", width, glyphs, note)]
    if not differences:
        return [*lines, [("same settings", "dim")]]
    texts = [(setting.key, *map(value_words, setting.values)) for setting in differences[:_MOST_DIFFERENCES]]
    return [*lines, *spans.change_lines(texts, width, glyphs)]
