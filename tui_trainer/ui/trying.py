"""Trying a trained model: a prompt, and what the model makes of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.events import Key
from textual.widget import Widget

from tui_trainer.errors import FolderError, TuiTrainerError
from tui_trainer.safe_text import one_line, visible
from tui_trainer.tasks import find_task
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.dialogs import FieldDialog
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import TRYING

if TYPE_CHECKING:
    from tui_trainer.exporting.conversation import Conversation
    from tui_trainer.exporting.generate import Sampling, Writer
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.workbench import Workbench

_NEW_TOKENS = 240
_TEMPERATURE = 0.8
_PROMPT_CHARACTERS = 40


class TryDialog(FieldDialog):
    """Type the beginning of a text, Enter, and read on; or hold a conversation with a model that learnt to."""

    heading = "Try the model"
    keys: Sequence[tuple[str, str]] = (("enter", "continue the text"), ("escape", "close"))

    def __init__(self, bench: Workbench, folder: RunFolder, prompt: str) -> None:
        super().__init__(prompt)
        self._status = ""
        self._bench, self._folder = bench, folder
        state = bench.run.state if bench.run is not None else None
        task = find_task(state.task or "causal_lm") if state else None
        if task is not None and not task.continues:
            self.keys = (("enter", "ask the model"), *self.keys[1:])
        self._chats = task is not None and not task.continues and getattr(task, "head", "causal_lm") == "causal_lm"
        if self._chats:
            # A sample's prompt has the signs of the chat template.
            self._text = ""
            self._status = "/help lists commands, /system TEXT sets how it begins"
        self._has_base = state is not None and state.plan is not None and bool(state.plan.base_model)
        if self._has_base:
            self.keys = (*self.keys[:1], ("tab", "base model beside it"), *self.keys[1:])
        self._with_base = self._is_closed = self._wants_end = False
        self._writers: dict[str, Writer] = {}
        self._conversation: Conversation | None = None
        self._transcript: list[str] = []
        self._said = ["", ""]
        self._seed = self._drawn_pieces = 0

    def inside(self) -> Iterable[Widget]:
        yield self.field
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(lambda width, _: self.lines(width))
        yield Pane(lambda *_: [[(self._status, "dim")]], classes="status")

    def lines(self, width: int) -> list[Line]:
        shown = visible("".join(self._transcript or self._said)).replace("\t", "    ")
        return [[(row, "text")] for line in shown.split("\n") for row in (textwrap.wrap(line, width) or [""])]

    def take_key(self, event: Key) -> bool:
        is_scroll = event.key in ("up", "down", "pageup", "pagedown")
        if event.key == "tab" and self._has_base:
            self._with_base = not self._with_base
            self._status = "the base model answers first" if self._with_base else "the trained model alone"
            self.redraw()
            return True
        return (is_scroll and self.scrolls(event.key)) or super().take_key(event)

    def take(self) -> None:
        prompt, self._seed = self.field.value, self._seed + 1
        if self._chats:
            self.field.put("")
            self._transcript.append(f"> {prompt}\n")
        self._status = "writing ..." if self._writers else "loading the weights ..."
        self._bench.background.do(TRYING, lambda: self._write(prompt, self._seed), self._wrote)
        self.redraw()

    def by_clock(self) -> object:
        return len(self._transcript), self._status

    def redraw(self) -> None:
        super().redraw()
        if len(self._transcript) != self._drawn_pieces:
            self._drawn_pieces = len(self._transcript)
            self.call_after_refresh(self.scrolls, "end")

    def close(self) -> None:
        self._is_closed = True
        super().close()

    def _write(self, prompt: str, seed: int) -> tuple[str, str, str]:
        from tui_trainer.exporting.generate import Sampling

        sampling = Sampling(max_new_tokens=_NEW_TOKENS, temperature=_TEMPERATURE, seed=seed)
        try:
            source = self._load()
            if self._chats:
                self._converse(prompt, sampling)
                return "", "", f"weights of {source}; /help lists commands"
            if len(self._writers) == 1:
                return *_made(
                    self._writers["tuned"], prompt, sampling
                ), f"weights of {source}; Enter writes another one"
            both = [f"[{name}] {''.join(_made(one, prompt, sampling))}" for name, one in self._writers.items()]
            return "", "\n\n".join(both), f"weights of {source}"
        except TuiTrainerError as error:
            return "", "", one_line(str(error))

    def _load(self) -> str:
        """Load what is not there yet; the name of the folder of the weights. Raises TuiTrainerError."""
        from tui_trainer.exporting.generate import Writer

        tuned = self._writers.get("tuned") or Writer(self._folder)
        writers = {"tuned": tuned}
        if self._with_base:
            writers = {"base": self._writers.get("base") or self._base(), **writers}
        if writers.keys() != self._writers.keys():
            # With other models a conversation begins anew.
            self._writers, self._conversation = writers, None
        return one_line(tuned.source.name)

    def _base(self) -> Writer:
        from tui_trainer.exporting.generate import Writer
        from tui_trainer.exporting.trained_model import TrainedModel

        base, reason = TrainedModel.of(self._folder, unfinished=True).base_model()
        if base is None:
            self._with_base = False
            raise FolderError(reason or "it was trained from scratch: it has no base model")
        return Writer(self._folder, base=base)

    def _converse(self, line: str, sampling: Sampling) -> None:
        """As `tui-trainer chat` does with a line."""
        from tui_trainer.exporting.conversation import Conversation

        if self._conversation is None:
            self._transcript = self._transcript[-1:]
            self._conversation = Conversation(
                self._writers, sampling, show=self._hear, tell=lambda words: self._hear(f"{words}\n")
            )
        self._wants_end = not self._conversation.take(line)

    def _hear(self, piece: str) -> None:
        if self._is_closed:
            raise GivenUp
        self._transcript.append(piece)

    def _wrote(self, result: tuple[str, str, str]) -> None:
        *self._said, self._status = result
        if self._wants_end:
            self.close()
        elif self.is_attached:
            self.redraw()


def _made(writer: Writer, prompt: str, sampling: Sampling) -> tuple[str, str]:
    if not writer.continues:
        return prompt, f"\n\n{writer.answer(prompt, sampling)}"
    pieces: list[str] = []
    writer.continue_text(prompt, sampling, pieces.append)
    return prompt, "".join(pieces)


def offer_try(bench: Workbench) -> None:
    """A prompt for the model of the run on the table."""
    run = bench.run
    if run is not None:
        samples = run.state.samples
        # A few words of held-out text to begin with: whole words of its last line that has some.
        lines = [line.strip() for line in samples[-1].prompt.split("\n") if len(line.split()) > 1] if samples else []
        last = one_line(lines[-1]) if lines else ""
        words = last[-_PROMPT_CHARACTERS:].partition(" ")[2] if len(last) > _PROMPT_CHARACTERS else last
        bench.app.open(TryDialog(bench, run.folder, words))
