"""The list of runs as lines: which of them are shown, the row of each, and what is known about the chosen one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from tui_trainer.lines import age_words, loss_words
from tui_trainer.runs.comparison import LEAST_RUNS, MOST_RUNS
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.score_words import number, plain
from tui_trainer.safe_text import one_line
from tui_trainer.ui.glyphs import Glyphs, sparkline
from tui_trainer.ui.spans import Line, Role, fit, pad, paragraph
from tui_trainer.units import format_bytes

SIGNS: Final = "ABCDEF"
"""What stands for the runs that are compared, in the order in which they were marked."""
# Title, cells, and from which width of the screen on; the name has what is left.
_COLUMNS: Final = (
    ("state", 13, 0), ("done", 4, 0), ("curve", 6, 0), ("loss", 7, 100), ("held out", 8, 0), ("score", 18, 120),
    ("OOM", 3, 140), ("last event", 11, 0), ("size", 10, 0), ("task", 20, 160), ("model", 26, 180),
)  # fmt: skip
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


@dataclass
class RunsModel:
    """The runs, newest first, which of them match the filter, the chosen one, and those marked for comparing."""

    found: Sequence[RunOverview] | None = None
    """None: they were not read yet."""
    words: str = ""
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
        """Show those whose name, state, task or model have all these words. Runs that are gone are asked for."""
        self.words = words.lower()
        self._settle()

    def _settle(self) -> None:
        words = self.words.split()
        self.shown = [one for one in self.found or () if _matches(one, words)]
        here = next((place for place, one in enumerate(self.shown) if one.path == self.path), self.place)
        self.choose(here)

    def choose(self, place: int) -> None:
        self.place = max(min(place, len(self.shown) - 1), 0)
        self.path = self.shown[self.place].path if self.shown else None

    @property
    def chosen(self) -> RunOverview | None:
        return self.shown[self.place] if self.shown else None

    @property
    def can_compare(self) -> bool:
        return LEAST_RUNS <= len(self.marked) <= MOST_RUNS

    def toggle_mark(self) -> str:
        """Mark the chosen run, or take its mark away. Why not, if it cannot be marked."""
        if self.path is None or self.path in self.marked:
            self.marked = [path for path in self.marked if path != self.path]
        elif len(self.marked) == MOST_RUNS:
            return f"no more than {MOST_RUNS} runs are compared"
        else:
            self.marked.append(self.path)
        return ""


def _matches(one: RunOverview, words: Sequence[str]) -> bool:
    text = f"{one.name} {one.status} {one.task} {one.model}".lower()
    return all(word in text for word in words) and (one.status != "gone" or "gone" in words)


def refusal(action: str, one: RunOverview, stop_key: str) -> str:
    """Why an action of the Runs screen cannot be done with a run; empty when it can."""
    if action in ("open", "resume", "stop", "mark", "new", "rename") and not one.is_run:
        return f"{one.name} is {'' if one.status == 'no run folder' else 'a run that is '}{one.status}"
    if action == "stop" and not one.alive:
        return f"{one.name} is not running"
    if action in ("resume", "rename", "delete") and one.alive:
        return f"{one.name} is running; {stop_key} stops it"
    if action == "resume" and one.status == "finished":
        return f"{one.name} is finished"
    if action == "export" and one.status != "finished":
        return f"{one.name} is {one.status}: a finished run has a model to export"
    if action == "delete" and one.status == "no run folder":
        return "no run made this folder: it is left alone"
    return ""


def summary(model: RunsModel) -> str:
    """`12 here, 3 with 'chat', 2 marked`."""
    if model.found is None:
        return "reading ..."
    gone = sum(one.status == "gone" for one in model.found)
    parts = [f"{len(model.found) - gone} here"]
    parts += [f"{len(model.shown)} with {one_line(model.words, 30)!r}"] if model.words else []
    parts += [f"{gone} gone"] if gone else []
    parts += [f"{len(model.marked)} marked"] if model.marked else []
    return ", ".join(parts)


def head(width: int) -> Line:
    titles = {title: title for title in ("run", *(title for title, _ in _columns(width)))}
    return [("  ", "text"), *((text, "dim") for text, _ in _cells(titles, width))]


def run_row(one: RunOverview, model: RunsModel, width: int, now: datetime, glyphs: Glyphs) -> Line:
    """One run; the chosen one has the cursor's role throughout."""
    is_chosen = one.path == model.path
    sign = SIGNS[model.marked.index(one.path)] if one.path in model.marked else glyphs.pointer if is_chosen else " "
    share = one.share_done
    values = {
        "run": _cut_inside(one_line(one.name), _name_cells(width), glyphs),
        "state": one.status,
        "done": "" if share is None else f"{int(100 * share)}%",
        "curve": sparkline(one.loss_curve, dict(_columns(width))["curve"], glyphs),
        "loss": loss_words(one.loss) if one.is_run else "",
        "held out": loss_words(one.eval_loss) if one.is_run else "",
        "score": next((f"{plain(name)} {number(value)}" for name, value in one.scores.items()), ""),
        "OOM": str(one.out_of_memory_events or "") if one.is_run else "",
        "last event": age_words(one, now) if one.is_run else "",
        "size": format_bytes(one.size_bytes) if one.size_bytes is not None else "",
        "task": one.task,
        "model": Path(one.model).name,
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
    """What is known about a run; of something else, what it is. The last lines are its path."""
    begin: Line = [(glyphs.rule * 2 + " ", "rule"), (one_line(one.name), "title")]
    begin += [(f" {one.status} ", _STATE_ROLES.get(one.status, "dim"))]
    rows = _facts(one, now) if one.is_run else [_EXPLANATIONS[one.status], f"size {format_bytes(one.size_bytes)}"]
    lines: list[Line] = [fit([*begin, (glyphs.rule * width, "rule")], width, glyphs.rule)]
    lines += [row for text in rows for row in paragraph(text, width)]
    return lines + paragraph(one_line(str(one.path)), width, "dim")


def _facts(one: RunOverview, now: datetime) -> list[str]:
    steps = f"{one.step}/{one.total_steps}" if one.total_steps else f"{one.step or '--'}"
    epoch = "" if one.epoch is None else f", epoch {one.epoch:.2f}"
    best = "" if one.best is None else f", best {plain(one.metric)} {number(one.best)}"
    scores = "".join(f", {plain(name)} {number(value)}" for name, value in one.scores.items())
    age = age_words(one, now) + ("" if one.clock_is_ahead(now) else " ago")
    shortages = one.out_of_memory_events
    memory = f", out of memory {'once' if shortages == 1 else f'{shortages} times'}" if shortages else ""
    freed = "" if one.freed_bytes is None else f", frees {format_bytes(one.freed_bytes)}"
    started = one.started_at[:16].replace("T", " ")
    return [
        f"{one.task or '--'}, {one.model or 'from scratch'}, steps {steps}{epoch}{memory}",
        f"training loss {loss_words(one.loss)}, held-out loss {loss_words(one.eval_loss)}{best}{scores}",
        f"began {started or '--'} UTC, last event {age}, {format_bytes(one.size_bytes)}{freed}",
    ]
