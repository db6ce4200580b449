"""A run's model taken elsewhere from the screens: what it can be exported to, and an export in a process of its own.

The process is `tui-trainer export --json`: it loads torch, and the screens neither do nor wait.
"""

import shutil
from dataclasses import dataclass
from typing import Any, Final

from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import Format, all_formats, require_libraries
from tui_trainer.exporting.export import expected_seconds, remove_unfinished, target_of
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.command_process import JsonProcess
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line

_REASON_CHARACTERS: Final = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportChoice:
    """A format. `refusal` says why this run cannot be exported to it here, and what would help; empty: it can.
    `expected_seconds` go by earlier exports here; None where there were none."""

    name: str
    title: str
    needed_bytes: int
    expected_seconds: float | None
    refusal: str
    is_there: bool


def choices(run: RunFolder) -> tuple[ExportChoice, ...]:
    """All formats, in the order of their names. Raises InputError for a run that has no final model."""
    trained = TrainedModel.of(run)
    return tuple(_choice(trained, one) for one in all_formats())


def free_bytes(run: RunFolder) -> int:
    """On the disk where its exports lie."""
    return shutil.disk_usage(run.root).free


def _choice(trained: TrainedModel, found: Format) -> ExportChoice:
    why = found.reason_against(trained)
    try:
        require_libraries(found)
        if not why:
            target_of(trained, found, None)
    except InputError as error:
        problem = error.problems[0]
        why = why or f"{problem.message}; {problem.hint}"
    return ExportChoice(
        name=found.name,
        title=found.title,
        needed_bytes=found.needed_bytes(trained),
        expected_seconds=expected_seconds(trained, found),
        refusal=one_line(why, _REASON_CHARACTERS),
        is_there=(trained.run.exports / found.name).is_dir(),
    )


class ExportProcess(JsonProcess):
    """One export that goes on whether anybody looks or not. It outlives the screens."""

    cancelled = "cancelled; nothing was saved"
    part = "loading libraries and the model"

    def __init__(self, run: RunFolder, name: str) -> None:
        """Raises OSError where no process can be started."""
        self.run, self.name = run, name
        # Exports are written on the CPU, and the card may be a run's.
        super().__init__(["export", str(run.root), "--to", name], {"CUDA_VISIBLE_DEVICES": ""})

    @property
    def is_good(self) -> bool:
        return self.result is not None and bool(self.result["is_good"])

    @property
    def words(self) -> list[str]:
        """The lines of its certificate, or why there is none."""
        words = self.result["words"] if self.result else [self.reason]
        return [one_line(str(line), _REASON_CHARACTERS) for line in words]

    def _take(self, told: dict[str, Any]) -> None:
        self.result = told | {"folder": one_line(told["folder"], 4096)}

    def _end(self, exit_code: int) -> None:
        super()._end(exit_code)
        if not self.result:
            remove_unfinished(self.run.exports / self.name)
