"""Models of runs exported to another form: of one run, or of several one after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

from textual.widget import Widget

from tui_trainer.errors import InputError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, bar, beside, fit, pad, paragraph
from tui_trainer.ui.widgets.lists import LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import format_bytes, round_seconds

if TYPE_CHECKING:
    from tui_trainer.launching.export_process import ExportChoice, ExportProcess
    from tui_trainer.runs.folder import RunFolder

_NAME_CELLS, _BAR_CELLS = 11, 24


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
        seconds = int(process.seconds) if process and process.alive else 0
        return process and (process.alive, seconds, process.part, process.progress, process.is_cancelled)

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._process is not None and self._process.alive:
            return (("c", "cancel the export"), ("up down", "choose"), ("escape", "close, keep exporting"))
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
            if process.alive:
                return "exporting", "accent"
            if process.is_good:
                return "exported", "good"
            return "cancelled" if process.is_cancelled else "failed", "bad"
        if one.is_there:
            return "exported", "good"
        return ("not possible", "dim") if one.refusal else (f"~{format_bytes(one.needed_bytes)}", "dim")

    def lines(self, width: int) -> list[Line]:
        if not self._choices:
            return paragraph(self._refusal or "checking the formats ...", width)
        one, process = self._choices[self._chosen], self._process
        if process is not None and process.name == one.name:
            return progress_lines(process, width, self.glyphs)
        if one.refusal:
            return paragraph(one.refusal, width, "warn")
        words = [
            f"Writes about {format_bytes(one.needed_bytes)} to export/{one.name} in the run's folder; "
            f"{format_bytes(self._free_bytes)} free.",
            "Then loads the export in a fresh process and compares it with the trained model.",
        ]
        if one.expected_seconds:
            words.append(
                f"Takes about {round_seconds(one.expected_seconds)}, estimated from earlier exports on this machine."
            )
        if one.is_there:
            words.append("Replaces the existing export.")
        lines = [line for text in words for line in paragraph(text, width)]
        if self._bench.run_is_alive:
            lines += paragraph("A run is training: the export slows it down and uses memory.", width, "warn")
        if other := self._bench.exports.alive:
            text = f"{one_line(other.run.name)} is being exported to {other.name}: wait until it is done"
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
    if not process.alive:
        role: Role = "text" if process.result else "bad"
        lines = [line for words in process.words for line in paragraph(words, width, role)]
        if not process.result:
            return lines
        verdict: Span = (f"{glyphs.good} matches the trained model", "good")
        if not process.is_good:
            verdict = (f"{glyphs.bad} differs from the trained model; the export is kept under another name", "bad")
        return [[verdict], *lines, *paragraph(process.result["folder"], width, "dim")]
    if process.is_cancelled:
        return [[("cancelling ...", "warn")]]
    done, total, unit = process.progress
    so_far: Line = [(f"{round_seconds(process.seconds)} elapsed", "dim")]
    if not total:
        return [[(f"{one_line(process.part)} ...", "text")], so_far]
    words = f" {one_line(process.part)}, {done:,.0f} of {total:,.0f} {one_line(unit)}"
    return [fit([(bar(done / total, _BAR_CELLS, glyphs), "accent"), (words, "text")], width), so_far]


class ExportMarkedDialog(FormatsDialog):
    """One form for several runs: they are exported one after another, behind the screens."""

    def __init__(self, bench: Workbench, folders: Sequence[RunFolder]) -> None:
        super().__init__(bench)
        self.heading = f"Export {len(folders)} runs"
        self._folders = folders
        self._choices: dict[str, dict[RunFolder, ExportChoice]] = {}
        """By the name of a form, what it is for each run that has a model."""
        self._without: dict[RunFolder, str] = {}
        """Why the other runs cannot be exported."""
        self._is_ready = False

    def _ask(self) -> dict[RunFolder, tuple[ExportChoice, ...] | str]:
        from tui_trainer.launching.export_process import choices

        found: dict[RunFolder, tuple[ExportChoice, ...] | str] = {}
        for folder in self._folders:
            try:
                found[folder] = choices(folder)
            except (InputError, OSError) as error:
                found[folder] = one_line(str(error)).removeprefix(f"{one_line(folder.name)}: ")
        return found

    def _found(self, answer: dict[RunFolder, tuple[ExportChoice, ...] | str]) -> None:
        self._is_ready = True
        for folder, found in answer.items():
            if isinstance(found, str):
                self._without[folder] = found
                continue
            for one in found:
                self._choices.setdefault(one.name, {})[folder] = one
        names = list(self._choices)
        self._chosen = next((at for at, name in enumerate(names) if self._possible(name)), 0)
        if self.is_attached:
            self._list.styles.height = max(len(names), 1)
            self.redraw()

    def _possible(self, name: str) -> list[RunFolder]:
        return [folder for folder, one in self._choices[name].items() if not one.refusal]

    @property
    def _form(self) -> str:
        return list(self._choices)[self._chosen] if self._choices else ""

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        enter = [("enter", "export")] * bool(self._form and self._possible(self._form))
        return (*enter, ("up down", "choose"), ("escape", "close"))

    def _row(self, place: int, width: int) -> Line:
        name, found = list(self._choices.items())[place]
        is_chosen, possible = place == self._chosen, self._possible(name)
        usual: Role = "text" if possible else "dim"
        line: Line = [(f"{self.glyphs.pointer if is_chosen else ' '} ", "accent"), (pad(name, _NAME_CELLS), usual)]
        line.append((next(iter(found.values())).title, usual))
        needed = sum(found[folder].needed_bytes for folder in possible)
        state = f"{len(possible)} of {len(self._folders)} runs" + (f", ~{format_bytes(needed)}" if possible else "")
        line = beside(line, [(state, "dim")], width)
        return [(text, "cursor") for text, _ in line] if is_chosen else line

    def lines(self, width: int) -> list[Line]:
        if not self._is_ready:
            return paragraph("checking the formats ...", width)
        refused = dict(self._without)
        if self._form:
            refused |= {folder: one.refusal for folder, one in self._choices[self._form].items() if one.refusal}
        lines = paragraph("Exports run in the background, one by one. Each is compared with its trained model.", width)
        for folder, why in refused.items():
            lines += paragraph(f"{one_line(folder.name)} is skipped: {why}", width, "warn")
        return lines

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self._chosen = message.place
        if message.opens and self._start():
            self.close()
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            return not self._start()
        self._move(key)
        return True

    def _start(self) -> bool:
        wanted = self._possible(self._form) if self._form else []
        self._bench.exports.start_all([(folder, self._form) for folder in wanted])
        return bool(wanted)
