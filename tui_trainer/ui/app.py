"""The application: one screen per page, dialogs above them, and a tick each second.

It draws what the screens compute, and passes keys to them. Runs belong to `main`, which waits for their end.
"""

import asyncio
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from pathlib import Path
from time import monotonic, strftime
from typing import TYPE_CHECKING, ClassVar, cast
from unicodedata import name

from textual.app import ScreenStackError
from textual.css.query import NoMatches
from textual.events import AppFocus, Event, InputEvent, Key, Resize
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import AwaitMount

from tui_trainer.errors import system_reason
from tui_trainer.hardware.gauges import VISIBLE_PERIOD_SECONDS
from tui_trainer.runs.lock import read_lock_owner
from tui_trainer.runs.registry import newest_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import keymap as keymap_room
from tui_trainer.ui import palette
from tui_trainer.ui.background import Background
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog, Row
from tui_trainer.ui.driver import PatientDriver
from tui_trainer.ui.keymap import CHANGES_RUNS, PLACES, TITLES, Action, Keymap, KeysInOrder, PageName, textual_key
from tui_trainer.ui.page import Page, Pages, TooSmall, bindings
from tui_trainer.ui.preferences import Preferences
from tui_trainer.ui.spans import Role
from tui_trainer.ui.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH, TerminalGuard, has_mouse, is_hung_up
from tui_trainer.ui.theme import AsciiOnly, with_readable_text
from tui_trainer.ui.workbench import ExitReason, Workbench

if TYPE_CHECKING:
    from tui_trainer.advice.checklist import Finding
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.lines.guides import GuideSection
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.screens.checklist import ChecklistPage
    from tui_trainer.ui.screens.config import ConfigPage
    from tui_trainer.ui.screens.train import TrainPage

TICK_SECONDS = VISIBLE_PERIOD_SECONDS
UNATTENDED_TICK_SECONDS = 7.0
# After a request to the run, its journal is read at these times, so that the answer does not wait for a tick.
_ANSWER_SECONDS = (0.1, 0.3, 0.6)
# The terminal's own colours: they fit light and dark terminals, and a changed cell costs few bytes.
TERMINAL_THEME = "ansi-dark"
_NEWS_SECONDS, _UNTIL_A_KEY = 6.0, 1e6
# Most toasts that are kept while a dialog is open, which may be for a whole night.
_MOST_HELD = 3
_TOO_SMALL = "too small"
_ABOVE_DIALOGS = ("save_screen", "suspend")


