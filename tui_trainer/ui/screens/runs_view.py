"""The list of runs: which of them are shown and in which order, their cells in a table, and what is known of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tui_trainer.lines.plan_and_events import age_words, loss_words, steps_words
from tui_trainer.runs.comparison import MOST_RUNS, Difference
from tui_trainer.runs.labels import tag_words
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.result import number, plain
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.chart import next_of
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, fit, pad, paragraph, sparkline, title_rule
from tui_trainer.ui.widgets.lists import ColumnList
from tui_trainer.units import GIB, format_bytes

SIGNS: Final = "ABCDEF"
"""What stands for the runs that are compared, in the order in which they were marked."""
# Title, cells, and from which width of the list on; the name has what is left.
_COLUMNS: Final = (
    ("state", 13, 0), ("done", 4, 0), ("curve", 6, 78), ("loss", 7, 100), ("held out", 8, 0), ("score", 18, 116),
    ("OOM", 3, 140), ("began", 16, 126), ("last event", 11, 0), ("size", 10, 78), ("task", 20, 150), ("model", 26, 176),
)  # fmt: skip
# A list that is narrower shows tags in the place of the curve.
_ROOM_FOR_BOTH: Final = 100
_TAGS, _TAGS_CELLS = "tags", 10
_ORDERS: Final[dict[str, Callable[[RunOverview], Any]]] = {
    "run": attrgetter("name"), "state": attrgetter("status_words"), "done": attrgetter("share_done"),
    "loss": attrgetter("loss"), "held out": attrgetter("eval_loss"),
    "score": lambda one: one.scores.get(one.metric, next(iter(one.scores.values()), None)),
    "OOM": attrgetter("out_of_memory_events"), "began": attrgetter("started_at"),
    "last event": attrgetter("last_event_at"), "size": attrgetter("size_bytes"), "task": attrgetter("task"),
    "model": attrgetter("model"), _TAGS: attrgetter("tags"),
}  # fmt: skip
"""What a column is sorted by."""
# Of these more is looked for first.
_FALLING: Final = frozenset({"score", "done", "size", "began", "last event", "OOM"})
_CONDITION: Final = re.compile(r"(loss|held_out|score|size_gib|steps)([<>])(\d+(?:\.\d*)?|\.\d+)")
_MEASURES: Final[dict[str, Callable[[RunOverview], float | None]]] = {
    "loss": _ORDERS["loss"], "held_out": _ORDERS["held out"], "score": _ORDERS["score"],
    "size_gib": lambda one: None if one.size_bytes is None else one.size_bytes / GIB, "steps": attrgetter("step"),
}  # fmt: skip
_RIGHT: Final = frozenset({"done", "OOM", "loss", "held out", "last event", "size"})
_STATE_ROLES: Final[dict[str, Role]] = {
    "training": "good", "preparing": "good", "paused": "warn", "interrupted": "warn", "failed": "bad",
    "unreadable": "bad", "half deleted": "warn", "finished": "text", "stopped": "text",
    "submitted": "text",
}  # fmt: skip
_EXPLANATIONS: Final = {
    "half deleted": "It was being deleted when that was interrupted: deleting it again removes the rest.",
    "no run folder": "No run made what is here: it is left alone.",
    "unreadable": "The system does not let its journal be read, or a link stands in its place.",
    "gone": "Its folder is gone: deleting it takes it off the list.",
}
_MOST_DIFFERENCES: Final = 30


@dataclass
class RunsModel:
    """The runs in their order, which of them match the filter, the chosen one, and those that are marked."""

    found: Sequence[RunOverview] | None = None
    """None: they were not read yet."""
    words: str = ""
    order: str = ""
    """Title of the column that they are sorted by; empty: the newest first."""
    is_reversed: bool = False
    path: Path | None = None
    """Of the chosen one."""
    marked: list[Path] = field(default_factory=list)
    shown: list[RunOverview] = field(default_factory=list)
    place: int = 0
    """Of the chosen one among those shown."""

    def take(self, found: Sequence[RunOverview]) -> None:
        """A newer list. The choice stays with its run, and with its place when the run is not there any more."""
        self.found = found
        listed = {one.path for one in found if one.is_run}
        self.marked = [path for path in self.marked if path in listed]
        self._settle()

    def narrow(self, words: str) -> None:
        """Show those whose name, state, task, model, tags or note have all these words, and to which conditions such as
        `loss<1.5`, `task:chat` and `#tag` apply. Runs that are gone are asked for."""
        self.words = words.lower()
        self._settle()

    def _settle(self) -> None:
        words = self.words.split()

        def matches(one: RunOverview) -> bool:
            parts = (one.name, one.status, one.status_words, one.task, one.model, *one.tags, one.note)
            text = " ".join(parts).lower() if words else ""
            return all(_applies(word, one, text) for word in words) and (one.status != "gone" or "gone" in words)

        self.shown = [one for one in self.found or () if matches(one)]
        if sorted_by := _ORDERS.get(self.order):
            known = [one for one in self.shown if _is_known(sorted_by(one))]
            known.sort(key=sorted_by, reverse=self.falls)
            self.shown = known + [one for one in self.shown if not _is_known(sorted_by(one))]
        here = next((place for place, one in enumerate(self.shown) if one.path == self.path), self.place)
        self.choose(here)

    @property
    def falls(self) -> bool:
        """Whether the largest value of the sorted column comes first."""
        return (self.order in _FALLING) != self.is_reversed

    def sort_by(self, title: str) -> None:
        """By that column, the first of them chosen; the other way round where it is sorted by it already."""
        if title and title not in _ORDERS:
            return
        self.is_reversed = title == self.order and bool(title) and not self.is_reversed
        self.order = title
        self._settle()
        self.choose(0)

    def sort_by_next(self, width: int) -> None:
        self.is_reversed = False
        self.sort_by(next_of(["", "run", *(title for title, _ in self.columns(width) if title in _ORDERS)], self.order))

    def choose(self, place: int) -> None:
        self.place = max(min(place, len(self.shown) - 1), 0)
        self.path = self.shown[self.place].path if self.shown else None

    @property
    def chosen(self) -> RunOverview | None:
        return self.shown[self.place] if self.shown else None

    @property
    def marked_runs(self) -> list[RunOverview]:
        """In the order in which they were marked, also those that the filter does not show."""
        by_path = {one.path: one for one in self.found or ()}
        return [by_path[path] for path in self.marked]

    def toggle_mark(self) -> None:
        if self.path in self.marked:
            self.marked.remove(self.path)
        elif self.path is not None:
            self.marked.append(self.path)

    def toggle_all(self) -> None:
        """Mark all runs that are shown; where they are marked already, take their marks away."""
        shown = [one.path for one in self.shown if one.is_run]
        more = [path for path in shown if path not in self.marked]
        self.marked = [*self.marked, *more] if more else [path for path in self.marked if path not in shown]

    def sign(self, path: Path, glyphs: Glyphs) -> str:
        """What stands before a run: its letter in a comparison, a mark where more are marked, else the pointer."""
        if path in self.marked:
            return SIGNS[self.marked.index(path)] if len(self.marked) <= MOST_RUNS else glyphs.changed
        return glyphs.pointer if path == self.path else " "

    def columns(self, width: int) -> list[tuple[str, int]]:
        """Titles and cells. A curve is worth as many cells as it has values, where they are to be had."""
        has_tags, is_roomy = any(one.tags for one in self.found or ()), width >= _ROOM_FOR_BOTH
        wider = 4 if width >= 180 else 2 if width >= 140 else 1
        tags = [(_TAGS, _TAGS_CELLS + 4 * is_roomy)] * has_tags
        room = width - tags[0][1] if tags and is_roomy else width
        columns = [(title, cells) for title, cells, least in _COLUMNS if room >= least]
        if has_tags and not is_roomy:
            columns = [column for column in columns if column[0] != "curve"]
        return tags + [(title, cells * wider if title == "curve" else cells) for title, cells in columns]


def _is_known(value: object) -> bool:
    return value not in (None, "", ()) and value == value


def _applies(word: str, one: RunOverview, text: str) -> bool:
    if found := _CONDITION.fullmatch(word):
        value, limit = _MEASURES[found[1]](one), float(found[3])
        return value is not None and (value < limit if found[2] == "<" else value > limit)
    if word.startswith("task:"):
        return word.removeprefix("task:") in one.task.lower()
    if word.startswith("#"):
        return any(tag.startswith(word.removeprefix("#")) for tag in one.tags)
    return word in text


def empty_words(model: RunsModel, start_key: str) -> str:
    """What stands in the place of the runs where none is shown."""
    if model.found is None:
        return "reading ..."
    return "no run matches the filter" if model.words else f"no run yet; {start_key} starts one"


def summary(model: RunsModel) -> str:
    """`12 here, 3 with 'chat', 2 marked`."""
    if model.found is None:
        return "reading ..."
    gone = sum(one.status == "gone" for one in model.found)
    parts = [f"{len(model.found) - gone} here"]
    parts += [f"{len(model.shown)} with {one_line(model.words, 30)!r}"] if model.words else []
    parts += [f"sorted by {model.order}{', reversed' * model.is_reversed}"] if model.order else []
    parts += [f"{gone} gone"] if gone else []
    parts += [f"{len(model.marked)} marked"] if model.marked else []
    return ", ".join(parts)


def row_values(one: RunOverview, age: str, columns: Mapping[str, int], glyphs: Glyphs) -> dict[str, str]:
    """The text of each column of a run, made safe."""
    share = one.share_done
    values = {
        "state": one.status_words,
        "done": "" if share is None else f"{int(100 * share)}%",
        "curve": sparkline(one.loss_curve, columns["curve"] - 1, glyphs) if "curve" in columns else "",
        "loss": loss_words(one.loss) if one.is_run else "",
        "held out": loss_words(one.eval_loss) if one.is_run else "",
        "score": one.score,
        "OOM": str(one.out_of_memory_events or "") if one.is_run else "",
        "began": one.started_at[:16].replace("T", " "),
        "last event": age if one.is_run else "",
        "size": format_bytes(one.size_bytes) if one.size_bytes is not None else "",
        "task": one.task,
        "model": one_line(one.came_from.rpartition(" > ")[2]) or Path(one.model).name,
        _TAGS: tag_words(one.tags),
    }
    return {title: one_line(values[title]) for title in columns if title in values}


def row_roles(one: RunOverview) -> dict[str, Role]:
    """Of the columns that do not look as the rest of the row."""
    return {"OOM": "warn", "state": _STATE_ROLES.get(one.status, "dim"), "curve": "chart_smooth", _TAGS: "accent"}


def cut_inside(name: str, cells: int, glyphs: Glyphs) -> str:
    """A name that is too long without its middle: names differ at their ends, in the time."""
    if len(name) <= cells:
        return name
    behind = min(cells * 3 // 4, 15)
    return f"{name[: max(cells - behind - 1, 0)]}{glyphs.ellipsis}{name[-behind:]}"


class RunsTable(ColumnList):
    """A line for each run that is shown, in the columns for which there is room."""

    def __init__(self, model: RunsModel, now: Callable[[], datetime], empty: Callable[[], str]) -> None:
        super().__init__(self._row, lambda: (len(model.shown), model.place), empty=empty, id="runs")
        self._model, self._now = model, now

    def columns(self, width: int) -> dict[str, int]:
        others = {title: cells + 1 for title, cells in self._model.columns(width)}
        return {"run": width - sum(others.values()), **others}

    def title(self, column: str) -> Span:
        """With the direction where the runs are sorted by it."""
        is_sorted = column == self._model.order
        arrow = (self.glyphs.below if self._model.falls else self.glyphs.above) if is_sorted else " "
        text = f" {arrow}{column}" if column == "run" else arrow + column
        return text.rjust(self.widths[column]) if column in _RIGHT else text, "bold" if is_sorted else "dim"

    def _row(self, place: int, width: int) -> Line:
        one, glyphs = self._model.shown[place], self.glyphs
        usual: Role = "text" if one.is_run else "dim"
        roles, cells = row_roles(one), self.widths["run"] - 2
        name = pad(cut_inside(one_line(one.name), cells, glyphs), cells)
        line: Line = [(f"{self._model.sign(one.path, glyphs)} {name}", usual)]
        for title, text in row_values(one, age_words(one, self._now()), self.widths, glyphs).items():
            size = self.widths[title] - 1
            line.append((" " + pad(text.rjust(size) if title in _RIGHT else text, size), roles.get(title, usual)))
        return [(text, "cursor") for text, _ in line] if place == self._model.place else line


def detail_lines(one: RunOverview, now: datetime, width: int, glyphs: Glyphs) -> list[Line]:
    begin: Line = [(glyphs.rule * 2 + " ", "rule"), (one_line(one.name), "title")]
    begin += [(f" {one.status_words} ", _STATE_ROLES.get(one.status, "dim"))]
    begin += [(f"{tag_words(one.tags)} ", "accent")] if one.tags else []
    rows = _facts(one, now) if one.is_run else [_EXPLANATIONS[one.status], f"size {format_bytes(one.size_bytes)}"]
    lines: list[Line] = [fit([*begin, (glyphs.rule * width, "rule")], width, glyphs.rule)]
    lines += paragraph(one.note, width, "bold") if one.note else []
    lines += [row for text in rows for row in paragraph(text, width)]
    return lines + paragraph(one_line(str(one.path)), width, "dim")


def _facts(one: RunOverview, now: datetime) -> list[str]:
    kept = one.stopped_early or one.kept_step is not None
    steps = one.ending if kept else f"steps {steps_words(one)}"
    epoch = "" if one.epoch is None else f", epoch {one.epoch:.2f}"
    best = "" if one.best is None else f", best {plain(one.metric)} {number(one.best)}"
    scores = "".join(f", {plain(name)} {number(value)}" for name, value in one.scores.items())
    age = age_words(one, now) + ("" if one.clock_is_ahead(now) else " ago")
    shortages = one.out_of_memory_events
    memory = f", out of memory {'once' if shortages == 1 else f'{shortages} times'}" if shortages else ""
    freed = "" if one.freed_bytes is None else f", frees {format_bytes(one.freed_bytes)}"
    started = one.started_at[:16].replace("T", " ")
    return [
        f"{one.task or '--'}, {one_line(one.came_from) or one.model or 'from scratch'}, {steps}{epoch}{memory}",
        f"training loss {loss_words(one.loss)}, held-out loss {loss_words(one.eval_loss)}{best}{scores}",
        f"began {started or '--'} UTC, last event {age}, {format_bytes(one.size_bytes)}{freed}",
    ]


def run_before(one: RunOverview, found: Sequence[RunOverview], ancestor: str) -> RunOverview | None:
    """What a run is compared with: the run that its model was started from, else the one of its task before it."""
    others = [other for other in found if other.is_run and other.path != one.path]
    if started_from := [other for other in others if ancestor and other.name == ancestor]:
        return max(started_from, key=lambda other: other.started_at)
    earlier = [other for other in others if other.task == one.task and "" < other.started_at < one.started_at]
    return max(earlier, key=lambda other: other.started_at, default=None)


def difference_lines(
    differences: Sequence[Difference], before: str, is_ancestor: bool, width: int, glyphs: Glyphs
) -> list[Line]:
    """The settings of a run that another one before it does not have: `training.learning_rate  3e-3 -> 1e-3`."""
    why = "started from" if is_ancestor else "the run before"
    name = cut_inside(one_line(before), max(width - 36, 12), glyphs)
    lines: list[Line] = [title_rule(f"differs from {name}", width, glyphs, why)]
    if not differences:
        return [*lines, [("no setting differs", "dim")]]
    for one in differences[:_MOST_DIFFERENCES]:
        old, new = (one_line("--" if value is None else str(value), width) for value in one.values)
        lines += paragraph(f"{one_line(one.key)}  {old} {glyphs.arrow} {new}", width)
    more = len(differences) - _MOST_DIFFERENCES
    return [*lines, [(f"and {more} more", "dim")]] if more > 0 else lines
