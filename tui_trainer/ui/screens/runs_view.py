"""The list of runs without a screen: filter, order and marks, the row of each run, and the details of one."""

from __future__ import annotations

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
from tui_trainer.runs.result import number, plain
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import (
    UNICODE,
    Glyphs,
    Line,
    Role,
    Span,
    change_lines,
    cursor_line,
    fit,
    labelled,
    next_of,
    pad,
    paragraph,
    sparkline,
    title_rule,
    width_of,
)
from tui_trainer.units import GIB, format_bytes

SIGNS: Final = "ABCDEF"
"""Letters of the compared runs, in the order in which they were marked."""
_STATE_ROLES: Final[dict[str, Role]] = {
    "training": "accent", "preparing": "accent", "paused": "warn", "interrupted": "warn", "failed": "bad",
    "unreadable": "bad", "half deleted": "warn", "finished": "good", "stopped": "warn",
}  # fmt: skip
_NAME, _CURVE, _CURVE_CELLS = "run", "curve", (24, 12, 6)
_OF_ANY_FOLDER: Final = (_NAME, "state", "size")
# Longer names are cut before a column is left out.
_SHARE_OF_NAMES, _LABEL_CELLS = 0.4, 11


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list: `text(run, age, cells, glyphs)` gives the text of a cell, `order(run)` the sort key."""

    title: str
    cells: int
    """Most cells. Left-aligned texts may need fewer; the name gets the rest."""
    rank: int
    """Columns of the smallest ranks are shown if not all fit."""
    order: Callable[[RunOverview], Any] | None
    text: Callable[[RunOverview, str, int, Glyphs], str]
    falls: bool = False
    """Whether the largest value comes first if the list is sorted by this column."""
    is_right: bool = False
    role: Callable[[RunOverview], Role] | None = None
    """Colour of the column; None for that of the row."""


def _score(one: RunOverview) -> float | None:
    return one.scores.get(one.metric, next(iter(one.scores.values()), None))


def _state_role(one: RunOverview) -> Role:
    return _STATE_ROLES.get(one.status, "dim")


def _model_words(one: RunOverview) -> str:
    return one_line(one.came_from.rpartition(" > ")[2]) or short_name(one.model)


# fmt: off
COLUMNS: Final = {column.title: column for column in (
    Column(_NAME, 64, 0, attrgetter("name"), lambda one, *_: one.name),
    Column("tags", 12, 3, attrgetter("tags"), lambda one, *_: tag_words(one.tags), role=lambda _: "accent"),
    Column("state", 13, 0, attrgetter("status_words"), lambda one, *_: one.status_words, role=_state_role),
    Column("done", 4, 1, attrgetter("share_done"),
           lambda one, *_: "" if one.share_done is None else f"{int(100 * one.share_done)}%",
           falls=True, is_right=True),
    Column(_CURVE, _CURVE_CELLS[-1], 4, None, lambda one, age, cells, glyphs: sparkline(one.loss_curve, cells, glyphs),
           role=lambda _: "chart_smooth"),
    Column("loss", 7, 10, attrgetter("loss"), lambda one, *_: loss_words(one.loss), is_right=True),
    Column("held out", 8, 2, attrgetter("eval_loss"), lambda one, *_: loss_words(one.eval_loss), is_right=True),
    Column("score", 18, 7, _score, lambda one, *_: one.score, falls=True),
    Column("OOM", 3, 11, attrgetter("out_of_memory_events"), lambda one, *_: str(one.out_of_memory_events or ""),
           falls=True, is_right=True, role=lambda _: "warn"),
    Column("data", 14, 5, attrgetter("data"), lambda one, *_: short_name(one.data.partition(",")[0])),
    Column("model", 18, 6, _model_words, lambda one, *_: _model_words(one)),
    Column("task", 23, 13, attrgetter("task"), lambda one, *_: one.task),
    Column("began", 16, 12, attrgetter("started_at"), lambda one, *_: one.started_at[:16].replace("T", " "),
           falls=True),
    Column("last event", 11, 8, attrgetter("last_event_at"), lambda one, age, *_: age, falls=True, is_right=True),
    Column("size", 10, 9, attrgetter("size_bytes"),
           lambda one, *_: "" if one.size_bytes is None else format_bytes(one.size_bytes), falls=True, is_right=True),
)}
# fmt: on
_ORDERS: Final = {title: column.order for title, column in COLUMNS.items() if column.order}
_Condition = Callable[[RunOverview], bool]
_COMPARISON: Final = re.compile(r"([^<>=]+)(<=|>=|<|>)(-?(?:\d+\.?\d*|\.\d+))")
_SIGNS: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_MEASURES: Final[dict[str, Callable[[RunOverview], float | None]]] = {
    "loss": _ORDERS["loss"], "held_out": _ORDERS["held out"], "score": _ORDERS["score"],
    "size_gib": lambda one: None if one.size_bytes is None else one.size_bytes / GIB, "steps": attrgetter("step"),
}  # fmt: skip
_FIELDS: Final[dict[str, Callable[[RunOverview], str]]] = {
    "model": lambda one: f"{one.model} {one.came_from}", "data": attrgetter("data"), "task": attrgetter("task"),
    "state": lambda one: f"{one.status} {one.status_words}{' running' * one.alive}",
}  # fmt: skip
_EXPLANATIONS: Final = {
    "half deleted": "The deletion of this run was interrupted: delete the run again to remove the rest.",
    "no run folder": "This folder was not created by a run and is kept.",
    "unreadable": "The journal of this run cannot be read, or is a link.",
    "gone": "The folder of this run is gone: delete the run to remove it from the list.",
}
# No terminal has more rows beside the list.
_MOST_DIFFERENCES: Final = 30


@dataclass
class RunsModel:
    """The runs in their order, those that match the filter, the chosen run, and the marked ones."""

    found: Sequence[RunOverview] | None = None
    """All runs; None until they are read."""
    words: str = ""
    order: str = ""
    """Title of the column that the runs are sorted by; if empty, the newest run is first."""
    is_reversed: bool = False
    path: Path | None = None
    """Path of the chosen run."""
    marked: list[Path] = field(default_factory=list)
    shown: list[RunOverview] = field(default_factory=list)
    place: int = 0
    """Place of the chosen run among the shown ones."""
    problem: str = ""
    """Error in the filter, with the words that it takes."""
    without_list: str = ""
    """Reason why no list of runs can be kept."""
    _cells: dict[str, int] = field(default_factory=dict)
    """Cells of each column that is not empty."""

    def take(self, found: Sequence[RunOverview]) -> None:
        """Take a newer list. The choice stays with its run, or with its place if the run is gone."""
        self.found = found
        listed = {one.path for one in found if one.is_run}
        self.marked = [path for path in self.marked if path in listed]
        self._cells = {}
        for title, column in COLUMNS.items():
            shown = (one for one in found if one.is_run or title in _OF_ANY_FOLDER)
            texts = (column.text(one, "age", column.cells, UNICODE).strip() for one in shown)
            if title == _CURVE or column.is_right:
                self._cells[title] = column.cells * any(texts)
            elif longest := max((cell_len(one_line(text)) for text in texts), default=0):
                self._cells[title] = min(max(longest, len(title)), column.cells)
        self._settle()

    def narrow(self, words: str) -> None:
        """Show the runs that have all words in their name, state, task, data, model, tags or note, and that meet
        conditions such as `loss<1.5`, `task:chat` and `#tag`. Runs that are gone are shown only for the word `gone`."""
        self.words = words.lower()
        self._settle()

    def _settle(self) -> None:
        names, words = {name for one in self.found or () for name in one.scores}, self.words.split()
        scores = {name.lower(): lambda one, name=name: one.scores.get(name) for name in sorted(names)}
        conditions = [_condition(word, _MEASURES | scores) for word in words]
        self.problem = next((one for one in conditions if isinstance(one, str)), "")
        known = [one for one in self.found or () if one.status != "gone" or "gone" in words]
        self.shown = [one for one in known if all(isinstance(holds, str) or holds(one) for holds in conditions)]
        if sorted_by := _ORDERS.get(self.order):
            known = [one for one in self.shown if _is_known(sorted_by(one))]
            known.sort(key=sorted_by, reverse=self.falls)
            self.shown = known + [one for one in self.shown if not _is_known(sorted_by(one))]
        here = next((place for place, one in enumerate(self.shown) if one.path == self.path), self.place)
        self.choose(here)

    @property
    def falls(self) -> bool:
        """Whether the largest value of the sorted column comes first."""
        return (self.order in COLUMNS and COLUMNS[self.order].falls) != self.is_reversed

    def sort_by(self, title: str) -> None:
        """Sort by a column and choose the first run. The order is reversed if the list is sorted by it already."""
        if title and title not in _ORDERS:
            return
        self.is_reversed = title == self.order and bool(title) and not self.is_reversed
        self.order = title
        self._settle()
        self.choose(0)

    def sort_by_next(self, width: int) -> None:
        self.is_reversed = False
        self.sort_by(next_of(["", *(title for title, _ in self.columns(width) if title in _ORDERS)], self.order))

    def choose(self, place: int) -> None:
        self.place = max(min(place, len(self.shown) - 1), 0)
        self.path = self.shown[self.place].path if self.shown else None

    @property
    def chosen(self) -> RunOverview | None:
        return self.shown[self.place] if self.shown else None

    @property
    def marked_runs(self) -> list[RunOverview]:
        """Marked runs in the order of marking, including those that the filter hides."""
        by_path = {one.path: one for one in self.found or ()}
        return [by_path[path] for path in self.marked]

    def toggle_mark(self) -> None:
        if self.path in self.marked:
            self.marked.remove(self.path)
        elif self.path is not None:
            self.marked.append(self.path)

    def toggle_all(self) -> None:
        """Mark all shown runs, or remove their marks if all of them are marked."""
        shown = [one.path for one in self.shown if one.is_run]
        more = [path for path in shown if path not in self.marked]
        self.marked = [*self.marked, *more] if more else [path for path in self.marked if path not in shown]

    def sign(self, path: Path, glyphs: Glyphs) -> str:
        """Return the sign before a run: its letter in a comparison, the mark if more are marked, or the pointer."""
        if path in self.marked:
            return SIGNS[self.marked.index(path)] if len(self.marked) <= MOST_RUNS else glyphs.changed
        return glyphs.pointer if path == self.path else " "

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Return titles and cells. The curve is wider where all names are whole."""
        cells = {_NAME: min(self._cells.get(_NAME, 0), int(width * _SHARE_OF_NAMES))}
        room = width - cells[_NAME] - 2
        for column in sorted(COLUMNS.values(), key=attrgetter("rank")):
            wanted = self._cells.get(column.title, 0)
            if column.title != _NAME and 0 < wanted < room:
                cells[column.title] = wanted
                room -= wanted + 1
        if _CURVE in cells:
            room += cells[_CURVE]
            room -= (wider := next(size for size in _CURVE_CELLS if size <= room))
            cells[_CURVE] = wider
        cells[_NAME] += room
        return [(title, cells[title]) for title in COLUMNS if title in cells]


