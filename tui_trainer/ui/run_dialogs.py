"""Dialogs about a run: the doctor's diagnosis, and trying the model on a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual.events import Key
from textual.widget import Widget

from tui_trainer.advice.examine import FoundCause
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.errors import InputError, TuiTrainerError
from tui_trainer.launching.model_process import ChildWriter, ModelDevice, ModelProcess, find_device
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line, show_control_characters
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.dialogs import Dialog, FieldDialog
from tui_trainer.ui.spans import Line, Role, labelled, paragraph, rows_of, wrap_if_long
from tui_trainer.ui.starting import take_settings_of
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import TRYING, Workbench

if TYPE_CHECKING:
    from tui_trainer.exporting.chat_session import ChatSession

_LABEL, _PROMPT_CHARACTERS = 5, 40
_NEW_TOKENS, _TEMPERATURE = 240, 0.8


class DoctorDialog(Dialog):
    """The doctor's diagnosis of a run. It is updated while the dialog is open."""

    heading = "Doctor"

    def __init__(self, bench: Workbench, run: WatchedRun) -> None:
        super().__init__()
        self._bench, self._run = bench, run

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        return (*[("a", "apply to the config")] * bool(self._fix), ("escape", "close"))

    @property
    def _fix(self) -> Patch | None:
        """Changes of settings that would help the next run; None if there are none."""
        return verdict.fix if (verdict := self._run.doctor.examination) else None

    def lines(self, width: int) -> list[Line]:
        verdict = self._run.doctor.examination
        if verdict is None:
            return []
        rows: list[Line] = []
        if verdict.leading_finding is None:
            rows += [*wrap_if_long([(verdict.healthy_sentence, "good" if verdict.is_known else "dim")], width), []]
        for finding in verdict.findings:
            rows += [*self._finding_lines(finding, width), []]
        return rows[:-1]

    def _finding_lines(self, finding: FoundCause, width: int) -> list[Line]:
        diagnosis, safe_text = finding.cause, self.glyphs.replace_unsupported
        role: Role = "bad" if diagnosis.is_fault else "warn" if finding.matters else "text"
        lines: list[Line] = [[(finding.symptom.title, role), (f"  {finding.cost_words}", "bold")]]
        texts = [("", safe_text(diagnosis.cause)), ("", safe_text(diagnosis.evidence))]
        # The key applies only what matters.
        words, label = settings_words(diagnosis.fix or {}), "set" if finding.matters else ""
        texts += [(label, words if label or not words else f"consider {words}"), ("do", safe_text(diagnosis.advice))]
        for label, text in [*texts, ("why", finding.symptom.why)]:
            text_role: Role = "accent" if label == "set" else "dim" if label == "why" else "text"
            lines += labelled(label, text, _LABEL, width, text_role) if text else []
        return lines

    def press(self, key: str, character: str | None) -> bool:
        if character != "a" or not self._fix:
            return True
        take_settings_of(self._bench, self._run.folder, self._fix)
        return False


