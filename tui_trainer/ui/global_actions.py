"""What can be done on every screen: the actions of `app` in the registry, a method for each."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tui_trainer.ui.dialogs import Command, HelpDialog, Palette
from tui_trainer.ui.spans import text_of

if TYPE_CHECKING:
    from tui_trainer.ui.app import TrainerApp


class Everywhere:
    """Carries them out for one application."""

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
        self._bench.offer_start()

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
        self._bench.offer_quit()
