"""Base classes of the pages. A page has a top line with tabs, its body, a notice, and a last line of key hints."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.stylesheet import Stylesheet
from textual.events import Click, Key, ScreenResume
from textual.messages import Update
from textual.screen import ModalScreen, Screen

from tui_trainer.hardware import describe
from tui_trainer.hardware.facts import Hardware
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import KeyHint, KeyLine, footer_hints
from tui_trainer.ui.keymap import ACTIONS, PLACES, TITLES, Action, KeyHandler, PageName
from tui_trainer.ui.spans import Glyphs, Line, both_ends_line, rows_of, sparkline, width_of
from tui_trainer.ui.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH
from tui_trainer.ui.widgets.fields import LineField
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import ExitReason, Workbench
from tui_trainer.units import GIB, quantity

if TYPE_CHECKING:
    from tui_trainer.runs.state import RunState

_NARROW = 120
# Below this width, the titles of the pages are abbreviated.
_NARROWEST = 80
_SHORT: dict[PageName, str] = TITLES | {"hardware": "HW", "config": "Conf", "checklist": "Check"}
_HOST_CELLS, _MACHINE_CELLS = 24, 30
_CURVE_PARTS = 12
_CURVE_SAMPLES = 600
PROGRAM = "tui-trainer"
Tab = tuple[str, str]
"""Title and state of a page."""
# More lines than any list has.
_MOST_LINES = 1_000_000
NOTHING_TO_DO = "nothing to do now"
NO_REPORT = "no report yet: a run writes its report at its end; `tui-trainer report` writes one at any time"
_SCREENS = "tui_trainer.ui.screens"


class TopLine(Pane):
    """First line of every page: the machine, and a tab with title and state for each page. A click opens that page."""

    DEFAULT_CSS = "TopLine { height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, bench: Workbench) -> None:
        super().__init__(self._line)
        self._bench = bench

    def _line(self, width: int, _: int) -> list[Line]:
        """Return program, host and machine, then `1 Hardware  2 Config  3 Checklist 2 warn  4 Train 37%`."""
        bench, hardware = self._bench, self._bench.hardware
        tabs = enumerate(_tabs(bench, width))
        right: Line = [(_tab_text(page, *tab), "cursor" if page == bench.current_page else "dim") for page, tab in tabs]
        left_cells = width - width_of(right) - 1
        title = "view" if bench.is_view else PROGRAM
        left: Line = [(title, "title")] if len(title) <= left_cells else []
        descriptions = one_line(hardware.host, _HOST_CELLS), machine_summary(hardware, _MACHINE_CELLS)
        for part in filter(None, descriptions if width >= _NARROW else reversed(descriptions)):
            if width_of(left) + 2 + cell_len(part) <= left_cells:
                left.append((f"  {part}", "dim"))
        return [both_ends_line(left, right, width)]

    def spots(self) -> Iterator[tuple[int, int]]:
        """Yield the position of each tab's first cell, from the last tab to the first."""
        first_cell = self.size.width
        for page, tab in reversed(list(enumerate(_tabs(self._bench, first_cell)))):
            first_cell -= cell_len(_tab_text(page, *tab))
            yield first_cell, 0

    def on_click(self, event: Click) -> None:
        later_tabs = [first_cell for first_cell, _ in self.spots() if first_cell > event.x]
        page = len(PLACES[1:]) - 1 - len(later_tabs)
        if page >= 0:
            self._bench.go(page)
            self._bench.app.draw()


def _tab_text(index: int, title: str, state: str) -> str:
    return f" {index + 1} {title} {state} " if state else f" {index + 1} {title} "


def _tabs(bench: Workbench, width: int) -> list[Tab]:
    unsaved_mark = bench.glyphs.changed if bench.has_unsaved_edits else ""
    run_text = ("interrupted" if bench.run.is_interrupted else _run_mark(bench.run.state)) if bench.run else ""
    if bench.run is not None and width >= _NARROW and (curve := _loss_curve(bench.run.state, bench.glyphs)):
        run_text = f"{run_text} {curve}"
    is_short = width < _NARROWEST
    titles, checks_text = [_SHORT[place] if is_short else TITLES[place] for place in PLACES[1:]], bench.checks_mark()[0]
    if width < _NARROW:
        # There is room only for the most severe state.
        checks_text = " ".join(checks_text.split()[:2])
    states = ["", unsaved_mark, checks_text, run_text, ""]
    for page in bench.unseen_pages:
        states[page] = f"new {states[page]}".rstrip()
    return list(zip(titles, states, strict=True))


