"""5 Runs: all runs of this disk, the newest first or sorted by a column; what can be done with each, and several
compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Click, ScreenResume
from textual.widget import Widget

from tui_trainer.errors import FolderError, InputError, Problem
from tui_trainer.lines.comparison_lines import comparison_lines
from tui_trainer.lines.plan_and_events import age_words, loss_words, steps_words
from tui_trainer.runs import at_rest
from tui_trainer.runs.comparison import LEAST_RUNS, MOST_RUNS, Comparison, CurvePoint, compare
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import Overviews, RunOverview
from tui_trainer.runs.result import number, plain
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.chart import GUTTER, Bounds, Raster, column_of, row_of, settle, with_y_axis, x_axis
from tui_trainer.ui.commands import offer_more
from tui_trainer.ui.dialogs import Answer, Dialog, Row, TextDialog
from tui_trainer.ui.keymap import Action
from tui_trainer.ui.page import NO_REPORT, ListPage, bindings
from tui_trainer.ui.run_dialogs import ExportDialog, show_and_try
from tui_trainer.ui.spans import Glyphs, Line, Role, beside, fit, pad, paragraph, sparkline
from tui_trainer.ui.starting import offer_resume, offer_stop, take_settings_of
from tui_trainer.ui.widgets.lists import LineField, LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import GIB, format_bytes

# The list of runs as lines, what is known about the chosen one, and two to six runs beside each other.

SIGNS: Final = "ABCDEF"
"""What stands for the runs that are compared, in the order in which they were marked."""
# Title, cells, and from which width of the screen on; the name has what is left.
_COLUMNS: Final = (
    ("state", 13, 0), ("done", 4, 0), ("curve", 6, 0), ("loss", 7, 100), ("held out", 8, 0), ("score", 18, 120),
    ("OOM", 3, 140), ("began", 16, 130), ("last event", 11, 0), ("size", 10, 0), ("task", 20, 160), ("model", 26, 180),
)  # fmt: skip
_ORDERS: Final[dict[str, Callable[[RunOverview], Any]]] = {
    "run": attrgetter("name"), "state": attrgetter("status_words"), "done": attrgetter("share_done"),
    "loss": attrgetter("loss"), "held out": attrgetter("eval_loss"),
    "score": lambda one: one.scores.get(one.metric, next(iter(one.scores.values()), None)),
    "OOM": attrgetter("out_of_memory_events"), "began": attrgetter("started_at"),
    "last event": attrgetter("last_event_at"), "size": attrgetter("size_bytes"), "task": attrgetter("task"),
    "model": attrgetter("model"),
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
ROLES: Final[tuple[Role, ...]] = ("accent", "warn", "good", "bad", "text", "chart_raw")
_Points = Sequence[tuple[float, float]]
_FIELDS: Final = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}


@dataclass
class RunsModel:
    """The runs in their order, which of them match the filter, the chosen one, and those marked for comparing."""

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
        """Show those whose name, state, task or model have all these words, and to which conditions such as `loss<1.5`
        and `task:chat` apply. Runs that are gone are asked for."""
        self.words = words.lower()
        self._settle()

    def _settle(self) -> None:
        words = self.words.split()

        def matches(one: RunOverview) -> bool:
            text = f"{one.name} {one.status} {one.status_words} {one.task} {one.model}".lower()
            return all(_applies(word, one, text) for word in words) and (one.status != "gone" or "gone" in words)

        self.shown = [one for one in self.found or () if matches(one)]
        if sorted_by := _ORDERS.get(self.order):
            known = [one for one in self.shown if _is_known(sorted_by(one))]
            falls = (self.order in _FALLING) != self.is_reversed
            known.sort(key=sorted_by, reverse=falls)
            self.shown = known + [one for one in self.shown if not _is_known(sorted_by(one))]
        here = next((place for place, one in enumerate(self.shown) if one.path == self.path), self.place)
        self.choose(here)

    def sort_by(self, title: str) -> None:
        """By that column, the first of them chosen; the other way round where it is sorted by it already."""
        self.is_reversed = title == self.order and bool(title) and not self.is_reversed
        self.order = title
        self._settle()
        self.choose(0)

    def sort_by_next(self, width: int) -> None:
        titles = ["", "run", *(title for title, _ in _columns(width) if title in _ORDERS)]
        self.is_reversed = False
        self.sort_by(titles[(titles.index(self.order) + 1) % len(titles)] if self.order in titles else "")

    def choose(self, place: int) -> None:
        self.place = max(min(place, len(self.shown) - 1), 0)
        self.path = self.shown[self.place].path if self.shown else None

    @property
    def chosen(self) -> RunOverview | None:
        return self.shown[self.place] if self.shown else None

    def toggle_mark(self) -> str:
        if self.path is None or self.path in self.marked:
            self.marked = [path for path in self.marked if path != self.path]
        elif len(self.marked) == MOST_RUNS:
            return f"no more than {MOST_RUNS} runs are compared"
        else:
            self.marked.append(self.path)
        return ""


def _is_known(value: object) -> bool:
    return value not in (None, "") and value == value


def _applies(word: str, one: RunOverview, text: str) -> bool:
    if found := _CONDITION.fullmatch(word):
        value, limit = _MEASURES[found[1]](one), float(found[3])
        return value is not None and (value < limit if found[2] == "<" else value > limit)
    if word.startswith("task:"):
        return word.removeprefix("task:") in one.task.lower()
    return word in text


def refusal(action: str, one: RunOverview, stop_key: str) -> str:
    if action in ("open", "resume", "stop", "mark", "new", "rename") and not one.is_run:
        return f"{one.name} is {'' if one.status == 'no run folder' else 'a run that is '}{one.status}"
    if action == "stop" and not one.alive:
        waits = "waits in the queue: open it, and stop it there"
        return f"{one.name} {waits if one.status == 'submitted' else 'is not running'}"
    if action in ("resume", "rename", "delete") and one.alive:
        return f"{one.name} is running; {stop_key} stops it"
    if action == "resume" and one.status == "finished" and one.has_model:
        return f"{one.name} is finished"
    if action == "more" and (not one.is_run or one.alive):
        return f"{one.name} {'is running' if one.alive else f'is {one.status}'}"
    if action == "export" and one.status != "finished":
        return f"{one.name} is {one.status}: a finished run has a model to export"
    if action == "delete" and one.status == "no run folder":
        return "no run made this folder: it is left alone"
    return ""


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


def head(width: int, order: str = "") -> Line:
    titles = {title: title for title in ("run", *(title for title, _ in _columns(width)))}
    return [("  ", "text"), *((text, "bold" if title == order else "dim") for text, title in _cells(titles, width))]


def column_at(x: int, width: int) -> str:
    """The title of the column in that cell of the head; empty where there is none that can be sorted by."""
    end = 2
    for text, title in _cells(dict.fromkeys(("run", *(title for title, _ in _columns(width))), ""), width):
        end += len(text)
        if x < end:
            return title if title in _ORDERS else ""
    return ""


class Head(Pane):
    """The titles of the columns; a click on one sorts by it."""

    ALLOW_SELECT = False

    def __init__(self, page: RunsPage) -> None:
        super().__init__(lambda width, _: [head(width, page.model.order)], id="head")
        self._page = page

    def on_click(self, event: Click) -> None:
        if title := column_at(event.x, self.size.width):
            self._page.model.sort_by(title)
            self._page.bench.app.draw()


def run_row(one: RunOverview, model: RunsModel, width: int, now: datetime, glyphs: Glyphs) -> Line:
    is_chosen = one.path == model.path
    sign = SIGNS[model.marked.index(one.path)] if one.path in model.marked else glyphs.pointer if is_chosen else " "
    share = one.share_done
    values = {
        "run": _cut_inside(one_line(one.name), _name_cells(width), glyphs),
        "state": one.status_words,
        "done": "" if share is None else f"{int(100 * share)}%",
        "curve": sparkline(one.loss_curve, dict(_columns(width))["curve"], glyphs),
        "loss": loss_words(one.loss) if one.is_run else "",
        "held out": loss_words(one.eval_loss) if one.is_run else "",
        "score": one.score,
        "OOM": str(one.out_of_memory_events or "") if one.is_run else "",
        "began": one.started_at[:16].replace("T", " "),
        "last event": age_words(one, now) if one.is_run else "",
        "size": format_bytes(one.size_bytes) if one.size_bytes is not None else "",
        "task": one.task,
        "model": one_line(one.came_from.rpartition(" > ")[2]) or Path(one.model).name,
    }
    roles: dict[str, Role] = {"OOM": "warn", "state": _STATE_ROLES.get(one.status, "dim"), "curve": "chart_smooth"}
    usual: Role = "text" if one.is_run else "dim"
    line: Line = [(f"{sign} ", "accent")]
    line += [(text, roles.get(title, usual)) for text, title in _cells(values, width)]
    return [(text, "cursor") for text, _ in line] if is_chosen else line


def _columns(width: int) -> list[tuple[str, int]]:
    """Titles and cells. A curve is worth as many cells as it has values, where they are to be had."""
    wider = 4 if width >= 160 else 2 if width >= 120 else 1
    columns = [(title, cells) for title, cells, least in _COLUMNS if width >= least]
    return [(title, cells * wider if title == "curve" else cells) for title, cells in columns]


def _name_cells(width: int) -> int:
    return width - 2 - sum(cells + 1 for _, cells in _columns(width))


def _cells(values: dict[str, str], width: int) -> list[tuple[str, str]]:
    cells = [(pad(one_line(values["run"]), _name_cells(width)), "run")]
    for title, size in _columns(width):
        text = one_line(values[title])
        cells.append((" " + pad(text.rjust(size) if title in _RIGHT else text, size), title))
    return cells


def _cut_inside(name: str, cells: int, glyphs: Glyphs) -> str:
    """A name that is too long without its middle: names differ at their ends, in the time."""
    if len(name) <= cells:
        return name
    behind = min(cells * 3 // 4, 15)
    return f"{name[: cells - behind - 1]}{glyphs.ellipsis}{name[-behind:]}"


def detail_lines(one: RunOverview, now: datetime, width: int, glyphs: Glyphs) -> list[Line]:
    begin: Line = [(glyphs.rule * 2 + " ", "rule"), (one_line(one.name), "title")]
    begin += [(f" {one.status_words} ", _STATE_ROLES.get(one.status, "dim"))]
    rows = _facts(one, now) if one.is_run else [_EXPLANATIONS[one.status], f"size {format_bytes(one.size_bytes)}"]
    lines: list[Line] = [fit([*begin, (glyphs.rule * width, "rule")], width, glyphs.rule)]
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


@dataclass(frozen=True, slots=True)
class ComparedCurve:
    """`points` (x, y) by growing x are joined; `marks` stand alone. `sign` is one character."""

    sign: str
    points: _Points = ()
    marks: _Points = ()

    def scaled(self, log: bool) -> ComparedCurve:
        points, marks = (
            [(x, math.log10(y) if log else y) for x, y in found if math.isfinite(y) and (y > 0 or not log)]
            for found in (self.points, self.marks)
        )
        return ComparedCurve(sign=self.sign, points=points, marks=marks)


def curves_lines(
    curves: Sequence[ComparedCurve], unit: str, width: int, height: int, glyphs: Glyphs, *, log: bool = False
) -> list[Line]:
    """The curves in `width` x `height` cells with their axes; a curve has the role of its place in `ROLES`."""
    drawn = [(curve.scaled(log), role) for curve, role in zip(curves, ROLES, strict=False)]
    every = [point for curve, _ in drawn for point in (*curve.points, *curve.marks)]
    if not every or height < 4 or width < 3 * GUTTER:
        return [[("there is no loss to draw", "dim")]]
    raster = Raster(width - GUTTER, height - 2, glyphs)
    window = Bounds(0, max(x for x, _ in every) or 1)
    bounds = settle(None, min(y for _, y in every), max(y for _, y in every))

    def mark(points: _Points, sign: str, role: Role) -> None:
        for x, y in points:
            raster.mark(column_of(x, window, raster.width), row_of(y, bounds, raster.height), sign, role)

    # In layers: the signs of a curve are not covered by the marks of another one.
    for curve, role in drawn:
        _join(raster, curve.points, window, bounds, role)
    for curve, role in drawn:
        mark(curve.marks, glyphs.eval_mark, role)
    for place, (curve, role) in enumerate(drawn):
        mark(_signed(curve.points, place, len(drawn)), curve.sign, role)
    rows = with_y_axis(raster.lines(), bounds, max(raster.height // 3, 2), glyphs, log=log)
    return [*rows, *x_axis(raster.width, window, unit, glyphs)]


def _join(raster: Raster, points: _Points, window: Bounds, bounds: Bounds, role: Role) -> None:
    if not points:
        return
    x, y = np.array(points, np.float64).T
    at = np.linspace(window.low, window.high, raster.dots_across)
    # A dot column may fall between two points; what lies before the first and behind the last is nothing.
    values = np.interp(at, x, y, right=np.nan, left=np.nan)
    values[np.argmin(np.abs(at - x[-1]))] = y[-1]
    raster.curve(values, values, bounds, role)


def _signed(points: _Points, place: int, count: int) -> _Points:
    """Where the sign of a curve stands: at its end, and twice before, beside those of the others."""
    shares = [(place + 0.5) / count / 2, 0.5 + (place + 0.5) / count / 2]
    return [points[int(share * (len(points) - 1))] for share in (*shares, 1.0)] if points else []


class Curves(Pane):
    def __init__(self) -> None:
        super().__init__(lambda w, h: curves_lines(self.curves, self.unit, w, h, self.glyphs, log=self.is_log))
        self.curves: Sequence[ComparedCurve] = ()
        self.unit, self.is_log = "steps", False


class CompareDialog(Dialog):
    heading = "Compare"
    keys = (("x", "steps, tokens, seconds"), ("y", "log scale"), ("up down", "scroll"), ("escape", "close"))

    def __init__(self, bench: Workbench, folders: Sequence[RunFolder]) -> None:
        super().__init__()
        self._bench, self._folders = bench, folders
        self._answer: Comparison | str | None = None
        self._curves = Curves()

    def inside(self) -> Iterable[Widget]:
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(lambda *_: self._legend())
            yield self._curves
            yield Pane(lambda width, _: self.lines(width))

    def on_mount(self) -> None:
        self._bench.background.do("comparison", self._compare, self._compared)

    def _compare(self) -> Comparison | str:
        try:
            return compare(self._folders)
        except (InputError, OSError) as error:
            return one_line(str(error))

    def _compared(self, answer: Comparison | str) -> None:
        self._answer = answer
        if self.is_attached:
            self._show_curves()
            self.redraw()

    def _show_curves(self) -> None:
        def points(curve: Sequence[CurvePoint]) -> list[tuple[float, float]]:
            return [(float(getattr(point, _FIELDS[self._curves.unit])), point.loss) for point in curve]

        if isinstance(self._answer, Comparison):
            signed = zip(SIGNS, self._answer.runs, strict=False)
            self._curves.curves = [
                ComparedCurve(sign, points(run.train_curve), points(run.eval_curve)) for sign, run in signed
            ]

    def _legend(self) -> list[Line]:
        mark = self.glyphs.eval_mark
        names: list[Line] = [
            [(f"{sign} ", role), (one_line(folder.name), "text"), (f"  {one_line(str(folder.root.parent))}", "dim")]
            for sign, role, folder in zip(SIGNS, ROLES, self._folders, strict=False)
        ]
        scale = ", logarithmic" if self._curves.is_log else ""
        return [*names, [(f"training loss over {self._curves.unit}{scale}; {mark} held-out loss", "dim")]]

    def lines(self, width: int) -> list[Line]:
        if not isinstance(self._answer, Comparison):
            return [[(self._answer or "reading the journals ...", "text")]]
        rows = comparison_lines(self._answer, width, SIGNS[: len(self._answer.runs)])
        return [[(row, "text")] for row in ["", *rows]]

    def press(self, key: str, character: str | None) -> bool:
        if key == "x":
            units = list(_FIELDS)
            self._curves.unit = units[(units.index(self._curves.unit) + 1) % len(units)]
            self._show_curves()
        elif key == "y":
            self._curves.is_log = not self._curves.is_log
        return True


T = TypeVar("T")
_READ_EVERY_TICKS = 3
# Sizes are measured in the thread of all slow work, which plans and checks as well.
_MEASURING_SECONDS = 0.2
_READING, _MEASURING = "list of runs", "sizes of runs"


class RunsPage(ListPage):
    place = "runs"
    BINDINGS = bindings("runs")
    AUTO_FOCUS = ""
    ACTS: ClassVar[dict[str, Callable[[RunsPage], object]]] = {
        "resume": lambda page: offer_resume(page.bench, page.folder),
        "stop": lambda page: offer_stop(page.bench, page.folder),
        "sort": lambda page: page.model.sort_by_next(page.size.width),
        "reverse": lambda page: page.model.sort_by(page.model.order),
        "copy": lambda page: page.copy_path(page.folder.root),
        "more": lambda page: page.offer_more(),
        "report": lambda page: page.copy_report(),
        "export": lambda page: page.bench.app.open(ExportDialog(page.bench, page.folder)),
        "compare": lambda page: page.bench.app.open(CompareDialog(page.bench, list(map(RunFolder, page.model.marked)))),
    }

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.model: RunsModel = RunsModel()
        self._overviews = Overviews()
        self._list = LineList(
            self._row, lambda: (len(self.model.shown), self.model.place), id="runs",
            empty=lambda: empty_words(self.model, self.bench.app.key_of("app.start")),
        )  # fmt: skip
        self._filter = LineField(id="filter")
        self._filter.placeholder = "name, state, task or model; loss<1.5, held_out<2, score>0.8, task:chat, size_gib>10"
        self._ticks = 0
        self._measured: dict[Path, object] = {}
        """At which `_stage` of its run the size of a folder was measured."""

    def body(self) -> ComposeResult:
        yield Head(self)
        yield self._list
        yield self._filter
        yield Pane(self._details, id="details")
        yield Pane(self._summary, id="summary")

    def _row(self, place: int, width: int) -> Line:
        return run_row(self.model.shown[place], self.model, width, _now(), self.bench.glyphs)

    def _details(self, width: int, _: int) -> list[Line]:
        chosen = self.model.chosen
        return detail_lines(chosen, _now(), width, self.bench.glyphs) if chosen else []

    def _summary(self, width: int, _: int) -> list[Line]:
        seen, count = self._list.seen_places, len(self.model.shown)
        where = f"{seen.start + 1}-{seen.stop} of {count}" if len(seen) < count else ""
        return [beside([(summary(self.model), "dim")], [(where, "dim")], width)]

    def by_clock(self) -> object:
        now, shown = _now(), self.model.shown
        return [age_words(shown[place], now) for place in self._list.seen_places]

    def on_screen_resume(self, event: ScreenResume) -> None:
        self._read()

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _READ_EVERY_TICKS == 0 and not self.bench.background.is_busy(_READING):
            self._read()

    def _read(self) -> None:
        if self.is_shown:
            document = self.bench.document
            folders = dict.fromkeys(["runs", *([str(document.value("output.runs_dir"))] if document else [])])
            overviews = self._overviews
            self.bench.background.do(_READING, lambda: overviews.read(map(Path, folders)), self._found)

    def _found(self, found: list[RunOverview]) -> None:
        if found != self.model.found:
            self.model.take(found)
            self.bench.app.draw()
        # The chosen one first: its size is waited for.
        stale = [one for one in found if self._measured.get(one.path) != _stage(one) and one.status != "gone"]
        stale.sort(key=lambda one: one.path != self.model.path)
        if stale and self.is_shown and not self.bench.background.is_busy(_MEASURING):
            self.bench.background.do(_MEASURING, partial(self._measure, stale), lambda _: self._read())

    def _measure(self, stale: list[RunOverview]) -> None:
        until = monotonic() + _MEASURING_SECONDS
        for one in stale:
            if one.status != "no run folder":
                self._overviews.measure(one.path)
            self._measured[one.path] = _stage(one)
            if monotonic() > until:
                return

    def on_line_list_scrolled(self) -> None:
        self.query_one("#summary", Pane).redraw()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self.model.choose(message.place)
        if message.opens:
            self.bench.app.carry_out("runs.open")
        self.bench.app.draw()

    def move(self, lines: int) -> None:
        self.model.choose(self.model.place + lines)

    @property
    def page_lines(self) -> int:
        return self._list.size.height - 1

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        return [("enter", "done"), ("escape", "clear"), ("up down", "choose")]

    def action_filter(self) -> None:
        self._filter.add_class("-shown")
        self._filter.focus()

    def action_clear(self) -> None:
        if self.is_typing or self._filter.value:
            self._filter.value = ""
            self.model.narrow("")
            self._leave_filter()
        else:
            self.model.marked = []

    def on_input_changed(self) -> None:
        self.model.narrow(self._filter.value)
        self.bench.app.draw()

    def action_take(self) -> None:
        self.model.narrow(self._filter.value)
        self._leave_filter()

    def action_cancel(self) -> None:
        self.action_clear()
        self.bench.app.draw()

    def action_choose(self, steps: int) -> None:
        self.model.narrow(self._filter.value)
        self.move(steps)
        self.bench.app.draw()

    def _leave_filter(self) -> None:
        self.set_focus(None)
        self._filter.set_class(bool(self._filter.value), "-shown")
        self.call_after_refresh(self.bench.app.draw)

    def refusal(self, action: Action) -> str:
        one = self.model.chosen
        if action.name in ("filter", "again", "sort"):
            return ""
        if action.name == "reverse":
            return "" if self.model.order else f"the newest come first; {self.bench.app.key_of('runs.sort')} sorts"
        if action.name == "clear":
            some = self.is_typing or self.model.words or self.model.marked
            return "" if some else "there is no filter and no mark"
        if action.name == "compare":
            can_compare = LEAST_RUNS <= len(self.model.marked) <= MOST_RUNS
            return "" if can_compare else f"mark two to six runs with {self.bench.app.key_of('runs.mark')}"
        if one is None:
            return "no run is shown"
        if action.name in ("rename", "delete") and self.bench.exports.is_of(one.path):
            return f"{one.name} is being exported"
        return refusal(action.name, one, self.bench.app.key_of("runs.stop"))

    @property
    def _chosen(self) -> RunOverview:
        assert self.model.chosen is not None, "an action of a run is available only with one"
        return self.model.chosen

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self._chosen.path)

    def copy_report(self) -> None:
        report = self.folder.report

        def looked(is_there: bool) -> None:
            if is_there:
                self.copy_path(report)
            else:
                self.bench.tell(f"copy report: {NO_REPORT}", "dim")
            self.bench.app.draw()

        self.bench.background.do("report", report.is_file, looked)

    def action_open(self) -> None:
        folder, run = self.folder, self.bench.run
        if run is not None and run.folder == folder:
            self.bench.take_run(run)
        elif self.bench.run_is_ours_and_alive:
            self.bench.tell("a run of this process is alive: the Train screen stays with it", "warn")
        else:
            self.bench.attach_to(folder)

    def offer_more(self) -> None:
        has_model = self._chosen.status == "finished"
        own: list[Answer] = []
        if has_model:
            own.append(("x", "export", partial(self.action_do, "export")))
            own.append(("w", "try the model", partial(show_and_try, self.bench, self.folder)))
        offer_more(self.bench, self.folder, own, has_model=has_model)

    def action_again(self) -> None:
        self._measured.clear()
        self._read()

    def action_mark(self) -> None:
        if refusal := self.model.toggle_mark():
            self.bench.tell(refusal, "warn")
        else:
            self.move(1)

    def action_rename(self) -> None:
        path = self._chosen.path
        rows: list[Row] = [("Its folder is renamed as well.", "dim"), ""]
        dialog = TextDialog(f"Rename {path.name}", rows, path.name, lambda name: self._rename(path, name, dialog))
        self.bench.app.open(dialog)

    def _rename(self, path: Path, name: str, dialog: TextDialog) -> None:
        bench, name = self.bench, name.strip()
        own = bench.own_run if bench.own_run and bench.own_run.folder.root == path else None

        def work() -> Problem | str | None:
            if own is not None:
                # To its end, where its journal still lies: the shell is told how it ended.
                own.look()
            return _tried(lambda path: at_rest.rename(path, name), path)

        def renamed(problem: Problem | str | None) -> None:
            dialog.answered(problem if isinstance(problem, str) else "")
            if isinstance(problem, str):
                if dialog.is_closed:
                    bench.tell(problem, "bad")
                    bench.app.draw()
                return
            bench.tell(str(problem) if problem else f"renamed to {name}", "warn" if problem else "good")
            self.model.path = path.with_name(name)
            if own is not None:
                own.take()
                own.folder = RunFolder(self.model.path)
            if bench.run is not None and bench.run.folder.root == path:
                bench.attach_to(RunFolder(self.model.path), go=False)
            self._read()
            bench.app.draw()

        bench.background.do(f"rename {path}", work, renamed)

    def action_delete(self) -> None:
        one = self._chosen
        self.bench.tell("looking what that frees ...", "dim")
        self.bench.background.do(
            "deleting", partial(_tried, at_rest.bytes_to_free, one.path), partial(self._ask_to_delete, one)
        )

    def _ask_to_delete(self, one: RunOverview, freed: int | str) -> None:
        self.bench.notice = (freed, "bad") if isinstance(freed, str) else None
        self.bench.app.draw()
        if isinstance(freed, str) or self.bench.app.takes_text:
            return
        what = f"{format_bytes(freed)} are freed: its journal, checkpoints, model and exports."
        if one.status == "gone":
            what = "It is only taken off the list: its folder is gone."
        rows: list[Row] = [what, (one_line(str(one.path)), "dim")]
        answers = [("D", "delete it", partial(self._delete, one))]
        self.bench.app.ask(f"Delete {one_line(one.name, 50)}?", rows, answers)

    def _delete(self, one: RunOverview) -> None:
        bench = self.bench
        bench.tell(f"deleting {one.name} ...", "dim")
        if bench.run is not None and bench.run.folder.root == one.path and not bench.run.alive:
            bench.put_on_the_table(None)
        if bench.own_run is not None and bench.own_run.folder.root == one.path and not bench.own_run.alive:
            bench.own_run = None
        # By its own name: to look at another run must not take its place while it waits.
        name = f"deleting {one.path}"
        bench.background.do(name, partial(_tried, at_rest.delete, one.path), partial(self._deleted, one))

    def _deleted(self, one: RunOverview, deleted: at_rest.Deleted | str) -> None:
        if isinstance(deleted, str):
            self.bench.tell(deleted, "bad")
        else:
            self.bench.tell("; ".join(deleted.words(one.name)), "good")
        self.bench.app.draw()
        self._read()

    def action_new(self) -> None:
        one = self._chosen
        if not self.bench.has_unsaved_edits:
            take_settings_of(self.bench, RunFolder(one.path))
            return
        rows = ["Settings that you changed are in no file yet. Undo brings them back."]
        answers = [("enter", "take those of the run", partial(take_settings_of, self.bench, RunFolder(one.path)))]
        self.bench.app.ask(f"Replace them by those of {one_line(one.name, 40)}?", rows, answers)


def _stage(one: RunOverview) -> object:
    """The minute of the last event, as the folder of a run that lives is measured once a minute; and whether it lives,
    as what is written at its end, the model above all, counts as well."""
    return one.last_event_at[:16], one.alive


def _now() -> datetime:
    return datetime.now(UTC)


def _tried(work: Callable[[Path], T], path: Path) -> T | str:
    """What comes of it, or why the folder is left alone: without the path, which the list shows."""
    try:
        return work(path)
    except FolderError as error:
        problem = error.problems[0]
        return one_line(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)
