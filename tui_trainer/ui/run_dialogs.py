"""What can be done with a run that was made: what ails it and how the next one is better, its model to be tried with a
prompt, and to be exported to another form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

from textual.events import Key
from textual.widget import Widget

from tui_trainer.advice.examine import Examination, FoundCause
from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.errors import InputError, TuiTrainerError
from tui_trainer.launching.model_process import ChildWriter, ModelProcess, Place, find_place
from tui_trainer.runs.state import RunState
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line, visible
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.dialogs import Dialog, FieldDialog
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, bar, beside, fit, folded, labelled, pad, paragraph, rows_of
from tui_trainer.ui.starting import take_settings_of
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.widgets.lists import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import TRYING, Workbench
from tui_trainer.units import format_bytes, round_seconds

if TYPE_CHECKING:
    from tui_trainer.exporting.chat_session import ChatSession
    from tui_trainer.launching.export_process import ExportChoice, ExportProcess
    from tui_trainer.models.writing import Sampling
    from tui_trainer.runs.folder import RunFolder

_LABEL, _PROMPT_CHARACTERS = 5, 40
_NEW_TOKENS, _TEMPERATURE = 240, 0.8
_NAME_CELLS, _BAR_CELLS = 11, 24


class DoctorDialog(Dialog):
    """The verdict as of now: it is made anew while the dialog is open."""

    heading = "Doctor"

    def __init__(self, bench: Workbench, run: WatchedRun) -> None:
        super().__init__()
        self._bench, self._run = bench, run

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        return (*[("a", "apply to the config")] * bool(self._fix), ("escape", "close"))

    @property
    def _verdict(self) -> Examination | None:
        return self._run.doctor.verdict

    @property
    def _fix(self) -> Patch | None:
        """What the next run can be made with."""
        return self._verdict.fix if self._verdict else None

    def lines(self, width: int) -> list[Line]:
        verdict = self._verdict
        if verdict is None:
            return []
        rows: list[Line] = []
        if verdict.leading is None:
            rows += [*folded([(verdict.healthy, "good" if verdict.is_known else "dim")], width), []]
        for one in verdict.findings:
            rows += [*self._finding(one, width), []]
        return rows[:-1]

    def _finding(self, one: FoundCause, width: int) -> list[Line]:
        found, only = one.found, self.glyphs.only
        role: Role = "bad" if found.is_fault else "warn" if one.matters else "text"
        head: Line = [(one.symptom.title, role), (f"  {one.cost_words}", "bold")]
        told = [("", only(found.cause)), ("", only(found.evidence)), ("set", settings_words(found.fix or {}))]
        told += [("do", only(found.advice)), ("why", one.symptom.why)]
        rows = [head]
        for label, text in told:
            if text:
                kind: Role = "accent" if label == "set" else "dim" if label == "why" else "text"
                rows += labelled(label, text, _LABEL, width, kind)
        return rows

    def press(self, key: str, character: str | None) -> bool:
        if character != "a" or not self._fix:
            return True
        take_settings_of(self._bench, self._run.folder, self._fix)
        return False


class TryDialog(FieldDialog):
    """The model is in a process of its own, also after the run: what it draws must not move the generator of a run that
    trains in this process, and its end gives all memory back."""

    heading = "Try the model"

    def __init__(self, bench: Workbench, folder: RunFolder, prompt: str) -> None:
        super().__init__(prompt)
        self._status = ""
        self._bench, self._folder = bench, folder
        assert bench.run is not None, "it is opened for a run"
        state = bench.run.state
        task = find_task(state.task)
        self._chats = task.holds_conversations
        if self._chats:
            # A sample's prompt has the signs of the chat template.
            self._text = ""
        self._newest = f"the newest checkpoint is {_newest(state)}, training goes on; " if bench.run.alive else ""
        self._has_base = state.plan is not None and bool(state.plan.base_model)
        does = "continue the text" if task.continues else "ask the model"
        self.keys = (("enter", does), *[("tab", "base model beside it")] * self._has_base, ("escape", "close"))
        self._with_base = self._wants_end = self._is_writing = False
        self._process: ModelProcess | None = None
        self._seen_bytes = state.last_step.peak_memory_bytes if state.last_step else 0
        self._writers: dict[str, ChildWriter] = {}
        self._conversation: ChatSession | None = None
        self._transcript: list[str] = []
        self._said = ""
        self._seed = self._drawn_pieces = 0

    def inside(self) -> Iterable[Widget]:
        yield self.field
        yield from super().inside()
        yield Pane(lambda width, _: paragraph(self._status, width, "dim"), classes="status")

    def on_mount(self) -> None:
        self._status = f"{self._newest}looking where there is room for it ..."
        self._bench.background.do("place", self._find_place, self._found_place, lane=TRYING)

    def _find_place(self, models: int = 1) -> Place:
        bench = self._bench
        gpu, seen = bench.chosen_gpu, self._seen_bytes or 0
        return find_place(self._folder, bench.hardware, _NEW_TOKENS, gpu=gpu, models=models, seen_bytes=seen)

    def _found_place(self, place: Place) -> None:
        if not self._is_writing and not self._said and not self._transcript:
            more = "; /help lists commands, /system TEXT sets how it begins" if self._chats else ""
            self._status = f"{self._newest}{place.words}{more}"
            if self.is_attached:
                self.redraw()

    def lines(self, width: int) -> list[Line]:
        shown = visible("".join(self._transcript) or self._said).replace("\t", "    ")
        return [[(row, "text")] for line in shown.split("\n") for row in rows_of(line, width) or [""]]

    def take_key(self, event: Key) -> bool:
        is_scroll = event.key in ("up", "down", "pageup", "pagedown")
        if event.key == "tab" and self._has_base:
            self._with_base = not self._with_base
            self._status = "the base model answers first" if self._with_base else "the trained model alone"
            self.redraw()
            return True
        return (is_scroll and self.scrolls(event.key)) or super().take_key(event)

    def take(self) -> None:
        if self._chats and self._is_writing:
            return  # the answer to the question before would stand below this one
        prompt, self._seed = self.field.value, self._seed + 1
        self._is_writing = True
        if self._chats:
            self.field.put("")
            self._transcript.append(f"> {prompt}\n")
        self._status = "writing ..." if self._writers else "loading the weights ..."
        self._bench.background.do(TRYING, lambda: self._write(prompt, self._seed), self._wrote, lane=TRYING)
        self.redraw()

    def close(self) -> None:
        super().close()
        if self._process:
            self._process.end()
        self._bench.background.do(TRYING, self._end_process, lambda _: None, lane=TRYING)

    def _end_process(self) -> None:
        if self._process:
            self._process.close()

    def by_clock(self) -> object:
        return len(self._transcript), self._status

    def redraw(self) -> None:
        super().redraw()
        if len(self._transcript) != self._drawn_pieces:
            self._drawn_pieces = len(self._transcript)
            self.call_after_refresh(self.scrolls, "end")

    def _write(self, prompt: str, seed: int) -> tuple[str, str]:
        """What is to be read, and the status."""
        from tui_trainer.models.writing import Sampling

        sampling = Sampling(max_new_tokens=_NEW_TOKENS, temperature=_TEMPERATURE, seed=seed)
        try:
            self._load()
            if self._chats:
                self._converse(prompt, sampling)
                return "", f"weights of {self._source}; /help lists commands"
            texts = {name: _made(one, prompt, sampling) for name, one in self._writers.items()}
            if len(texts) == 1:
                return texts["tuned"], f"weights of {self._source}; Enter writes another one"
            return "\n\n".join(f"[{name}] {text}" for name, text in texts.items()), f"weights of {self._source}"
        except TuiTrainerError as error:
            return "", one_line(str(error))

    @property
    def _source(self) -> str:
        """The name of the folder of the weights, and where they are."""
        assert self._process is not None, "they were loaded"
        tuned, place = self._writers["tuned"], self._process.place.words
        moved = any(writer.moved for writer in self._writers.values())
        return f"{one_line(tuned.source)}, {'on the CPU: the card had no room after all' if moved else place}"

    def _load(self) -> None:
        """Load what is not there yet. Raises TuiTrainerError."""
        from tui_trainer.runs.lock import in_use

        names = [*["base"] * self._with_base, "tuned"]
        is_there = self._process is not None and all(name in self._writers for name in names)
        if self._process is None or (self._process.place.card_uuid and not is_there):
            # What it holds of the card would count as taken.
            self._end_process()
            self._process, self._writers = ModelProcess(self._find_place(len(names))), {}
        with in_use(self._folder, "loading it to try it"):
            tuned = self._writers.get("tuned") or ChildWriter(self._process, self._folder)
            base = {"base": self._writers.get("base") or self._base()} if self._with_base else {}
        writers = {**base, "tuned": tuned}
        if writers.keys() != self._writers.keys():
            # With other models a conversation begins anew.
            self._writers, self._conversation = writers, None

    def _base(self) -> ChildWriter:
        try:
            assert self._process is not None
            return ChildWriter(self._process, self._folder, base=True)
        except TuiTrainerError:
            self._with_base = False
            raise

    def _converse(self, line: str, sampling: Sampling) -> None:
        """As `tui-trainer chat` does with a line."""
        from tui_trainer.exporting.chat_session import ChatSession

        if self._conversation is None:
            self._transcript = self._transcript[-1:]
            self._conversation = ChatSession(
                self._writers, sampling, show=self._hear, tell=lambda words: self._hear(f"{words}\n")
            )
        self._wants_end = not self._conversation.take(line)

    def _hear(self, piece: str) -> None:
        if self.is_closed:
            raise GivenUp
        self._transcript.append(piece)

    def _wrote(self, result: tuple[str, str]) -> None:
        self._said, self._status = result
        self._is_writing = False
        if self._wants_end:
            self.close()
        elif self.is_attached:
            self.redraw()


def _newest(state: RunState) -> str:
    return f"step {state.checkpoints[-1].step:,}" if state.checkpoints else "not written yet"


def _made(writer: ChildWriter, prompt: str, sampling: Sampling) -> str:
    if not writer.continues:
        return f"{prompt}\n\n{writer.answer(prompt, sampling)}"
    pieces = [prompt]
    writer.continue_text(prompt, sampling, pieces.append)
    return "".join(pieces)


def offer_try(bench: Workbench) -> None:
    run = bench.run
    if run is not None:
        samples = run.state.samples
        # A few words of held-out text to begin with: whole words of its last line that has some.
        lines = [line.strip() for line in samples[-1].prompt.split("\n") if len(line.split()) > 1] if samples else []
        last = one_line(lines[-1]) if lines else ""
        words = last[-_PROMPT_CHARACTERS:].partition(" ")[2] if len(last) > _PROMPT_CHARACTERS else last
        try:
            bench.app.open(TryDialog(bench, run.folder, words))
        except InputError as error:  # of a task that this program does not have
            bench.tell(str(error), "bad")


def show_and_try(bench: Workbench, folder: RunFolder) -> None:
    """Show a run that is over on the Train screen, and try its model there."""
    run = WatchedRun(folder)

    def shown(_: bool) -> None:
        if bench.run_is_ours_and_alive:
            bench.tell("a run of this process is alive: the Train screen stays with it", "warn")
        else:
            bench.take_run(run)
            offer_try(bench)
        bench.app.draw()

    bench.background.do("a run", run.poll, shown, f"try {folder.root}")


class FormatsDialog(Dialog):
    """Forms that models can be written in, and what is known of the chosen one. `_ask` finds them, behind the screens,
    and `_found` puts them into `_choices`."""

    _choices: Sized

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench, self._chosen = bench, 0
        self._list = LineList(self._row, lambda: (len(self._choices), self._chosen), id="formats")

    @abstractmethod
    def _ask(self) -> Any: ...

    @abstractmethod
    def _found(self, result: Any) -> None: ...

    @abstractmethod
    def _row(self, place: int, width: int) -> Line: ...

    def inside(self) -> Iterable[Widget]:
        yield self._list
        yield Pane(lambda width, _: self.lines(width), id="about")

    def on_mount(self) -> None:
        self._bench.background.do("formats", self._ask, self._found)

    def _move(self, key: str) -> None:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1}.get(key, 0)
        self._chosen = min(max(self._chosen + steps, 0), max(len(self._choices) - 1, 0))


class ExportDialog(FormatsDialog):
    def __init__(self, bench: Workbench, folder: RunFolder) -> None:
        super().__init__(bench)
        self.heading = f"Export {one_line(folder.name, 60)}"
        self._folder = folder
        self._choices: tuple[ExportChoice, ...] = ()
        self._free_bytes, self._refusal = 0, ""

    def _ask(self) -> tuple[tuple[ExportChoice, ...], int] | str:
        from tui_trainer.launching.export_process import choices, free_bytes

        try:
            return choices(self._folder), free_bytes(self._folder)
        except (InputError, OSError) as error:
            return one_line(str(error))

    def _found(self, result: tuple[tuple[ExportChoice, ...], int] | str) -> None:
        if isinstance(result, str):
            self._refusal = result
        else:
            self._choices, self._free_bytes = result
            name = self._process.name if self._process else next((one.name for one in result[0] if not one.refusal), "")
            self._chosen = next((at for at, one in enumerate(self._choices) if one.name == name), 0)
        if self.is_attached:
            self._list.styles.height = len(self._choices)
            self.redraw()

    @property
    def _process(self) -> ExportProcess | None:
        export = self._bench.exports.process
        return export if export is not None and export.run == self._folder else None

    def by_clock(self) -> object:
        process = self._process
        return process and (process.outcome or int(process.seconds), process.progress, process.is_cancelled)

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._process is not None and self._process.alive:
            return (("c", "cancel the export"), ("up down", "choose"), ("escape", "close, it goes on"))
        if not self._choices:
            return (("escape", "close"),)
        enter = () if self._choices[self._chosen].refusal else (("enter", "export"),)
        return (*enter, ("up down", "choose"), ("escape", "close"))

    def _row(self, place: int, width: int) -> Line:
        one, process = self._choices[place], self._process
        is_chosen = place == self._chosen
        state, role = self._state(one, process)
        line: Line = [(f"{self.glyphs.pointer if is_chosen else ' '} ", "accent")]
        usual: Role = "dim" if one.refusal else "text"
        line = beside([*line, (pad(one.name, _NAME_CELLS), usual), (one.title, usual)], [(state, role)], width)
        return [(text, "cursor") for text, _ in line] if is_chosen else line

    def _state(self, one: ExportChoice, process: ExportProcess | None) -> tuple[str, Role]:
        if process is not None and process.name == one.name:
            if process.outcome is None:
                return "is being written", "accent"
            if process.outcome.is_good:
                return "exported", "good"
            return "cancelled" if process.is_cancelled else "failed", "bad"
        if one.is_there:
            return "exported", "good"
        return ("not possible", "dim") if one.refusal else (f"~{format_bytes(one.needed_bytes)}", "dim")

    def lines(self, width: int) -> list[Line]:
        if not self._choices:
            return paragraph(self._refusal or "looking what it can be exported to ...", width)
        one, process = self._choices[self._chosen], self._process
        if process is not None and process.name == one.name:
            return progress_lines(process, width, self.glyphs)
        if one.refusal:
            return paragraph(one.refusal, width, "warn")
        words = [
            f"It writes about {format_bytes(one.needed_bytes)} into export/{one.name} of the run; "
            f"{format_bytes(self._free_bytes)} are free",
            "Then it is loaded again in a fresh process and compared with the trained model.",
        ]
        if one.expected_seconds:
            words.append(f"It takes about {round_seconds(one.expected_seconds)}, as earlier ones did here.")
        if one.is_there:
            words.append("It was exported before: this one takes its place.")
        lines = [line for text in words for line in paragraph(text, width)]
        if self._bench.run_is_alive:
            lines += paragraph("A run is training: the export takes processor time and memory from it.", width, "warn")
        if other := self._bench.exports.alive:
            text = f"{one_line(other.run.name)} is being exported to {other.name}: one at a time"
            lines += paragraph(text, width, "warn")
        return lines

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._chosen = message.place
        if message.opens:
            self._start()
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if character == "c" and self._process is not None and self._process.alive:
            self._process.cancel()
        elif key == "enter":
            self._start()
        else:
            self._move(key)
        return True

    def _start(self) -> None:
        if self._choices and not self._choices[self._chosen].refusal:
            self._bench.exports.start(self._folder, self._choices[self._chosen].name)


def progress_lines(process: ExportProcess, width: int, glyphs: Glyphs) -> list[Line]:
    if (outcome := process.outcome) is not None:
        role: Role = "text" if outcome.folder else "bad"
        lines = [line for words in outcome.words for line in paragraph(words, width, role)]
        if not outcome.folder:
            return lines
        verdict: Span = (f"{glyphs.good} as it was trained", "good")
        if not outcome.is_good:
            verdict = (f"{glyphs.bad} not as it was trained; its folder is kept under another name", "bad")
        return [[verdict], *lines, *paragraph(outcome.folder, width, "dim")]
    if process.is_cancelled:
        return [[("cancelling ...", "warn")]]
    what, done, total, unit = process.progress
    so_far: Line = [(f"{round_seconds(process.seconds)} so far", "dim")]
    if not total:
        return [[(f"{one_line(what)} ...", "text")], so_far]
    words = f" {one_line(what)}, {done:,.0f} of {total:,.0f} {one_line(unit)}"
    return [fit([(bar(done / total, _BAR_CELLS, glyphs), "accent"), (words, "text")], width), so_far]