class TryDialog(FieldDialog):
    """Dialog that sends a prompt to the model. The model runs in its own process.

    Its random numbers thus cannot change those of a run in this process, and all its memory is freed at the end.
    """

    heading = "Try the model"

    def __init__(self, bench: Workbench, folder: RunFolder, prompt: str) -> None:
        super().__init__(prompt)
        self._status = ""
        self._bench, self._folder = bench, folder
        assert bench.run is not None, "it is opened for a run"
        state = bench.run.state
        task = find_task(state.task)
        self._is_chat = task.holds_conversations
        if self._is_chat:
            # The prompts of the run's samples contain tokens of the chat template, so none is proposed.
            self._text = ""
        checkpoint_text = f"step {state.checkpoints[-1].step:,}" if state.checkpoints else "not written yet"
        self._newest = f"latest checkpoint: {checkpoint_text}, training continues; " if bench.run.alive else ""
        # A base model has no head for the labels of a run.
        self._has_base = state.plan is not None and bool(state.plan.base_model) and not task.labels_rows
        enter_label = "continue the text" if task.continues else "ask the model"
        self.keys = (("enter", enter_label), *[("tab", "compare base model")] * self._has_base, ("escape", "close"))
        self._with_base = self._wants_end = self._is_writing = False
        self._process: ModelProcess | None = None
        self._peak_bytes = state.last_step.peak_memory_bytes if state.last_step else 0
        self._writers: dict[str, ChildWriter] = {}
        self._conversation: ChatSession | None = None
        self._transcript: list[str] = []
        self._output = ""
        self._seed = self._drawn_pieces = 0

    def compose_content(self) -> Iterable[Widget]:
        yield self.field
        yield from super().compose_content()
        yield Pane(lambda width, _: paragraph(self._status, width, "dim"), classes="status")

    def on_mount(self) -> None:
        # The text is an example. It is selected, so that typing replaces it.
        self.field.select_all()
        self._status = f"{self._newest}looking for free memory ..."
        self._bench.background.run_work("place", self._find_device, self._show_device, lane=TRYING)

    def _find_device(self, models: int = 1) -> ModelDevice:
        bench = self._bench
        gpu, peak_bytes = bench.chosen_gpu, self._peak_bytes or 0
        return find_device(self._folder, bench.hardware, _NEW_TOKENS, gpu=gpu, models=models, seen_bytes=peak_bytes)

    def _show_device(self, place: ModelDevice) -> None:
        if not self._is_writing and not self._output and not self._transcript:
            commands_note = "; /help lists commands, /system TEXT sets the system prompt" if self._is_chat else ""
            self._status = f"{self._newest}{place.words}{commands_note}"
            self.redraw()

    def lines(self, width: int) -> list[Line]:
        text = show_control_characters("".join(self._transcript) or self._output).replace("\t", "    ")
        return [[(row, "text")] for line in text.split("\n") for row in rows_of(line, width) or [""]]

    def take_key(self, event: Key) -> bool:
        is_scroll = event.key in ("up", "down", "pageup", "pagedown")
        if event.key == "tab" and self._has_base:
            self._with_base = not self._with_base
            both_message = "each prompt goes to the base model, then to the trained model"
            self._status = both_message if self._with_base else "each prompt goes to the trained model only"
            self.redraw()
            return True
        return (is_scroll and self.scroll_by_key(event.key)) or super().take_key(event)

    def accept_input(self) -> None:
        if self._is_chat and self._is_writing:
            return  # otherwise the earlier answer would be printed below the new prompt
        prompt, self._seed = self.field.value, self._seed + 1
        self._is_writing = True
        if self._is_chat:
            self.field.put("")
            self._transcript.append(f"> {prompt}\n")
        self._status = "generating ..." if self._writers else "loading the weights ..."
        work = partial(self._generate, prompt, self._seed)
        self._bench.background.run_work(TRYING, work, self._show_result, lane=TRYING)
        self.redraw()

    def close(self) -> None:
        super().close()
        if self._process:
            self._process.cancel()
        self._bench.background.run_work(TRYING, self._end_process, lambda _: None, lane=TRYING)

    def _end_process(self) -> None:
        if self._process:
            self._process.close()

    def live_state(self) -> object:
        return len(self._transcript), self._status

    def redraw(self) -> None:
        super().redraw()
        if len(self._transcript) != self._drawn_pieces:
            self._drawn_pieces = len(self._transcript)
            self.call_after_refresh(self.scroll_by_key, "end")

    def _generate(self, prompt: str, seed: int) -> tuple[str, str]:
        """Return the generated text and the new status line. The text is empty for a chat or an error."""
        sampling = Sampling(max_new_tokens=_NEW_TOKENS, temperature=_TEMPERATURE, seed=seed)
        try:
            self._load()
            if self._is_chat:
                self._converse(prompt, sampling)
                return "", f"weights of {self._source}; /help lists commands"
            texts = {name: _generated(writer, prompt, sampling) for name, writer in self._writers.items()}
            if len(texts) == 1:
                return texts["tuned"], f"weights of {self._source}; Enter to generate again"
            return "\n\n".join(f"[{name}] {text}" for name, text in texts.items()), f"weights of {self._source}"
        except TuiTrainerError as error:
            return "", one_line(str(error))

    @property
    def _source(self) -> str:
        """Words for the folder of the weights and the device that they are on."""
        assert self._process is not None, "they were loaded"
        device = self._process.place.words
        if any(writer.has_moved_to_cpu for writer in self._writers.values()):
            device = "on the CPU, because the GPU had too little memory"
        return f"{one_line(self._writers['tuned'].source)}, {device}"

    def _load(self) -> None:
        """Load the models that are needed and not loaded yet. Raise TuiTrainerError if that fails."""
        from tui_trainer.runs.lock import keep_in_use

        names = [*["base"] * self._with_base, "tuned"]
        is_loaded = self._process is not None and all(name in self._writers for name in names)
        if self._process is None or (self._process.place.card_uuid and not is_loaded):
            # End the old process first, because its GPU memory would count as used.
            self._end_process()
            self._process, self._writers = ModelProcess(self._find_device(len(names))), {}
        with keep_in_use(self._folder, "trying the model"):
            tuned_writer = self._writers.get("tuned") or ChildWriter(self._process, self._folder)
            base_writers = {"base": self._writers.get("base") or self._base()} if self._with_base else {}
        writers = {**base_writers, "tuned": tuned_writer}
        if writers.keys() != self._writers.keys():
            # Other models start a new conversation.
            self._writers, self._conversation = writers, None

    def _base(self) -> ChildWriter:
        try:
            assert self._process is not None
            return ChildWriter(self._process, self._folder, base=True)
        except TuiTrainerError:
            self._with_base = False
            raise

    def _converse(self, line: str, sampling: Sampling) -> None:
        """Answer one line of the conversation, as `tui-trainer chat` does."""
        from tui_trainer.exporting.chat_session import ChatSession

        if self._conversation is None:
            self._transcript = self._transcript[-1:]
            self._conversation = ChatSession(
                self._writers, sampling, show=self._add_piece, notify=lambda words: self._add_piece(f"{words}\n")
            )
        self._wants_end = not self._conversation.take(line)

    def _add_piece(self, piece: str) -> None:
        if self.is_closed:
            raise GivenUp
        self._transcript.append(piece)

    def _show_result(self, result: tuple[str, str]) -> None:
        self._output, self._status = result
        self._is_writing = False
        if self._wants_end:
            self.close()
        else:
            self.redraw()


def _generated(writer: ChildWriter, prompt: str, sampling: Sampling) -> str:
    if not writer.continues:
        return f"{prompt}\n\n{writer.answer(prompt, sampling)}"
    pieces = [prompt]
    writer.continue_text(prompt, sampling, pieces.append)
    return "".join(pieces)


def offer_try(bench: Workbench) -> None:
    run = bench.run
    if run is not None:
        samples = run.state.samples
        # The proposed prompt is the end of the last sample's prompt: whole words of its last line with several words.
        lines = [line.strip() for line in samples[-1].prompt.split("\n") if len(line.split()) > 1] if samples else []
        text = one_line(lines[-1]) if lines else ""
        prompt = text[-_PROMPT_CHARACTERS:].partition(" ")[2] if len(text) > _PROMPT_CHARACTERS else text
        try:
            bench.app.open(TryDialog(bench, run.folder, prompt))
        except InputError as error:  # this program does not know the run's task
            bench.show_notice(str(error), "bad")
