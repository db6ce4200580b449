"""A rehearsal of the config on the table, in a box: its parts as they are tried, what came of it, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui_trainer.ui.own_process_dialog import OwnProcessDialog, offer
from tui_trainer.ui.spans import Line, Role, paragraph

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import ConfigProcess
    from tui_trainer.ui.own_process import Rehearsals
    from tui_trainer.ui.workbench import Workbench


class RehearsalDialog(OwnProcessDialog):
    heading = "Rehearsal"
    apply_words, patch_words = "apply what works", "what the rehearsal found"

    @property
    def command(self) -> Rehearsals:
        return self._bench.rehearsals

    def told(self, process: ConfigProcess, width: int) -> list[Line]:
        return [line for text in process.lines for line in paragraph(text, width, _role(text))]


def _role(text: str) -> Role:
    return "bad" if "FAILED" in text else "good" if text.startswith("nothing failed") else "text"


def offer_rehearsal(bench: Workbench) -> None:
    offer(RehearsalDialog(bench), bench)
