"""Exports that the screens offer and start.

An export runs as a process `tui-trainer export --json`, because it loads torch, for which the screens must not wait.
"""

import shutil
from dataclasses import dataclass
from typing import Any, Final

from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import Format, all_formats, require_libraries
from tui_trainer.exporting.export import expected_seconds, remove_unfinished, target_of
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.command_process import JsonProcess
from tui_trainer.runs.folder import RunFolder, folder_size
from tui_trainer.terminal.safe_text import one_line

_REASON_CHARACTERS: Final = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportChoice:
    """An export format for a run.

    `size_bytes` is exact if the export exists (`is_there`), and estimated otherwise. Writing the export needs
    `needed_bytes` of the `free_bytes` on the disk, and takes `expected_seconds` by earlier exports here (None if there
    were none). `refusal` says why the run cannot be exported to this format, and what helps; it is empty if it can be.
    """

    name: str
    title: str
    size_bytes: int
    needed_bytes: int
    free_bytes: int
    expected_seconds: float | None
    refusal: str
    is_there: bool


def choices(run: RunFolder) -> tuple[ExportChoice, ...]:
    """Return all export formats for a run, sorted by name. Raises InputError if the run has no final model."""
    trained_model = TrainedModel.of(run)
    return tuple(_choice(trained_model, export_format) for export_format in all_formats())


def _choice(trained: TrainedModel, export_format: Format) -> ExportChoice:
    refusal_reason = export_format.reason_against(trained)
    try:
        require_libraries(export_format)
        if not refusal_reason:
            target_of(trained, export_format, None)
    except InputError as error:
        problem = error.problems[0]
        refusal_reason = refusal_reason or f"{problem.message}; {problem.hint}"
    folder = trained.run.exports / export_format.name
    already_exported = folder.is_dir()
    return ExportChoice(
        name=export_format.name,
        title=export_format.title,
        size_bytes=folder_size(folder).bytes if already_exported else export_format.size_bytes(trained),
        needed_bytes=export_format.needed_bytes(trained),
        free_bytes=shutil.disk_usage(trained.run.root).free,
        expected_seconds=expected_seconds(trained, export_format),
        refusal=one_line(refusal_reason, _REASON_CHARACTERS),
        is_there=already_exported,
    )


class ExportProcess(JsonProcess):
    """One export. It continues after the screens are closed."""

    cancelled_words = "cancelled; nothing was saved"
    part = "loading libraries and the model"

    def __init__(self, run: RunFolder, name: str) -> None:
        """Start the export. Raises OSError if no process can be started."""
        self.run, self.name = run, name
        # Exports are written on the CPU, and a run may be using the GPU.
        super().__init__(["export", str(run.root), "--to", name], {"CUDA_VISIBLE_DEVICES": ""})

    @property
    def is_good(self) -> bool:
        return self.result is not None and bool(self.result["is_good"])

    @property
    def words(self) -> list[str]:
        """Lines of the export's certificate, or the reason why there is none."""
        lines = self.result["words"] if self.result else [self.reason]
        return [one_line(str(line), _REASON_CHARACTERS) for line in lines]

    def _take(self, fields: dict[str, Any]) -> None:
        self.result = fields | {"folder": one_line(fields["folder"], 4096)}

    def _end(self, exit_code: int) -> None:
        super()._end(exit_code)
        if not self.result:
            remove_unfinished(self.run.exports / self.name)