def _is_known(value: object) -> bool:
    return value not in (None, "", ()) and value == value


def _condition(word: str, measures: Mapping[str, Callable[[RunOverview], float | None]]) -> _Condition | str:
    """Return the condition of one word of the filter, or an error message."""
    name, colon, value = word.partition(":")
    if word.startswith("#"):
        return lambda one: any(tag.startswith(word[1:]) for tag in one.tags)
    if not {"<", ">", "="}.isdisjoint(word):
        compared = _COMPARISON.fullmatch(word)
        if compared is None or compared[1] not in measures:
            wrong = f"no run has {compared[1]!r}" if compared else f"{word!r} is not a comparison"
            return one_line(f"{wrong}. Write, for example, loss<1.5. Names: {', '.join(measures)}")
        measure, is_so, limit = measures[compared[1]], _SIGNS[compared[2]], float(compared[3])
        return lambda one: (found := measure(one)) is not None and is_so(found, limit)
    if colon and name not in _FIELDS:
        return f"{one_line(name, 20) + ':'!r} is unknown. Use {': '.join(_FIELDS)}: #tag, or words without a colon"
    if colon:
        return lambda one: value in _FIELDS[name](one).lower()
    return lambda one: word in " ".join((one.name, one.note, *one.tags, *(of(one) for of in _FIELDS.values()))).lower()


