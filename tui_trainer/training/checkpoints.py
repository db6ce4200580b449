"""When a checkpoint was written, whether it is there, and what is told of it."""

from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from safetensors import SafetensorError
from torch import Tensor

from tui_trainer.errors import RunError
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import CheckpointSaved, RunProblem
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training import checkpoint, checkpoint_folder
from tui_trainer.training.attempt import attempt_twice
from tui_trainer.training.between import Between
from tui_trainer.training.components import Components
from tui_trainer.training.job import Job
from tui_trainer.training.position import Position
from tui_trainer.training.random_state import random_tensors

NOT_WRITTEN = (OSError, SafetensorError, MemoryError)
_FAILED_SAVES_IN_A_ROW = 3


@dataclass(slots=True)
class Checkpoints:
    """Those of a run. Where several processes train together all of them call `save`."""

    job: Job
    components: Components
    journal: JournalWriter
    between: Between
    saved_step: int
    failure: str = ""
    """Why the last one could not be written; empty: it was."""
    _failed_steps: set[int] = field(default_factory=set)

    def save(self, position: Position, plan: Plan, reason: str) -> bool:
        """As `Session.save`."""
        if position.step == self.saved_step:
            return True
        self.journal.sync()
        started, ranks = perf_counter(), self.components.ranks
        random: dict[str, Tensor] = {}
        if ranks.count > 1:
            for tensors in ranks.gathered(random_tensors(ranks.number)):
                random |= tensors
        folder = self.job.folder
        write = partial(checkpoint.save_checkpoint, folder.checkpoints, self.components, position, plan, random=random)
        try:
            if self.components.together.splits_state:
                saved = write()
            else:
                saved = ranks.by_first(partial(attempt_twice, write, self.components.device))
        except NOT_WRITTEN as error:
            self._failed_steps.add(position.step)
            self.failure = str(error)
            message = f"the checkpoint of step {position.step} could not be written: {error}"
            if len(self._failed_steps) >= _FAILED_SAVES_IN_A_ROW:
                raise RunError(f"{message}. This was the third failure in a row. {self.stands()}") from error
            self._problem(position.step, "save failed", message, "the checkpoint before it stands")
            return False
        self.saved_step, self.failure = position.step, ""
        self._failed_steps.clear()
        seconds = perf_counter() - started
        self.between.count(seconds)
        self.journal.append(
            CheckpointSaved(
                step=saved.step,
                path=str(saved.path.relative_to(folder.root)),
                bytes=saved.bytes,
                seconds=round(seconds, 3),
                reason=reason,
            )
        )
        if ranks.is_first:
            self._rotate(position)
        return True

    def stands(self) -> str:
        """What a run that cannot write can be gone on with."""
        folder, step = self.job.folder, self.saved_step
        if not folder.root.is_dir():
            return f"The folder of the run is gone: {folder.root}"
        if not step:
            return f"No checkpoint was saved before: once there is room, `tui-trainer resume {folder.name}` begins anew"
        goes_on = f"once there is room, `tui-trainer resume {folder.name}` goes on from there"
        return f"The checkpoint of step {step} stands: {goes_on}"

    def _rotate(self, position: Position) -> None:
        config = self.job.plan.config
        spare = [position.best_step] if config.evaluation.early_stopping_patience else []
        try:
            checkpoint_folder.rotate(self.job.folder.checkpoints, config.checkpoint.save_total_limit, spare)
        except OSError as error:
            message = f"an old checkpoint could not be removed: {error}"
            self._problem(position.step, "rotation failed", message, "it takes space")

    def _problem(self, step: int, kind: str, message: str, hint: str) -> None:
        self.journal.append(RunProblem(step=step, kind=kind, message=message, hint=hint))
