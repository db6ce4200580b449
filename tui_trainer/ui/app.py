"""The application: one canvas, four pages, dialogs on top, and one tick a second.

It draws what the pages compute and hands on keys. It owns no run and waits for none: `main` does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App, ComposeResult
from textual.events import Key, Paste
from textual.screen import Screen

from tui_trainer.ui.actions import Action, key_sign
from tui_trainer.ui.background import Background
from tui_trainer.ui.compositor import BareScreen
from tui_trainer.ui.dialogs import Command, Dialog, HelpDialog, Palette
from tui_trainer.ui.driver import PatientDriver
from tui_trainer.ui.frame import footer, help_hint, too_small, typing_footer
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.overlay import centred
from tui_trainer.ui.page import Page
from tui_trainer.ui.screens.checklist import ChecklistPage
from tui_trainer.ui.screens.config import ConfigPage
from tui_trainer.ui.screens.hardware import HardwarePage
from tui_trainer.ui.screens.train import TrainPage
from tui_trainer.ui.spans import Line, beside, fit, in_ascii, text_of
from tui_trainer.ui.tabs import first_line
from tui_trainer.ui.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH, TerminalGuard, hung_up
from tui_trainer.ui.theme import styles_for
from tui_trainer.ui.widgets.canvas import Canvas
from tui_trainer.ui.workbench import Leaving, Workbench

if TYPE_CHECKING:
    from tui_trainer.checklist.contract import Finding
    from tui_trainer.config.document import Document
    from tui_trainer.errors import Problem
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.runs.folder import RunFolder

TICK_SECONDS = 1.0
# After a key that asks the run for something: its answer should not have to wait for the next tick.
_ANSWER_SECONDS = (0.1, 0.3, 0.6)


class TrainerApp(App[None], inherit_bindings=False):
    """The screens."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { overflow: hidden; }"
    INLINE_PADDING = 0

    def __init__(self, bench: Workbench, keymap: Keymap) -> None:
        self._wants_no_color = bool(os.environ.get("NO_COLOR"))
        super().__init__(driver_class=PatientDriver, ansi_color=True)
        self.bench, self.keymap = bench, keymap
        self._config_page, self._checklist_page = ConfigPage(bench), ChecklistPage(bench)
        self._train_page = TrainPage(bench)
        self.pages: list[Page] = [HardwarePage(bench), self._config_page, self._checklist_page, self._train_page]
        self.global_actions = GlobalActions(self)
        self.guard: TerminalGuard | None = None
        self.crash, self._has_begun = "", False
        self.when_shown: Callable[[], None] = lambda: None
        self._dialogs: list[Dialog] = []
        self._picture: list[Line] = []
        self._shown_by_clock: object = None
        color_system = None if self._wants_no_color else self.console.color_system
        self._canvas = Canvas(styles_for(color_system, no_color=self._wants_no_color))

    def get_default_screen(self) -> Screen[object]:
        return BareScreen()

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        if self.guard is not None:
            # Textual's stand-ins for the standard streams have no descriptor, which breaks child processes.
            sys.stdout = sys.stderr = self.guard.log
        self.bench.attach(self, Background(asyncio.get_running_loop(), self._background_failed))
        self.set_interval(TICK_SECONDS, self.tick)
        if problems := self.keymap.problems:
            self.bench.tell((f"1 of {len(problems)}: " if problems[1:] else "") + problems[0], "warn")

    def on_unmount(self) -> None:
        self.bench.end()

    def on_canvas_sized(self) -> None:
        """The canvas has a size, or another one: draw before anything is sent."""
        self.draw()
        if not self._has_begun:
            self._has_begun = True
            # What the config needs takes longer to load than the first screen takes to show.
            self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.bench.begin()
        self.when_shown()

    # ------------------------------------------------------------------ drawing

    @property
    def page(self) -> Page:
        return self.pages[self.bench.current]

    @property
    def _is_too_small(self) -> bool:
        return self.size.width < SMALLEST_WIDTH or self.size.height < SMALLEST_HEIGHT

    def draw(self) -> None:
        """Compute the picture and show it."""
        width, height = self.size
        self._shown_by_clock = self._by_clock()
        if self._is_too_small:
            self._picture = too_small(width, height, (SMALLEST_WIDTH, SMALLEST_HEIGHT), running=self.bench.run_is_alive)
        else:
            self._picture = self._compose_picture(width, height)
        if self.bench.glyphs.ascii:
            self._picture = [in_ascii(line) for line in self._picture]
        self._canvas.show(self._picture)

    def _by_clock(self) -> object:
        """What the picture shows that changes by itself: while it stays as it is, no new picture is computed."""
        page = self._is_too_small or self.page.by_clock(self.size.width)
        return self.size, self.bench.by_clock(), page, [dialog.by_clock() for dialog in self._dialogs]

    def _compose_picture(self, width: int, height: int) -> list[Line]:
        bench = self.bench
        top = first_line(bench, width)
        body = self.page.picture(width, height - 2)
        for dialog in self._dialogs:
            body = centred(body, dialog.draw(width, height - 2, bench.glyphs), width)
        if bench.notice:
            text, role = bench.notice
            bottom = beside([(text, role)], help_hint(self.keymap.of("app"), bench.glyphs), width)
        elif self._dialogs:
            bottom = fit([], width)
        elif self.page.is_typing:
            bottom = typing_footer(self.page.typing_keys, width, bench.glyphs)
        else:
            bottom = footer(self._offered(), width, bench.glyphs)
        return [top, *body, bottom]

    def _offered(self) -> list[Action]:
        actions = [*self.keymap.of(self.page.place), *self.keymap.of("app")]
        page = self.page
        return [replace(action, label=page.label_of(action)) for action in actions if self.is_available(action)]

    @property
    def body_size(self) -> tuple[int, int]:
        """Columns and lines between header and footer."""
        return self.size.width, self.size.height - 2

    def opened(self, document: Document) -> None:
        """The config has been read: the config page can show it."""
        self._config_page.opened(document)

    def checked(self, findings: list[Finding]) -> None:
        self._checklist_page.found(findings)

    def run_changed(self) -> None:
        self._train_page.run_changed()

    def offer_draft(self, draft: Draft) -> None:
        self._config_page.offer_draft(draft)
        self.draw()

    def edit_text(self, command: list[str], text: str) -> str:
        """The text as the user's own editor leaves it. Raises OSError or ValueError when it cannot be run."""
        from tui_trainer.ui.external_editor import edit_text_in

        return edit_text_in(self, command, text)

    def offer_start(self) -> None:
        """Say what would happen; one more key begins."""
        from tui_trainer.ui.starting import offer_start

        offer_start(self.bench)

    def offer_to_watch(self, living: list[RunFolder]) -> None:
        from tui_trainer.ui.starting import offer_to_watch

        offer_to_watch(self.bench, living)

    def show_refusal(self, problems: Sequence[Problem]) -> None:
        from tui_trainer.ui.starting import show_refusal

        show_refusal(self.bench, problems)

    def save_config(self) -> None:
        self.bench.go(self.pages.index(self._config_page))
        self._config_page.save()

    def is_available(self, action: Action) -> bool:
        """Whether the action would do something now."""
        if action.name == "start":
            return not self.bench.run_is_ours_and_alive
        return action.place == "app" or self.page.available(action)

    def tick(self) -> None:
        """Once a second: what is new is taken in, and drawn where it shows."""
        if self.guard is not None and hung_up():
            self.leave(Leaving.LOST)
            return
        has_news = self.bench.tick()
        self.page.tick()
        if has_news or self._by_clock() != self._shown_by_clock:
            self.draw()
        if isinstance(self._driver, PatientDriver) and self._driver.take_lost():
            self.refresh(layout=True)

    def soon(self) -> None:
        """Look at the run again shortly, because it was asked for something."""
        for seconds in _ANSWER_SECONDS:
            self.set_timer(seconds, self._look)

    def _look(self) -> None:
        if self.bench.poll_run():
            self.draw()

    # --------------------------------------------------------------------- keys

    def on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        character = event.character if event.is_printable else None
        self.bench.notice = None
        # Whoever goes on with something else does not wait for the start any more.
        self.bench.start_wanted = False
        if self._is_too_small and event.key not in ("q", "ctrl+q", "ctrl+c"):
            return
        if self._dialogs:
            dialog = self._dialogs[-1]
            if not dialog.press(event.key, character):
                self.close(dialog)
        elif self.page.is_typing:
            self.page.press(event.key, character)
        elif action := self.keymap.find(self.page.place, event.key, character):
            self.carry_out(action)
        else:
            self.page.press(event.key, character)
        self.draw()

    def on_paste(self, event: Paste) -> None:
        event.stop()
        if self._dialogs:
            self._dialogs[-1].paste(event.text)
        else:
            self.page.paste(event.text)
        self.draw()

    def carry_out(self, action: Action) -> None:
        """Do an action of this page, or one that is everywhere."""
        if self.is_available(action):
            getattr(self.global_actions if action.place == "app" else self.page, action.name)()
        elif action.name == "start":
            self.bench.tell("a run is alive in this process: one at a time", "warn")
        else:
            self.bench.tell(self.page.why_not(action), "dim")

    def open(self, dialog: Dialog) -> None:
        """Lay a dialog on the screen."""
        self._dialogs.append(dialog)
        self.draw()

    @property
    def takes_text(self) -> bool:
        """Whether keys belong to a dialog or to a text now."""
        return bool(self._dialogs) or self.page.is_typing

    def key_of(self, action_id: str) -> str:
        """The sign of the key that an action really has, for sentences; its name in the palette when it has none."""
        action = next(one for one in self.keymap.actions if one.id == action_id)
        return key_sign(action.keys[0], ascii_only=self.bench.glyphs.ascii) if action.keys else f":{action.label}"

    def close(self, dialog: Dialog) -> None:
        """Take it away."""
        if dialog in self._dialogs:
            self._dialogs.remove(dialog)

    @property
    def shown(self) -> list[Line]:
        """The picture on the screen."""
        return self._picture

    def draw_all(self) -> None:
        """Send everything again: something else has written on the terminal."""
        self.refresh(layout=True)
        self._canvas.repaint()

    def leave(self, how: Leaving) -> None:
        """Give the terminal back; what happens to a run alive is for `main`."""
        if self.bench.leaving is None:
            self.bench.leaving = how
        self.exit()

    def leave_soon(self, how: Leaving) -> None:
        """The same from a signal handler or another thread."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self.leave, how)

    # ------------------------------------------------------------------ trouble

    def _background_failed(self, error: Exception) -> None:
        # Textual reads the error from the frame that handles it.
        try:
            raise error
        except Exception as again:
            self._handle_exception(again)

    def _handle_exception(self, error: Exception) -> None:
        """An error of ours: the terminal is given back, `main` tells it and takes care of the run."""
        self.crash = "".join(traceback.format_exception(error))
        super()._handle_exception(error)
        # Textual would print pages of it; `main` writes it to a file and says one sentence.
        self._exit_renderables.clear()


class GlobalActions:
    """What can be done on every screen: the actions of `app` in the registry, a method for each."""

    def __init__(self, app: TrainerApp) -> None:
        self.app, self._bench = app, app.bench

    def go_hardware(self) -> None:
        self._bench.go(0)

    def go_config(self) -> None:
        self._bench.go(1)

    def go_checklist(self) -> None:
        self._bench.go(2)

    def go_train(self) -> None:
        self._bench.go(3)

    def next_screen(self) -> None:
        self._bench.go((self._bench.current + 1) % len(self.app.pages))

    def previous_screen(self) -> None:
        self._bench.go((self._bench.current - 1) % len(self.app.pages))

    def start(self) -> None:
        self.app.offer_start()

    def help(self) -> None:
        self.app.open(HelpDialog(self.app.keymap, self.app.page.place, self._bench.glyphs.ascii))

    def palette(self) -> None:
        actions = [*self.app.keymap.of(self.app.page.place), *self.app.keymap.of("app")]
        commands = [Command(action=one, run=partial(self.app.carry_out, one)) for one in actions]
        self.app.open(Palette([one for one in commands if self.app.is_available(one.action)], self._bench.glyphs.ascii))

    def interrupt(self) -> None:
        self._bench.tell(
            f"Ctrl+C stops nothing here: {self.app.key_of('app.quit')} leaves, and asks when a run is alive", "warn"
        )

    def redraw(self) -> None:
        self.app.draw_all()

    def save_screen(self) -> None:
        path = Path(f"tui-trainer-screen-{os.getpid()}.txt").absolute()
        try:
            path.write_text(text_of(self.app.shown) + "\n", encoding="utf-8")
        except OSError as error:
            self._bench.tell(f"the screen cannot be written to {path}: {error.strerror or error}", "bad")
        else:
            self._bench.tell(f"the screen is in {path}", "good")

    def quit(self) -> None:
        from tui_trainer.ui.starting import offer_quit

        offer_quit(self._bench)
