"""What is shown in a terminal in which the screens do not fit."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.events import Key
from textual.screen import ModalScreen

from tui_trainer.ui.application import Leaving
from tui_trainer.ui.spans import Line
from tui_trainer.ui.terminal import SMALLEST_HEIGHT, SMALLEST_WIDTH
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench


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