def empty_words(model: RunsModel, start_key: str) -> str:
    """Return the words that are shown in place of an empty list."""
    if model.found is None:
        return "reading ..."
    return "no matching runs" if model.words else model.without_list or f"no runs yet; {start_key} starts one"


def summary(model: RunsModel) -> str:
    """Return `12 here, 3 matching 'chat', 2 marked`."""
    if model.found is None:
        return "reading ..."
    gone = sum(one.status == "gone" for one in model.found)
    parts = [f"{len(model.found) - gone} here"]
    parts += [f"{len(model.shown)} matching {one_line(model.words, 30)!r}"] if model.words else []
    parts += [f"sorted by {model.order}{', reversed' * model.is_reversed}"] if model.order else []
    parts += [f"{gone} gone"] if gone else []
    parts += [f"{len(model.marked)} marked"] if model.marked else []
    return ", ".join(parts)


def cut_inside(name: str, cells: int, glyphs: Glyphs) -> str:
    """Return a name that fits by cutting its middle: a name starts with the data and ends with the time."""
    if cell_len(name) <= cells:
        return name
    end = set_cell_size(name[::-1], cells // 3).rstrip()[::-1]
    return f"{set_cell_size(name, max(cells - cell_len(end) - 1, 0)).rstrip()}{glyphs.ellipsis}{end}"


def run_titles(model: RunsModel, width: int, glyphs: Glyphs) -> list[tuple[str, Span]]:
    """Return the titles of the columns, with the direction where the runs are sorted by one."""
    titles = list[tuple[str, Span]]()
    for title, cells in model.columns(width):
        is_sorted, lead = title == model.order, " " * (title == _NAME)
        text = lead + ((glyphs.below if model.falls else glyphs.above) if is_sorted else " ") + title
        text = text.rjust(cells + 1) if COLUMNS[title].is_right else text
        titles.append((title, (pad(text, cells + 1 + len(lead)), "bold" if is_sorted else "dim")))
    return titles


def run_row(model: RunsModel, place: int, now: datetime, width: int, glyphs: Glyphs) -> Line:
    """Return the row of a run in the columns of the list."""
    one = model.shown[place]
    usual: Role = "text" if one.is_run else "dim"
    age, line = age_words(one, now), [(model.sign(one.path, glyphs), usual)]
    for title, size in model.columns(width):
        column = COLUMNS[title]
        text = one_line(column.text(one, age, size, glyphs)) if one.is_run or title in _OF_ANY_FOLDER else ""
        text = text.rjust(size) if column.is_right else cut_inside(text, size, glyphs)
        role = column.role(one) if column.role else usual
        line += [(" ", "text"), *fit([(text, role)], size, glyphs.ellipsis)]
    return cursor_line(line) if place == model.place else line


def detail_lines(one: RunOverview, now: datetime, width: int, glyphs: Glyphs, *, is_wide: bool = True) -> list[Line]:
    """Return the facts about a run: one in each line, or as many as fit unless `is_wide`."""
    state: Line = [(f" {one.status_words} ", _state_role(one))]
    state += [(f"{tag_words(one.tags)} ", "accent")] if one.tags else []
    name = cut_inside(one_line(one.name), max(width - 4 - width_of(state), 12), glyphs)
    begin: Line = [(glyphs.rule * 2 + " ", "rule"), (name, "title"), *state]
    lines: list[Line] = [fit([*begin, (glyphs.rule * width, "rule")], width, glyphs.rule)]
    lines += paragraph(one.note, width, "bold") if one.note else []
    lines += paragraph(one_line(str(one.path)), width, "dim")
    packed = list[Line]()
    for label, text in _facts(one, now).items():
        fact: Line = [(f"{label} ", "dim"), (text, "text")]
        if is_wide or width_of(fact) > width:
            lines += labelled(label, text, _LABEL_CELLS, width)
        elif packed and width_of(packed[-1]) + 3 + width_of(fact) <= width:
            packed[-1] += [("   ", "text"), *fact]
        else:
            packed.append(fact)
    return lines + packed


def _facts(one: RunOverview, now: datetime) -> dict[str, str]:
    """Return the facts about a run by their labels."""
    if not one.is_run:
        return {"folder": _EXPLANATIONS[one.status], "size": format_bytes(one.size_bytes)}
    is_shared = one.freed_bytes is not None and one.freed_bytes != one.size_bytes
    facts = {
        "task": one.task,
        "data": one_line(one.data),
        "model": one_line(one.came_from or one.model) or "from scratch",
        "steps": steps_words(one),
        "epoch": "" if one.epoch is None else f"{one.epoch:.2f}",
        "loss": f"{loss_words(one.loss)}, held out {loss_words(one.eval_loss)}",
        "best": "" if one.best is None else f"{plain(one.metric)} {number(one.best)}",
        "scores": ", ".join(f"{plain(name)} {number(value)}" for name, value in one.scores.items()),
        "memory": f"ran out {shortages} time{'s' * (shortages > 1)}" if (shortages := one.out_of_memory_events) else "",
        "started": f"{one.started_at[:16].replace('T', ' ')} UTC" if one.started_at else "",
        "last event": age_words(one, now) + " ago" * ((one.age_seconds(now) or 0) >= 0),
        "size": format_bytes(one.size_bytes) + f" (deleting it frees {format_bytes(one.freed_bytes or 0)})" * is_shared,
    }
    return {label: text for label, text in facts.items() if text}


def run_before(one: RunOverview, found: Sequence[RunOverview], ancestor: str) -> RunOverview | None:
    """Return the run to compare with: the one that the model was started from, or the previous one of the task."""
    others = [other for other in found if other.is_run and other.path != one.path]
    started_from = [other for other in others if ancestor and other.name == ancestor]
    earlier = [other for other in others if other.task == one.task and "" < other.started_at < one.started_at]
    return max(started_from or earlier, key=lambda other: other.started_at, default=None)


def difference_lines(
    differences: Sequence[Difference], before: str, is_ancestor: bool, width: int, glyphs: Glyphs
) -> list[Line]:
    """Return the settings in which a run differs from an earlier one: `training.learning_rate  3e-3 -> 1e-3`."""
    why = "started from" if is_ancestor else "previous run"
    name = cut_inside(one_line(before), max(width - 36, 12), glyphs)
    lines: list[Line] = [title_rule(f"differs from {name}", width, glyphs, why)]
    if not differences:
        return [*lines, [("same settings", "dim")]]
    texts = [(one.key, *map(value_words, one.values)) for one in differences[:_MOST_DIFFERENCES]]
    return [*lines, *change_lines(texts, width, glyphs)]
