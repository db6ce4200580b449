"""A run's model taken elsewhere from the screens: what it can be exported to, and an export in a process of its own.

The process is `tui-trainer export --json`: it loads torch, and the screens neither do nor wait.
"""

import json
import shutil
from dataclasses import dataclass
from typing import Any, Final

from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import Format, all_formats, require_libraries
from tui_trainer.exporting.export import expected_seconds, remove_unfinished, target_of
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.command_process import SENTENCE, CommandProcess
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOutcome:
    """How an export ended: `words` are its certificate's lines, or why there is none."""

    is_good: bool
    words: tuple[str, ...]
    folder: str = ""


class ExportProcess(CommandProcess):
    """One export that goes on whether anybody looks or not. It outlives the screens."""

    def __init__(self, run: RunFolder, name: str) -> None:
        """Raises OSError where no process can be started."""
        self.run, self.name = run, name
        self.progress: tuple[str, float, float | None, str] = ("loading libraries and the model", 0.0, None, "")
        """What is done, how much of it, of how much, in which unit."""
        self.outcome: ExportOutcome | None = None
        self._said, self._result = "", dict[str, Any]()
        # Exports are written on the CPU, and the card may be a run's.
        super().__init__(["export", str(run.root), "--to", name, "--json"], {"CUDA_VISIBLE_DEVICES": ""})

    def _hear(self, line: str) -> None:
        try:
            told = json.loads(line)
            if "folder" in told:
                self._result = told
            else:
                self.progress = (str(told["what"]), float(told["done"]), told["total"], str(told["unit"]))
        except (ValueError, LookupError, TypeError):
            # Libraries warn on standard error; its own sentence has its name before it.
            if line.startswith(SENTENCE) or not self._said.startswith(SENTENCE):
                self._said = line.strip() or self._said

    def _end(self, exit_code: int) -> None:
        if self._result:
            words = tuple(one_line(str(line), _REASON_CHARACTERS) for line in self._result["words"])
            self.outcome = ExportOutcome(
                is_good=bool(self._result["is_good"]), words=words, folder=one_line(self._result["folder"], 4096)
            )
            return
        remove_unfinished(self.run.exports / self.name)
        reason = one_line(self._said.removeprefix(SENTENCE), _REASON_CHARACTERS)
        if self.is_cancelled:
            reason = "cancelled; nothing was saved"
        elif not reason:
            reason = f"the process ended with exit code {exit_code}"
        self.outcome = ExportOutcome(is_good=False, words=(reason,))
