"""What a screen is: panes, and a method `action_NAME` for each of its actions in the registry."""

from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.stylesheet import Stylesheet
from textual.events import Click, Key, ScreenResume
from textual.screen import ModalScreen, Screen

from tui_trainer.ui.actions import ACTIONS, PLACES, Action, Place
from tui_trainer.ui.application import Leaving
from tui_trainer.ui.frame import KeyHint, footer_hints, help_hint, hint_at, hints_line
from tui_trainer.ui.keymap import textual_key
from tui_trainer.ui.keys_in_order import TakesKeys
from tui_trainer.ui.spans import Line, beside
from tui_trainer.ui.tabs import first_line, tab_at
from tui_trainer.ui.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH
from tui_trainer.ui.tight_updates import tighten
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

# More than any list has.
_MOST_LINES = 1_000_000
NOTHING_TO_DO = "nothing to do now"
NO_REPORT = "there is none yet: it is written at the end of a run, and by `tui-trainer report`"
_SCREENS = "tui_trainer.ui.screens"


def bindings(place: Place) -> list[BindingType]:
    """The registry's keys of a place; `do` looks whether the action can be done now, and says why not."""
    return [
        Binding(",".join(action.keys), f"do('{action.name}')", action.label, id=action.id, show=False)
        for action in ACTIONS
        if action.place == place
    ]


class Page(Screen[None], inherit_bindings=False):
    """One of the screens. An action `config.undo` calls `action_undo()` of the Config page."""

    place: ClassVar[Place]

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        tighten(self)
        self.bench = bench
        self._styled_for = ""

    def compose(self) -> ComposeResult:
        yield TopLine(self.bench)
        yield from self.body()
        yield KeyHints(self)

    def body(self) -> ComposeResult:
        """What stands between the first and the last line."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Compute what is shown; only what changed is sent."""
        if self.is_shown and self.is_attached:
            for pane in self.query(Pane):
                pane.redraw()

    @property
    def is_shown(self) -> bool:
        """Whether it is the screen of now, below a dialog or not; also asked before it was shown for the first time."""
        return PLACES[1 + self.bench.current] == self.place

    @property
    def is_typing(self) -> bool:
        """Whether a field has the focus, and takes the keys."""
        return self.focused is not None

    @property
    def typing_keys(self) -> list[tuple[str, str]]:
        """`(key, what it does)` for the last line while `is_typing`."""
        return []

    def refusal(self, action: Action) -> str:
        """Why the action would do nothing now; empty when it would do something."""
        return ""

    def label_of(self, action: Action) -> str:
        """What the last line calls the action now."""
        return action.label

    def tick(self) -> None:
        """Called once a second while the screen is shown."""

    def by_clock(self, width: int) -> object:
        """What the picture shows that changes without a key, an answer or news of the run, as it is drawn: to compare.

        Cheap beside the picture, which is not computed while this stays the same.
        """
        return ()

    def on_screen_resume(self, event: ScreenResume) -> None:
        # Textual would apply all styles anew, half the work of turning a page: they change with the theme only.
        theme = self.app.theme
        event.refresh_styles, self._styled_for = theme != self._styled_for, theme
        self.redraw()

    def take_key(self, event: Key) -> bool:
        """A key for the field that has the focus; whether it was taken."""
        return isinstance(self.focused, TakesKeys) and self.focused.take_key(event)

    def copy_path(self, path: Path) -> None:
        """To the clipboard, where the terminal allows it, and into the last line for eyes."""
        self.app.copy_to_clipboard(str(path))
        self.bench.tell(f"{path}  copied, if your terminal allows it", "good")

    def action_do(self, name: str) -> None:
        self.bench.app.carry_out(f"{self.place}.{name}")


