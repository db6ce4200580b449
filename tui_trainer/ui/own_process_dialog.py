"""What a command measures of the config on the table, in a box: how far it is, what came of it, and its patch.

`tune` looks for the fastest settings, a rehearsal tries what could fail.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.processes import Measurement
from tui_trainer.ui.spans import Line, Role, paragraph

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import ConfigProcess
    from tui_trainer.ui.workbench import Workbench

# Of what it has told, while it goes on.
_SHOWN = 12


class OwnProcessDialog(Dialog):
    """It goes on when this is closed, and is shown again when it is opened. `command` begins it, and has the process;
    `patch_words` names its patch in the list of what can be undone."""

    command: Measurement[Any]
    apply_words, patch_words = "", ""

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench = bench

    @abstractmethod
    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        """What it has told so far, or its result."""

    def by_clock(self) -> object:
        process = self.command.process
        return process and (len(process.lines), process.part, process.alive, process.is_cancelled)

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self.command.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, it goes on"))
        apply = (("a", self.apply_words),) if process is not None and process.patch else ()
        return (*apply, ("enter", "again"), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        process = self.command.process
        if process is None:
            return paragraph("not begun", width)
        lines = self.told(process, width)
        if process.alive:
            words = "ending ..." if process.is_cancelled else f"{process.part} ..."
            return [*lines, [(words, "accent")]]
        return lines if process.result else [*lines, *paragraph(process.reason, width, "bad")]

    def press(self, key: str, character: str | None) -> bool:
        process = self.command.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
            return True
        if character == "a" and process is not None and process.patch:
            for problem in self._bench.apply(process.patch, self.patch_words):
                self._bench.tell(str(problem), "bad")
            return False
        if key == "enter" and (reason := self.command.start()):
            self._bench.tell(reason, "warn")
        return True


class TuneDialog(OwnProcessDialog):
    heading = "Tune"
    apply_words, patch_words = "apply the fastest", "what tune found"

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.command = bench.tunings

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        if process.result is None:
            # The newest stands below, as what it does now.
            earlier = process.lines[:-1] if process.alive else process.lines
            return [line for text in earlier[-_SHOWN:] for line in paragraph(text, width)]
        from tui_trainer.bench.tuning import measured_table, notes_of

        lines: list[Line] = [[(text, "text")] for text in measured_table(process.result, width)]
        lines += [line for note in notes_of(process.result) for line in paragraph(note, width, "dim")]
        role: Role = "good" if process.result["patch"] else "text"
        return [*lines, *paragraph(process.result["sentence"], width, role)]


class RehearsalDialog(OwnProcessDialog):
    heading = "Rehearsal"
    apply_words, patch_words = "apply what works", "what the rehearsal found"

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self.command = bench.rehearsals

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        def role(text: str) -> Role:
            return "bad" if "FAILED" in text else "good" if text.startswith("nothing failed") else "text"

        return [line for text in process.lines for line in paragraph(text, width, role(text))]


def offer(dialog: OwnProcessDialog, bench: Workbench) -> None:
    """Begin, or show what is going on: one measurement at a time."""
    if bench.measuring.alive:
        bench.tell("gains are being measured: each would disturb the other", "warn")
        return
    other = next((one for one in (bench.rehearsals, bench.tunings) if one is not dialog.command and one.alive), None)
    if other is not None:
        bench.tell(f"{other.what} goes on: each would disturb the other", "warn")
    elif reason := dialog.command.start():
        bench.tell(reason, "warn")
    else:
        bench.app.open(dialog)