def _loss_curve(state: "RunState", glyphs: Glyphs) -> str:
    """Return a sparkline of the mean losses of equal parts of the run. The steps of a part never change."""
    losses: list[list[float]] = [[] for _ in range(_CURVE_PARTS)]
    # For a long run, a sample of the steps of each part is enough.
    step_count = len(state.loss_sums)
    for index in range(0, step_count, max(step_count // _CURVE_SAMPLES, 1)):
        part = (state.steps[index] - 1) * _CURVE_PARTS // max(state.total_steps, state.steps[-1])
        if math.isfinite(loss := state.loss_at(index)):
            losses[part].append(loss)
    means = [sum(part) / len(part) if part else math.nan for part in losses]
    return sparkline(means, _CURVE_PARTS, glyphs) if any(map(math.isfinite, means)) else ""


def _run_mark(state: "RunState") -> str:
    if state.status not in ("training", "paused") or not state.total_steps:
        return state.status
    # The share is rounded down, so that 100% means done.
    percent = f"{100 * state.step // state.total_steps}%"
    return percent if state.status == "training" else f"{percent} paused"


def machine_summary(hardware: Hardware, width: int) -> str:
    """Return the longest description of the machine that fits, as `1x H200 140 GiB` or `CPU, 2 cores, 24 GiB`."""
    cores_text = quantity(hardware.usable_cores, "core")
    memory_text = f", {hardware.memory_bytes / GIB:.0f} GiB" if hardware.memory_bytes is not None else ""
    descriptions = [f"CPU, {cores_text}{memory_text}", f"CPU, {cores_text}", "CPU"]
    if hardware.gpus:
        names = [describe.short_name(gpu) for gpu in hardware.gpus]
        sizes = ["" if gpu.memory_bytes is None else f" {gpu.memory_bytes / GIB:.0f} GiB" for gpu in hardware.gpus]
        gpu_counts = Counter(map("".join, zip(names, sizes, strict=True))), Counter(names)
        descriptions = [" + ".join(f"{count}x {name}" for name, count in gpu_count.items()) for gpu_count in gpu_counts]
        descriptions += [quantity(len(hardware.gpus), "GPU")]
    return next((form for form in descriptions if cell_len(form) <= width), "")


def bindings(place: PageName) -> list[BindingType]:
    """Return Textual's key bindings for the actions of a page, or of `app`."""
    return [Binding(",".join(action.keys), f"do('{action.name}')", action.label, id=action.id, show=False)
            for action in ACTIONS if action.place == place]  # fmt: skip


class Page(Screen[None], inherit_bindings=False):
    """A page. Its method `action_undo()` carries out the action `undo` of this page."""

    place: ClassVar[PageName]
    ACTS: ClassVar[Mapping[str, Callable[[Any], object]]] = {}
    """Functions for short actions by the action's name. The name `undo` defines the method `action_undo()`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, act in vars(cls).get("ACTS", {}).items():
            setattr(cls, f"action_{name}", act)

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        # Textual would add these classes when it knows the size, and style the whole page a second time.
        for length, points in zip(self.app.size, (self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), strict=True):
            self.add_class(*[name for min_length, name in points or () if length >= min_length][-1:], update=False)
        self.bench = bench
        self._styled_for = ""
        self.when_complete: Callable[[], object] = lambda: None
        """Callback that is called once, after the page was drawn for the first time."""

    def compose(self) -> ComposeResult:
        yield TopLine(self.bench)
        yield from self.body()
        yield Pane(self._notice_lines, id="notice")
        yield KeyHints(self)

    def _notice_lines(self, width: int, _: int) -> list[Line]:
        glyphs, (text, role) = self.bench.glyphs, self.bench.notice or ("", "text")
        rows = rows_of(text, width - 2, max_lines=2, placeholder=f" {glyphs.ellipsis}")
        return [[(f"{glyphs.vertical} {row}", role)] for row in rows]

    def on_mount(self) -> None:
        self._styled_for = self.app.theme
        self.call_after_refresh(self.when_complete)

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def redraw(self) -> None:
        if self.is_shown and self.is_attached:
            for pane in self.query(Pane):
                pane.redraw()

    @property
    def is_shown(self) -> bool:
        """Whether this is the current page, with or without a dialog above it."""
        return PLACES[1 + self.bench.current_page] == self.place

    @property
    def is_typing(self) -> bool:
        return self.focused is not None

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        """Pairs of key and label for the last line of the page while the user types in a field."""
        return []

    def refusal(self, action: Action) -> str:
        """Return why an action is not possible now; empty if it is possible."""
        return ""

    def label_of(self, action: Action) -> str:
        return action.label

    def tick(self) -> None:
        """Update the page. Called once a second while the page is shown."""

    def live_state(self) -> object:
        """Return the page's state that changes without a key, an answer or an event of the run.

        The page is redrawn when this value has changed. It is computed at each tick, so it must be cheap.
        """
        return ()

    def on_screen_resume(self, event: ScreenResume) -> None:
        # Textual would apply all styles again, half the work of opening a page. Only a new theme needs that.
        theme = self.app.theme
        event.refresh_styles, self._styled_for = theme != self._styled_for, theme
        self.redraw()

    def _compositor_refresh(self) -> None:
        if self.is_active:
            super()._compositor_refresh()
            return
        # Textual would forget the changes of a dialog on top, and send the whole page behind it for each changed cell.
        dialog, regions = self.app.screen, self._compositor._dirty_regions
        if regions:
            dialog._set_dirty(*regions)
            dialog.post_message(Update(dialog))
        regions.clear()
        self._dirty_widgets.clear()

    def take_key(self, event: Key) -> bool:
        return isinstance(self.focused, KeyHandler) and self.focused.take_key(event)

    def copy_path(self, path: Path) -> None:
        self.app.copy_to_clipboard(str(path))
        self.bench.show_notice(f"{path}  copied, if your terminal lets programs copy (OSC 52)", "good")

    def action_do(self, name: str) -> None:
        self.bench.app.perform_action(f"{self.place}.{name}")


class Pages(dict[PageName, Page]):
    """The pages by name. A page is imported and created, and its style sheet read, when it is accessed first.

    If pages had a `CSS_PATH`, Textual would parse all other style sheets again for each page.
    """

    def __init__(self, bench: Workbench, styles: Stylesheet) -> None:
        super().__init__()
        self._bench, self._styles = bench, styles

    def __missing__(self, place: PageName) -> Page:
        module = import_module(f"{_SCREENS}.{place}")
        self[place] = page = getattr(module, f"{place.title()}Page")(self._bench)
        self._styles.read(Path(str(module.__file__)).with_suffix(".tcss"))
        self._styles.parse()
        return cast("Page", page)


class ListPage(Page):
    def move(self, lines: int) -> None:
        raise NotImplementedError

    @property
    def page_lines(self) -> int:
        raise NotImplementedError

    def _move(self, lines: int = 0, *, pages: int = 0) -> None:
        self.move(lines + pages * self.page_lines)

    action_up, action_down = partialmethod(_move, -1), partialmethod(_move, 1)
    action_page_up, action_page_down = partialmethod(_move, pages=-1), partialmethod(_move, pages=1)
    action_first, action_last = partialmethod(_move, -_MOST_LINES), partialmethod(_move, _MOST_LINES)


class FilteredPage(Page):
    """A page with a field that filters its list. The field is visible while it has text or the focus."""

    filter_words: ClassVar[str]
    """Placeholder of the field."""
    choose_words: ClassVar[str] = "choose"
    """Label of up and down while the user types."""

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._filter = LineField(id="filter")
        self._filter.placeholder = self.filter_words
        self._filter.display = False

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        return [("enter", "done"), ("escape", "clear"), ("up down", self.choose_words)]

    def action_filter(self) -> None:
        # A class would take effect later, and letters typed meanwhile would be taken as keys of actions.
        self._filter.display = True
        self.set_focus(self._filter, scroll_visible=False)

    def leave_filter(self) -> None:
        self.set_focus(None)
        self._filter.display = bool(self._filter.value)
        self.call_after_refresh(self.bench.app.draw)

    def action_clear(self) -> None:
        raise NotImplementedError

    def action_cancel(self) -> None:
        self.action_clear()
        self.bench.app.draw()


class KeyHints(KeyLine):
    DEFAULT_CSS = "KeyHints { dock: bottom; }"

    def __init__(self, page: Page) -> None:
        super().__init__(self._hints)
        self._page = page

    def _hints(self, width: int) -> list[KeyHint]:
        page = self._page
        if page.is_typing:
            return [KeyHint(key, label) for key, label in page.typing_keys]
        actions = page.bench.app.offered_actions
        if page.bench.run_is_alive:
            # These actions stay possible, but are rarely the next step.
            actions = [action for action in actions if action.id not in ("app.start", "app.new")]
        return footer_hints(actions, page.label_of, width)


class TooSmall(ModalScreen[None], inherit_bindings=False):
    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench = bench

    def compose(self) -> ComposeResult:
        yield Pane(self._lines)

    def _lines(self, *_: int) -> list[Line]:
        size, training_note = self.app.size, ["training continues"] * self._bench.run_is_alive
        more_lines: list[Line] = [[(text, "dim")] for text in (f"terminal: {size.width}x{size.height}", *training_note)]
        return [[(f"needs {SMALLEST_WIDTH}x{SMALLEST_HEIGHT} cells", "bold")], *more_lines]

    def redraw(self) -> None:
        # This may be called before the pane is mounted, so `query_one` would fail.
        for pane in self.query(Pane):
            pane.redraw()

    def take_key(self, event: Key) -> bool:
        if event.key in ("q", "ctrl+q", "ctrl+c"):
            # There is no room for a question. Nothing is lost, because an active run continues.
            is_training = self._bench.is_training_here
            self._bench.app.leave(ExitReason.TRAINING_ON if is_training else ExitReason.QUIT)
        return True
