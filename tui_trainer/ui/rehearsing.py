"""A rehearsal of the config on the table, in a box: its parts as they are tried, what came of it, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.spans import Line, Role, paragraph

if TYPE_CHECKING:
    from tui_trainer.ui.workbench import Workbench


class RehearsalDialog(Dialog):
    """It goes on when this is closed, and is shown again when it is opened."""

    heading = "Rehearsal"

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench = bench

    def by_clock(self) -> object:
        process = self._bench.rehearsals.process
        return process and (len(process.lines), process.part, process.alive, process.is_cancelled)

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        process = self._bench.rehearsals.process
        if process is not None and process.alive:
            return (("c", "cancel"), ("escape", "close, it goes on"))
        apply = (("a", "apply what works"),) if process is not None and process.patch else ()
        return (*apply, ("enter", "again"), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        process = self._bench.rehearsals.process
        if process is None:
            return paragraph("not begun", width)
        lines = [line for text in process.lines for line in paragraph(text, width, _role(text))]
        if process.alive:
            words = "ending ..." if process.is_cancelled else f"{process.part} ..."
            return [*lines, [(words, "accent")]]
        return lines if process.result else [*lines, *paragraph(process.reason, width, "bad")]

    def press(self, key: str, character: str | None) -> bool:
        process = self._bench.rehearsals.process
        if process is not None and process.alive:
            if character == "c":
                process.cancel()
            return True
        if character == "a" and process is not None and process.patch:
            for problem in self._bench.apply(process.patch, "what the rehearsal found"):
                self._bench.tell(str(problem), "bad")
            return False
        if key == "enter" and (reason := self._bench.rehearsals.start()):
            self._bench.tell(reason, "warn")
        return True


def _role(text: str) -> Role:
    return "bad" if "FAILED" in text else "good" if text.startswith("nothing failed") else "text"


def offer_rehearsal(bench: Workbench) -> None:
    """Begin, or show what is going on."""
    if bench.measuring.alive:
        bench.tell("gains are being measured: each would disturb the other", "warn")
    elif reason := bench.rehearsals.start():
        bench.tell(reason, "warn")
    else:
        bench.app.open(RehearsalDialog(bench))