class TrainerApp(KeysInOrder, inherit_bindings=False):
    TITLE = "tui-trainer"
    CSS_PATH = "app.tcss"
    # Textual would open its palette with its own key, even above dialogs.
    ENABLE_COMMAND_PALETTE = False
    DEFAULT_MODE: ClassVar[PageName] = PLACES[1]
    BINDINGS = bindings("app")
    INLINE_PADDING = 0
    # The theme is set at once: setting it later would style all widgets twice.
    theme: Reactive[str] = Reactive(TERMINAL_THEME)

    def __init__(self, bench: Workbench, keymap: Keymap) -> None:
        # For NO_COLOR, Textual removes only the terminal's own colours, and turns those of a theme into shades of grey.
        super().__init__(driver_class=PatientDriver, ansi_color=True if "NO_COLOR" in os.environ else None)
        self.bench, self.keymap = bench, keymap
        keymap_room.active_keymap = keymap
        bench.app = self
        self.pages = Pages(bench, self.stylesheet)
        for place in PLACES[2:]:
            self.add_mode(place, partial(self.pages.__getitem__, place))
        self.add_mode(_TOO_SMALL, TooSmall)
        self.guard: TerminalGuard | None = None
        self.terminal: PatientDriver | None = None
        # Textual would write pages about an error to the log. `main` writes them to a file and prints one sentence.
        self.error_console.quiet = True
        self.crash, self._has_begun = "", False
        self.preferences = Preferences.load()
        self._run_was_alive = self._has_lasting_news = self._has_named_layout = False
        self._held_news: deque[Callable[[], None]] = deque(maxlen=_MOST_HELD)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self.when_shown: Callable[[], None] = lambda: None
        self._drawn_live_state: object = None
        self._tick_seconds = TICK_SECONDS
        self.set_class(bench.glyphs.ascii, "-ascii")
        self.set_keymap({action.id: ",".join(map(textual_key, action.keys)) or "unbound" for action in keymap.changed})

    def get_css_variables(self) -> dict[str, str]:
        colours = super().get_css_variables()
        return colours if self.current_theme.ansi else with_readable_text(colours)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return Textual's filters. On ASCII terminals, a further filter covers the text of Textual's own widgets."""
        filters = super().get_line_filters()
        return [*filters, AsciiOnly()] if self.bench.glyphs.ascii else filters

    def get_default_screen(self) -> Screen[None]:
        # The mode is added later: if it existed before this, all style sheets would be parsed twice.
        return self.page

    async def on_mount(self) -> None:
        self.add_mode(self.DEFAULT_MODE, lambda: self.pages[self.DEFAULT_MODE])
        # Nothing is drawn while this waits, so the page appears complete.
        await AwaitMount(self.page, [self.page])
        if self.preferences.theme in self.available_themes:
            self.theme = self.preferences.theme
        self._event_loop = asyncio.get_running_loop()
        if self.guard is not None:
            # Textual's replacements of the standard streams have no descriptor, which breaks child processes.
            sys.stdout = sys.stderr = self.guard.log
        self.bench.background = Background(self._event_loop, self._background_failed)
        self._clock = self.set_interval(TICK_SECONDS, self.tick)
        if problems := self.keymap.problems:
            self.bench.show_notice((f"problem 1 of {len(problems)}: " if problems[1:] else "") + problems[0], "warn")
        # The config's modules take longer to load than the first screen takes to show.
        self.call_after_refresh(self._begin)

    def on_unmount(self) -> None:
        self.bench.end()

    def _begin(self) -> None:
        self._has_begun = True
        self.bench.begin()
        self.when_shown()
        self.draw()

    def find_living_runs(self, *, offers: bool = True) -> None:
        """Look for active runs, and offer to watch one that is training already, as after a lost connection."""

        def read() -> "tuple[bool, list[RunFolder]]":
            recent_runs = newest_runs()
            return bool(recent_runs), [folder for folder in recent_runs if read_lock_owner(folder.lock) is not None]

        def offer(answer: "tuple[bool, list[RunFolder]]") -> None:
            has_runs, living_runs = answer
            has_changed, self.bench.living_runs = living_runs != self.bench.living_runs, living_runs
            if offers:
                self.bench.has_no_runs = not has_runs
            if offers or has_changed:
                self.draw()
            if living_runs and offers:
                from tui_trainer.ui.starting import offer_to_watch

                self.bench.ask_when_free(partial(offer_to_watch, self.bench, living_runs))

        self.bench.background.run_work("runs" if offers else "living runs", read, offer)

    def offer_draft(self, draft: "Draft") -> None:
        from tui_trainer.ui.screens.config_files import offer_draft

        if document := self.bench.document:
            offer_draft(self.bench, document, draft)

    def checked(self, findings: "list[Finding]") -> None:
        if page := cast("ChecklistPage | None", self.pages.get("checklist")):
            page.set_findings(findings)

    def run_changed(self) -> None:
        if page := cast("TrainPage | None", self.pages.get("train")):
            page.run_changed()

    @property
    def page(self) -> Page:
        return self.pages[PLACES[1 + self.bench.current_page]]

    @property
    def dialog(self) -> Dialog | None:
        return self.screen if isinstance(self.screen, Dialog) else None

    def show_page(self, number: int) -> None:
        if not self.is_running:
            return
        self.switch_mode(PLACES[1 + number])
        if self.size.width < SMALLEST_WIDTH or self.size.height < SMALLEST_HEIGHT:
            self.switch_mode(_TOO_SMALL)

    def show_toast(self, text: str, severity: SeverityLevel, page: int) -> None:
        """Show a toast with the title of a page. An error stays until a key is pressed."""
        if self.dialog:
            # The toast would hide the text or the keys of the dialog, so it waits until the dialog is closed.
            self._held_news.append(partial(self.show_toast, text, severity, page))
            return
        self._has_lasting_news |= severity == "error"
        seconds = _UNTIL_A_KEY if severity == "error" else _NEWS_SECONDS
        self.notify(text, title=TITLES[PLACES[1 + page]], severity=severity, timeout=seconds, markup=False)

    def delay_update(self, delay: float = 0.05) -> None:
        """Hide a page while it is built for the first time. Textual would hide it at every change of pages."""
        if not self.page.is_mounted:
            super().delay_update(delay)

    def draw(self) -> None:
        if not self.is_running:
            # The background may deliver a result while the screens are being closed.
            return
        self._drawn_live_state = self._live_state()
        # Pages below a dialog are drawn too, because a run continues behind it.
        for screen in self.screen_stack:
            if isinstance(screen, Page | Dialog | TooSmall):
                screen.redraw()

    def _live_state(self) -> object:
        """Return the state that can change without a key. `tick` redraws only if it differs from the last drawing."""
        bench, screens = self.bench, [screen for screen in (self.page, self.dialog) if screen]
        run_state = bench.run_is_alive, bench.run is not None and bench.run.is_interrupted
        return self.size, run_state, tuple(bench.unseen_pages), [screen.live_state() for screen in screens]

    @property
    def offered_actions(self) -> list[Action]:
        return [action for action in self.page_actions if not self.refusal(action)]

    @property
    def page_actions(self) -> list[Action]:
        return [*self.keymap.actions_on(self.page.place), *self.keymap.actions_on("app")]

    def refusal(self, action: Action) -> str:
        """Return why an action of this page, or of `app`, is not possible now; empty if it is possible."""
        if self.bench.is_view and action.id in CHANGES_RUNS:
            return "this is a read-only view (attach --view)"
        if action.id == "app.start":
            return self.bench.active_run_words if self.bench.is_training_here else ""
        return "" if action.place == "app" else self.page.refusal(action)

    def tick(self) -> None:
        """Collect news of runs and commands and draw them. Called once a second, less often while the user is away."""
        if not self.is_running:
            # Textual closes the screens before it stops this clock.
            return
        if self.guard is not None and is_hung_up():
            self.leave(ExitReason.LOST)
            return
        self._set_tick_interval()
        if not self.dialog:
            while self._held_news:
                self._held_news.popleft()()
        has_news = self.bench.tick()
        if refusals := self.bench.take_refusals():
            from tui_trainer.ui.starting import show_problems

            self.bench.ask_when_free(partial(show_problems, self.bench, "The run did not start", refusals))
        if self.page.is_mounted:
            # While the page is being built, parts of it may be missing.
            self.page.tick()
        self._notify_of_the_end()
        if has_news or self._live_state() != self._drawn_live_state:
            self.draw()
        if self.guard is not None and self.guard.terminal.consume_lost_flag():
            self.refresh(layout=True)

    def _set_tick_interval(self) -> None:
        seconds = UNATTENDED_TICK_SECONDS if self.bench.is_unattended else TICK_SECONDS
        if seconds != self._tick_seconds:
            self._tick_seconds = seconds
            self._clock.stop()
            self._clock = self.set_interval(seconds, self.tick)
            self.bench.set_gauge_interval()

    def _notify_of_the_end(self) -> None:
        """Plan again when the run has ended, and notify the terminal (OSC 9) unless it has the focus."""
        run, was_alive = self.bench.run, self._run_was_alive
        self._run_was_alive = self.bench.run_is_alive
        if was_alive and not self._run_was_alive:
            # The next plan can use this run's measurements and its prepared data.
            self.bench.config_changed()
            from tui_trainer.ui.starting import LEAVE, offer_quit

            # The question about quitting mentions the run that has ended, so it is asked again.
            if self.close_question(LEAVE):
                offer_quit(self.bench)
        if run is None or not was_alive or self._run_was_alive or self.app_focus:
            return
        if self.terminal is not None:
            self.terminal.write(f"\x1b]9;{one_line(run.folder.name, 60)}: {run.state.status_words}\x07")
        if self.preferences.bell:
            self.bell()

    def watch_theme(self, theme: str) -> None:
        if self._has_begun:
            self.preferences.theme = "" if theme == TERMINAL_THEME else theme
            self.preferences.save()
            # The page below a dialog gets the new colours too.
            self.call_after_refresh(self.page.redraw)
            self.call_after_refresh(self.draw)

    def poll_soon(self) -> None:
        """Read the run's journal several times soon after a request, to show the answer quickly."""
        for seconds in _ANSWER_SECONDS:
            self.set_timer(seconds, self.bench.poll_run)

    async def on_event(self, event: Event) -> None:
        if isinstance(event, InputEvent | AppFocus | Resize):
            self.bench.last_input_at = monotonic()
            if self._tick_seconds != TICK_SECONDS:
                self.tick()
        if isinstance(event, Key) and not event.is_forwarded:
            if self.bench.start_wanted and event.key == "enter" and not self.dialog:
                return  # the user pressed Enter for the question that is about to open
            old_notice, self.bench.notice = self.bench.notice, None
            if self._has_lasting_news:
                self._has_lasting_news = False
                self.clear_notifications()
            # Any other key withdraws the request to start a run.
            self.bench.start_wanted = False
            if old_notice:
                self.draw()
            action = self.keymap.find("app", event.key, None)
            if self.dialog and action and self._is_above(self.dialog, action, event):
                await self.run_action(action.name)  # a dialog takes all other keys
                self.page.redraw()
                return
            self._name_layout(event.character or "", event.key)
        await super().on_event(event)

    def _name_layout(self, letter: str, key: str) -> None:
        """Report once that a letter of another alphabet is not a key here, and how to change that."""
        is_foreign = letter.isalpha() and "LATIN" not in name(letter, "LATIN")
        has_use = self.takes_text or self.keymap.find(self.page.place, key, letter)
        if is_foreign and not (has_use or self._has_named_layout):
            self._has_named_layout = True
            message = f"the key {letter} has no action: switch the keyboard layout, or edit keys.toml"
            self.bench.show_notice(message, "warn")
            self.draw()

    def _is_above(self, dialog: Dialog, action: Action, event: Key) -> bool:
        """Return whether a key that works on all pages keeps its action while this dialog is open."""
        if action.name in ("jump", "command"):
            return not dialog.needs_key(event.character or event.key)
        return action.name in _ABOVE_DIALOGS and not event.is_printable

    def on_resize(self) -> None:
        # Deferred until Textual's own handler has stored the new size.
        self.call_next(self.show_page, self.bench.current_page)
        self.call_after_refresh(self.draw)

    def perform_action(self, action_id: str) -> None:
        page, action = self.page, next(action for action in self.keymap.actions if action.id == action_id)
        if not (refusal := self.refusal(action)):
            if action.name.startswith("go_"):
                self.bench.go(PLACES[1:].index(action.name.removeprefix("go_")))
            else:
                getattr(self if action.place == "app" else self.page, f"action_{action.name}")()
        elif "escape" not in action.keys:
            # Escape needs no answer if there is nothing to leave.
            self.bench.show_notice(f"{action.label}: {refusal}", "dim")
        if page is self.page:
            self.draw()
        else:
            # A page that is not mounted yet is drawn when it is mounted.
            self._drawn_live_state = self._live_state()

    def action_do(self, name: str) -> None:
        self.perform_action(f"app.{name}")

    def copy_to_clipboard(self, text: str) -> None:
        # Paths that are not valid UTF-8 contain lone surrogates.
        super().copy_to_clipboard(text.encode("utf-8", "replace").decode())

    def open(self, dialog: Dialog) -> None:
        # Toasts would cover the keys of the dialog. The mark on the tab remains.
        self.clear_notifications()
        self.push_screen(dialog, mode=self.page.place)

    def ask(self, heading: str, rows: Sequence[Row], answers: Sequence[Answer]) -> None:
        self.open(ChoiceDialog(heading, rows, answers))

    def close_question(self, heading: str) -> bool:
        """Close the open question if it has this heading. Return whether it was closed."""
        dialog = self.dialog
        if not (isinstance(dialog, ChoiceDialog) and dialog.heading == heading):
            return False
        dialog.close()
        return True

    def open_next(self, dialog: Dialog) -> None:
        self.call_next(self.open, dialog)

    @property
    def takes_text(self) -> bool:
        return len(self.get_screen_stack(self.page.place)) > 1 or self.page.is_typing

    def key_of(self, action_id: str) -> str:
        return self.keymap.key_of(action_id, ascii_only=self.bench.glyphs.ascii)

    def leave(self, how: ExitReason = ExitReason.QUIT) -> None:
        """Close the screens for the reason `how`. `main` takes care of an active run."""
        if self.bench.exit_reason is None:
            self.bench.exit_reason = how
        self.exit()

    def leave_soon(self, how: ExitReason) -> None:
        """Close the screens soon. Unlike `leave`, this is safe in a signal handler or another thread."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self.leave, how)

    def _step(self, screens: int) -> None:
        self.bench.go((self.bench.current_page + screens) % len(PLACES[1:]))

    action_next_screen, action_previous_screen = partialmethod(_step, 1), partialmethod(_step, -1)

    def action_start(self) -> None:
        from tui_trainer.ui.starting import offer_start

        offer_start(self.bench)

    def action_new(self) -> None:
        from tui_trainer.ui.new_run import DataDialog

        self.open(DataDialog(self.bench))

    def do_on_page(self, place: PageName, do: Callable[[], object]) -> None:
        """Open a page, and call `do` once the page is complete."""
        self.bench.go(PLACES[1:].index(place))
        if self.page.is_mounted:
            self.call_next(do)
        else:
            self.page.when_complete = do

    def show_setting(self, key: str) -> None:
        self.do_on_page("config", lambda: cast("ConfigPage", self.page).show_setting(key))

    def show_all_settings(self) -> None:
        """Clear the filters of Config, because its settings are those of another run now."""
        if page := cast("ConfigPage | None", self.pages.get("config")):
            page.show_setting("")

    def show_recipe(self, name: str) -> None:
        self.do_on_page("config", lambda: cast("ConfigPage", self.page).show_recipe(name))

    def action_help(self) -> None:
        self.read_guide(None)

    def read_guide(self, section: "GuideSection | None") -> None:
        """Show a section of a guide; None for the keys of this page and the section about it."""
        from tui_trainer.ui.help import HelpDialog

        self.open(HelpDialog(self.keymap, self.page.place, section))

    def action_jump(self) -> None:
        from tui_trainer.ui.jump import JumpDialog, spots_on

        self.open(JumpDialog(spots_on(self.screen)))

    def action_palette(self) -> None:
        placeholder = "Search actions, settings, runs, recipes, guides and themes"
        dialog = palette.Palette(placeholder, palette.all_commands(self))
        palette.add_runs(self, dialog)
        self.open(dialog)

    def action_interrupt(self) -> None:
        if selected_text := self.screen.get_selected_text():
            self.copy_to_clipboard(selected_text)
            self.bench.show_notice("copied, if your terminal lets programs copy (OSC 52)", "good")
            return
        quit_hint = f"{self.key_of('app.quit')} quits; if a run is active, you are asked first"
        self.bench.show_notice(f"Ctrl+C stops nothing here: {quit_hint}", "warn")

    def action_command(self) -> None:
        self.open(palette.Palette("Copy a command", palette.copy_command_entries(self)))

    def action_theme(self) -> None:
        restore_theme = partial(setattr, self, "theme", self.theme)
        self.open(palette.Palette("Choose a theme", palette.theme_commands(self, shows=True), restore_theme))

    def action_bell(self) -> None:  # type: ignore[override]
        self.preferences.bell = not self.preferences.bell
        self.preferences.save()
        on_message = "bell on: it rings if a run ends while another window has the focus"
        self.bench.show_notice(on_message if self.preferences.bell else "bell off")

    def action_redraw(self) -> None:
        self.refresh(layout=True)

    def action_save_screen(self) -> None:
        role: Role
        try:
            path = Path(self.save_screenshot(strftime("tui-trainer-screen-%Y%m%d-%H%M%S.svg"), path=str(Path.cwd())))
            message, role = f"screen saved to ./{path.name}", "good"
        except OSError as error:
            message, role = f"could not save the screen: {system_reason(error)}", "bad"
        self.bench.show_notice(message, role)
        if self.dialog:
            # The dialog may hide the notice.
            self.notify(message, markup=False)

    def action_mouse(self) -> None:
        def report(has_clicks: bool) -> None:
            if takes_mouse and not has_clicks:
                words = "tmux passes no clicks while its option `mouse` is off: `tmux set -g mouse on` turns it on"
                self.bench.show_notice(words, "warn")
            else:
                words = "clicks work here" if takes_mouse else "the mouse selects text of the terminal"
                does = "lets the mouse select text of the terminal" if takes_mouse else "makes clicks work here"
                self.bench.show_notice(f"{words}: {self.key_of('app.mouse')} {does}")
            self.draw()

        takes_mouse = self.terminal is not None and self.terminal.switch_mouse()
        self.bench.background.run_work("mouse", partial(has_mouse, os.environ), report, "mouse")

    def action_suspend(self) -> None:
        note = "tui-trainer is suspended: `fg` resumes it"
        if self.bench.is_training_here:
            note = "tui-trainer and training are suspended: `bg` continues training, `fg` also shows the screens"
        if self.terminal is None or not self.terminal.suspend(note):
            self.bench.show_notice("cannot suspend tui-trainer: there is no shell to resume it from", "warn")

    def action_quit(self) -> None:  # type: ignore[override]
        from tui_trainer.ui.starting import offer_quit

        offer_quit(self.bench)

    def _background_failed(self, error: Exception) -> None:
        def fail() -> None:
            raise error

        if self.is_running:
            self.call_next(fail)

    def bell(self) -> None:
        """Ring the bell. Textual also calls this for an uncaught error, which is stored in `crash` for `main`."""
        error = sys.exc_info()[1]
        if error is None:
            super().bell()
        elif self.bench.exit_reason is None or not isinstance(error, NoMatches | ScreenStackError):
            # While the screens close, Textual creates no widgets, so errors about missing parts of a page are ignored.
            self.crash = self.crash or traceback.format_exc()
