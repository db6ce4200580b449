"""The search for the fastest settings of the config on the table, in a box: what is tried, its table, the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui_trainer.ui.own_process_dialog import OwnProcessDialog, offer
from tui_trainer.ui.spans import Line, Role, paragraph

if TYPE_CHECKING:
    from tui_trainer.bench.config_process import ConfigProcess
    from tui_trainer.ui.own_process import Tunings
    from tui_trainer.ui.workbench import Workbench

# Of what it has told, while it goes on.
_SHOWN = 12


class TuneDialog(OwnProcessDialog):
    heading = "Tune"
    apply_words, patch_words = "apply the fastest", "what tune found"

    @property
    def command(self) -> Tunings:
        return self._bench.tunings

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


def offer_tuning(bench: Workbench) -> None:
    offer(TuneDialog(bench), bench)
