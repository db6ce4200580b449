"""The dialogs of commands that run in their own process: what the command does, its progress, and its result.

`CommandDialog` serves all commands but exports; its caller passes a function that draws the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from textual.widget import Widget

from tui_trainer.errors import InputError
from tui_trainer.launching.command_process import JsonProcess
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Dialog
from tui_trainer.ui.own_processes import Measurement, Tool
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, both_ends_line, pad, paragraph, progress_line, rows_of
from tui_trainer.ui.widgets.lists import VI_KEYS, ChoiceList, LineList
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import format_bytes, format_whole_seconds

if TYPE_CHECKING:
    from tui_trainer.launching.export_process import ExportChoice, ExportProcess
    from tui_trainer.runs.folder import RunFolder

    Form = dict[RunFolder, ExportChoice]
    """One export format. The keys are the runs that have a model; each value describes the export of that run."""

# Most output lines to show while a command runs.
_SHOWN: Final = 12
_NAME_CELLS: Final = 11
Draw = Callable[[Any, int, Glyphs], list[Line]]
"""Function that draws the output or the result of a process: (process, width, glyphs) -> lines."""


def rows_as_text(texts: Sequence[str], width: int) -> list[Line]:
    """Return texts as lines. Rows of tables keep their blanks, and longer sentences are wrapped."""
    return [[(row, "text")] for text in texts for row in rows_of(one_line(text), width) or [""]]


def _newest_lines(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
    """Return the newest output lines. While the command runs, the last line is left out, as `current_work_line` shows
    it."""
    lines = process.lines[:-1] if process.alive else process.lines
    return [line for text in lines[-_SHOWN:] for line in paragraph(text, width)]


def current_work_line(process: JsonProcess, width: int, glyphs: Glyphs) -> Line:
    """Return a line with the present work of the command, its progress and the elapsed time."""
    amount_done, total, unit = process.progress
    if total and not process.is_cancelled:
        return progress_line(process.part, amount_done, total, unit, width, glyphs)
    amount_text = f" {amount_done:,.0f} {one_line(unit)}" if amount_done else ""
    work: Line = [("stopping ..." if process.is_cancelled else f"{one_line(process.part)}{amount_text} ...", "accent")]
    return both_ends_line(work, [(f"  {format_whole_seconds(process.seconds)} elapsed", "dim")], width)


def clock_state(process: JsonProcess | None) -> object:
    """Return the state of a process that its lines depend on, for `Dialog.live_state`."""
    if process is None:
        return None
    seconds = int(process.seconds) if process.alive else 0
    return len(process.lines), process.part, process.progress, process.alive, process.is_cancelled, seconds


class CommandDialog(Dialog):
    """A command, its progress and its result. If the dialog is closed, the command continues.

    A command that asks first reports what it would do; Enter then confirms.
    """

    def __init__(
        self, bench: Workbench, command: Measurement[Any] | Tool, heading: str, result: Draw, *,
        so_far: Draw = _newest_lines, about: Sequence[str] = (), apply: tuple[str, str] = ("", ""),
    ) -> None:  # fmt: skip
        """Create the dialog. `about` describes the command. `apply` names its suggested change, for key and undo."""
        super().__init__()
        self.bench, self.command, self.heading = bench, command, heading
        self._draw_result, self._draw_output, self._about, self._apply = result, so_far, about, apply

    def live_state(self) -> object:
        return clock_state(self.command.process)

    @property
    def _offer(self) -> Mapping[str, Any] | None:
        return self.command.confirmation if isinstance(self.command, Tool) else None

    @property
    def _is_over(self) -> bool:
        """Whether the command has ended and asks nothing."""
        process = self.command.process
        return process is not None and not process.alive and self._offer is None

    @property
    def command_words(self) -> Sequence[str]:  # type: ignore[override]
        return self.command.arguments if type(self.command) is Tool else ()

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self.command.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, keep running"))
        apply_key = (("a", self._apply[0]),) if process is not None and process.patch else ()
        if self._is_over:
            return (*apply_key, ("r", "run again"), ("enter", "close"))
        return (*apply_key, ("enter", "begin" if process is None else "confirm"), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        process = self.command.process
        if process is None:
            about = self._about or ["not started"]
            return [line for text in about for line in paragraph(text, width)] + self._warnings(width)
        if process.alive:
            return [*self._draw_output(process, width, self.glyphs), current_work_line(process, width, self.glyphs)]
        if not process.result:
            return [*self._draw_output(process, width, self.glyphs), *paragraph(process.reason, width, "bad")]
        if (offer := self._offer) is not None:
            return rows_as_text(offer["offer"], width) + self._warnings(width)
        return self._draw_result(process, width, self.glyphs)

    def _warnings(self, width: int) -> list[Line]:
        is_slowing = self.bench.run_is_alive and not self.command.is_measurement
        warnings = ["A run is training: this command slows the run down and uses memory."] * is_slowing
        other_tools = [tool for tool in self.bench.tools.values() if tool.running_process and not tool.is_measurement]
        names = [one_line(tool.command_name) for tool in other_tools if tool is not self.command]
        warnings += [f"{name} is also running" for name in names]
        if other := self.bench.other_running_measurement(self.command):
            warnings.append(f"{one_line(other.command_name)} is running: this command would distort that measurement")
        return [line for text in warnings for line in paragraph(text, width, "warn")]

    def press(self, key: str, character: str | None) -> bool:
        process = self.command.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
        elif character == "a" and process is not None and process.patch:
            self.bench.apply(process.patch, self._apply[1])
            return False
        elif key == "enter" and self._is_over:
            return False
        elif (key == "enter" or (character == "r" and self._is_over)) and (reason := self.start()):
            self.bench.show_notice(reason, "warn")
            return False
        return True

    def start(self) -> str:
        """Start the command. Return why it cannot be started; empty if it was started or is running."""
        other = self.bench.other_running_measurement(self.command) if self.command.is_measurement else None
        distortion = f"{other.command_name} is still running and would distort the measurement" if other else ""
        return distortion or self.command.start()


def open_and_start(dialog: CommandDialog) -> None:
    """Start the measurement of a dialog, unless it is running already, and open the dialog."""
    if reason := dialog.start():
        dialog.bench.show_notice(reason, "warn")
    else:
        dialog.bench.app.open(dialog)


def open_tool(
    bench: Workbench, tool: Tool, heading: str, about: Sequence[str] = (),
    show: Callable[[Mapping[str, Any], int], list[str]] = lambda _, width: [],
) -> None:  # fmt: skip
    """Open the dialog of a tool. A tool that was opened before is shown again rather than restarted."""

    def draw_result(process: JsonProcess, width: int, _: Glyphs) -> list[Line]:
        result = process.result or {}
        lines = rows_as_text(show(result, width), width)
        notes = [*process.lines, *map(one_line, result.get("notes", ()))]
        return [*lines, *(line for text in notes for line in paragraph(text, width, "dim"))]

    earlier_tool = bench.tools.get(tool.command_name)
    if earlier_tool is None or not earlier_tool.running_process:
        bench.tools[tool.command_name] = tool
    tool = bench.tools[tool.command_name]
    # A command that asks first can start at once, because it changes nothing until the user confirms.
    if tool.process is None and not about and (reason := tool.start()):
        bench.show_notice(reason, "warn")
        return
    bench.app.open_next(CommandDialog(bench, tool, heading, draw_result, about=about))


def menu(heading: str, answers: Sequence[Answer]) -> ChoiceDialog:
    """Return a question with one answer in each row, for answers that do not fit into the line of keys."""
    dialog = ChoiceDialog(heading, [[(f"{key}  ", "key"), (label, "text")] for key, label, _ in answers], answers)
    dialog.keys = dialog.keys[-1:]
    return dialog


def _possible(form: Form) -> list[RunFolder]:
    return [folder for folder, choice in form.items() if not choice.refusal]


def _choice(form: Form) -> ExportChoice:
    """Return the choice of one of the runs: the name and title of a format are the same for all of them."""
    return next(iter(form.values()))


class ExportDialog(Dialog):
    """List of export formats with their sizes, and details of the chosen format.

    For one run, the dialog shows the progress of its export. Several runs are exported one by one in the background.
    """

    def __init__(self, bench: Workbench, folders: Sequence[RunFolder]) -> None:
        super().__init__()
        self._bench, self._folders, self._has_several = bench, folders, len(folders) > 1
        self.heading = f"Export {f'{len(folders)} runs' if self._has_several else one_line(folders[0].name, 60)}"
        self._list: ChoiceList[Form] = ChoiceList(self._row, id="formats")
        self._without: dict[RunFolder, str] = {}
        """Runs that cannot be exported to any format, each with the reason."""
        self._is_ready = False
        self._listed_at: object = None
        """State of the export when the formats were last listed. They are listed again when it changes."""

    def compose_content(self) -> Iterable[Widget]:
        yield self._list
        yield Pane(lambda width, _: self.lines(width), id="about")

    def on_mount(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        process = self._process
        state = process, process is not None and process.alive
        if self._listed_at != state:
            self._listed_at = state
            self._bench.background.run_work("formats", self._ask, self._found)
        super().redraw()

    def _ask(self) -> dict[RunFolder, tuple[ExportChoice, ...] | str]:
        from tui_trainer.launching.export_process import choices

        answers: dict[RunFolder, tuple[ExportChoice, ...] | str] = {}
        for folder in self._folders:
            try:
                answers[folder] = choices(folder)
            except (InputError, OSError) as error:
                answers[folder] = one_line(str(error))
        return answers

    def _found(self, answers: dict[RunFolder, tuple[ExportChoice, ...] | str]) -> None:
        self._is_ready = True
        forms: dict[str, Form] = {}
        for folder, answer in answers.items():
            if isinstance(answer, str):
                self._without[folder] = answer
                continue
            for choice in answer:
                forms.setdefault(choice.name, {})[folder] = choice
        current = _choice(self._list.chosen).name if self._list.chosen else self._process.name if self._process else ""
        is_initial = [name == current if current else bool(_possible(form)) for name, form in forms.items()]
        self._list.show(list(forms.values()), is_initial.index(True) if True in is_initial else 0)
        if self.is_attached:
            self._list.styles.height = max(len(forms), 1)
            self.redraw()

    @property
    def _process(self) -> ExportProcess | None:
        """The newest export of the run; None if there is none, or if the dialog is about several runs."""
        export = self._bench.exports.process
        return export if export is not None and [export.run] == list(self._folders) else None

    def live_state(self) -> object:
        return clock_state(self._process)

    @property
    def command_words(self) -> Sequence[str]:  # type: ignore[override]
        form = self._list.chosen
        return ["export", str(next(iter(form)).root), "--to", _choice(form).name] if form else []

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._process is not None and self._process.alive:
            return (("c", "cancel the export"), ("up down", "choose"), ("escape", "close, keep exporting"))
        if (form := self._list.chosen) is None:
            return (("escape", "close"),)
        return (*[("enter", "export")] * bool(_possible(form)), ("up down", "choose"), ("escape", "close"))

    def _row(self, form: Form, width: int) -> Line:
        role: Role = "text" if _possible(form) else "dim"
        choice = _choice(form)
        line: Line = [(f" {pad(choice.name, _NAME_CELLS)}", role), (choice.title, role)]
        return both_ends_line(line, [self._state(form)], width)

    def _state(self, form: Form) -> Span:
        process, choice, folders = self._process, _choice(form), _possible(form)
        size_text = f"~{format_bytes(sum(form[folder].size_bytes for folder in folders))}"
        if self._has_several:
            return (f"{len(folders)} of {len(self._folders)} runs{f', {size_text}' if folders else ''}", "dim")
        if process is not None and process.name == choice.name and not process.is_good:
            if process.alive:
                return "exporting", "accent"
            return "cancelled" if process.is_cancelled else "failed", "bad"
        if choice.is_there:
            return f"exported, {format_bytes(choice.size_bytes)}", "good"
        return (size_text if folders else "not possible", "dim")

    def lines(self, width: int) -> list[Line]:
        form, process = self._list.chosen, self._process
        if not self._is_ready:
            return paragraph("checking the formats ...", width)
        if self._has_several:
            return self._about_several(form or {}, width)
        if form is None:
            return [line for refusal in self._without.values() for line in paragraph(refusal, width)]
        choice = _choice(form)
        if process is not None and process.name == choice.name:
            return progress_lines(process, width, self.glyphs)
        if choice.refusal:
            return paragraph(choice.refusal, width, "warn")
        texts = [
            f"Writes about {format_bytes(choice.size_bytes)} to export/{choice.name} in the run's folder.",
            f"Needs {format_bytes(choice.needed_bytes)} of disk at most; {format_bytes(choice.free_bytes)} is free.",
            "Then loads the export in a fresh process and compares it with the trained model.",
        ]
        if choice.expected_seconds:
            texts.append(f"Takes about {format_whole_seconds(choice.expected_seconds)}, judging by earlier exports.")
        if choice.is_there:
            texts.append("Replaces the existing export.")
        lines = [line for text in texts for line in paragraph(text, width)]
        if self._bench.run_is_alive:
            lines += paragraph("A run is training: the export slows it down and uses memory.", width, "warn")
        if export := self._bench.exports.running_process:
            text = f"{one_line(export.run.name)} is being exported to {export.name}: wait until it is done"
            lines += paragraph(text, width, "warn")
        return lines

    def _about_several(self, form: Form, width: int) -> list[Line]:
        lines = paragraph("Exports run in the background, one by one. Each is compared with its trained model.", width)
        reasons = {folder: why.removeprefix(f"{one_line(folder.name)}: ") for folder, why in self._without.items()}
        reasons |= {folder: choice.refusal for folder, choice in form.items() if choice.refusal}
        for folder, why in reasons.items():
            lines += paragraph(f"{one_line(folder.name)} is skipped: {why}", width, "warn")
        return lines

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        if message.is_double_click and not self._start():
            self.close()
        self.redraw()

    def press(self, key: str, character: str | None) -> bool:
        if character == "c" and self._process is not None and self._process.alive:
            self._process.cancel()
        elif key == "enter":
            return self._start()
        self._list.takes_key(VI_KEYS.get(key, key))
        return True

    def _start(self) -> bool:
        """Start the export to the chosen format, if it is possible. Return whether the dialog stays open."""
        form = self._list.chosen
        if form is None or not (folders := _possible(form)):
            return True
        name = _choice(form).name
        if not self._has_several:
            self._bench.exports.start(folders[0], name)
            return True
        self._bench.exports.start_all([(folder, name) for folder in folders])
        return False


def progress_lines(process: ExportProcess, width: int, glyphs: Glyphs) -> list[Line]:
    if process.alive:
        return [current_work_line(process, width, glyphs)]
    role: Role = "text" if process.result else "bad"
    lines = [line for text in process.words for line in paragraph(text, width, role)]
    if not process.result:
        return lines
    verdict: Span = (f"{glyphs.good} the export matches the trained model", "good")
    if not process.is_good:
        verdict = (f"{glyphs.bad} the export differs from the trained model and is kept under another name", "bad")
    return [[verdict], *lines, *paragraph(process.result["folder"], width, "dim")]