class Pages(dict[Place, Page]):
    """The screens. Each is imported, made and gets its style sheet when it is first asked for.

    One that brought its style sheet along as `CSS_PATH` would have all others parsed again.
    """

    def __init__(self, bench: Workbench, styles: Stylesheet) -> None:
        super().__init__()
        self._bench, self._styles = bench, styles

    def __missing__(self, place: Place) -> Page:
        module = import_module(f"{_SCREENS}.{place}")
        self[place] = page = getattr(module, f"{place.title()}Page")(self._bench)
        self._styles.read(Path(str(module.__file__)).with_suffix(".tcss"))
        self._styles.parse()
        return cast("Page", page)


class ListPage(Page):
    """A screen that moves by lines and pages: the choice of a list, or what is shown."""

    def move(self, lines: int) -> None:
        """So many lines down; it stops at both ends."""
        raise NotImplementedError

    @property
    def page_lines(self) -> int:
        """How many lines a page is."""
        raise NotImplementedError

    def _move(self, lines: int = 0, *, pages: int = 0) -> None:
        self.move(lines + pages * self.page_lines)

    action_up, action_down = partialmethod(_move, -1), partialmethod(_move, 1)
    action_page_up, action_page_down = partialmethod(_move, pages=-1), partialmethod(_move, pages=1)
    action_first, action_last = partialmethod(_move, -_MOST_LINES), partialmethod(_move, _MOST_LINES)


class TopLine(Pane):
    """The machine and the screens with their states; a click on a screen goes there."""

    DEFAULT_CSS = "TopLine { height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, bench: Workbench) -> None:
        super().__init__(lambda width, _: [first_line(bench, width)])
        self._bench = bench

    def on_click(self, event: Click) -> None:
        if (page := tab_at(self._bench, self.size.width, event.x)) is not None:
            self._bench.go(page)
            self._bench.app.draw()


class KeyHints(Pane):
    """The most useful keys, or a notice; a click on a key is the key."""

    DEFAULT_CSS = "KeyHints { height: 1; dock: bottom; }"
    ALLOW_SELECT = False

    def __init__(self, page: Page) -> None:
        super().__init__(self._line)
        self._page = page

    def _line(self, width: int, _: int) -> list[Line]:
        bench = self._page.bench
        if bench.notice:
            helps = [hint.line(bench.glyphs) for hint in help_hint(self._page.bench.app.keymap.of("app"))]
            return [beside([bench.notice], helps[0] if helps else [], width)]
        return [hints_line(self._hints(width), width, bench.glyphs)]

    def _hints(self, width: int) -> list[KeyHint]:
        page, keymap = self._page, self._page.bench.app.keymap
        if page.is_typing:
            return [KeyHint(key, label) for key, label in page.typing_keys]
        offered = [one for one in [*keymap.of(page.place), *keymap.of("app")] if page.bench.app.is_available(one)]
        return footer_hints(offered, page.label_of, width)

    def on_click(self, event: Click) -> None:
        width = self.size.width
        if hint := hint_at(self._hints(width), event.x, width, self._page.bench.glyphs):
            self.app.simulate_key(textual_key(hint.key.split()[0]))


class TooSmall(ModalScreen[None], inherit_bindings=False):
    """Stands for screens that do not fit; only leaving is possible."""

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench = bench

    def compose(self) -> ComposeResult:
        yield Pane(self._lines)

    def _lines(self, *_: int) -> list[Line]:
        size, training = self.app.size, ["training goes on"] * self._bench.run_is_alive
        below: list[Line] = [[(text, "dim")] for text in (f"this is {size.width}x{size.height}", *training)]
        return [[(f"needs {SMALLEST_WIDTH}x{SMALLEST_HEIGHT}", "bold")], *below]

    def redraw(self) -> None:
        # It is asked for before its pane is there as well.
        for pane in self.query(Pane):
            pane.redraw()

    def take_key(self, event: Key) -> bool:
        if event.key in ("q", "ctrl+q", "ctrl+c"):
            # There is no room for a question: nothing is lost, and a run trains on.
            alive = self._bench.run_is_ours_and_alive
            self._bench.app.leave(Leaving.TRAINING_ON if alive else Leaving.QUIT)
        return True
