"""Trying a trained model: a prompt, and what the model makes of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.events import Key
from textual.widget import Widget

from tui_trainer.errors import TuiTrainerError
from tui_trainer.safe_text import one_line, visible
from tui_trainer.tasks import find_task
from tui_trainer.ui.dialogs import FieldDialog
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import TRYING

if TYPE_CHECKING:
    from tui_trainer.exporting.generate import Writer
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.workbench import Workbench

_NEW_TOKENS = 240
_TEMPERATURE = 0.8
_PROMPT_CHARACTERS = 40


class TryDialog(FieldDialog):
    """Type the beginning of a text, Enter, and read on."""

    heading = "Try the model"
    keys = (("enter", "continue the text"), ("escape", "close"))

    def __init__(self, bench: Workbench, folder: RunFolder, prompt: str) -> None:
        super().__init__(prompt)
        self._bench, self._folder = bench, folder
        if bench.run is not None and not find_task(bench.run.state.task or "causal_lm").continues:
            self.keys = (("enter", "ask the model"), *self.keys[1:])
        self._writer: Writer | None = None
        self._said = ["", ""]
        self._status = ""
        self._seed = 0

    def inside(self) -> Iterable[Widget]:
        yield self.field
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(lambda width, _: self.lines(width))
        yield Pane(lambda *_: [[(self._status, "dim")]], classes="status")

    def lines(self, width: int) -> list[Line]:
        shown = visible("".join(self._said)).replace("\t", "    ")
        return [[(row, "text")] for line in shown.split("\n") for row in (textwrap.wrap(line, width) or [""])]

    def take_key(self, event: Key) -> bool:
        is_scroll = event.key in ("up", "down", "pageup", "pagedown")
        return (is_scroll and self.scrolls(event.key)) or super().take_key(event)

    def take(self) -> None:
        prompt, self._seed = self.field.value, self._seed + 1
        self._status = "writing ..." if self._writer else "loading the weights ..."
        self._bench.background.do(TRYING, lambda: self._write(prompt, self._seed), self._wrote)
        self.redraw()

    def _write(self, prompt: str, seed: int) -> tuple[str, str, str]:
        from tui_trainer.exporting.generate import Sampling, Writer

        try:
            self._writer = self._writer or Writer(self._folder)
            pieces: list[str] = []
            sampling = Sampling(max_new_tokens=_NEW_TOKENS, temperature=_TEMPERATURE, seed=seed)
            if self._writer.continues:
                self._writer.continue_text(prompt, sampling, pieces.append)
            else:
                pieces = ["\n\n", self._writer.answer(prompt, sampling)]
        except TuiTrainerError as error:
            return "", "", one_line(str(error))
        return prompt, "".join(pieces), f"weights of {one_line(self._writer.source.name)}; Enter writes another one"

    def _wrote(self, result: tuple[str, str, str]) -> None:
        *self._said, self._status = result
        if self.is_attached:
            self.redraw()


def offer_try(bench: Workbench) -> None:
    """A prompt for the model of the run on the table."""
    run = bench.run
    if run is not None:
        samples = run.state.samples
        bench.app.open(TryDialog(bench, run.folder, _beginning(samples[-1].prompt) if samples else ""))


def _beginning(prompt: str) -> str:
    """A few words of held-out text to begin with: whole words of its last line that has some."""
    lines = [line.strip() for line in prompt.split("\n") if len(line.split()) > 1]
    last = one_line(lines[-1]) if lines else ""
    return last[-_PROMPT_CHARACTERS:].partition(" ")[2] if len(last) > _PROMPT_CHARACTERS else last
