"""How many steps a run has, and how often it evaluates and saves."""

import math

from tui_trainer.config.load import LoadedConfig
from tui_trainer.data.batching.row_order import steps_per_epoch
from tui_trainer.lr_schedules import LR_SCHEDULES
from tui_trainer.planning.batching import BatchCut
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.runs.cadence import every, times
from tui_trainer.tasks.contract import DataFacts


class Steps:
    """How many steps, and on which of them something happens."""

    def __init__(self, loaded: LoadedConfig, facts: DataFacts, cut: BatchCut) -> None:
        training, evaluation = loaded.config.training, loaded.config.evaluation
        per_epoch = steps_per_epoch(facts.rows, cut.effective)
        self.per_epoch: Planned[int] = Planned(
            value=per_epoch, exact=facts.exact, reason=f"{facts.rows} rows / {cut.effective}, rounded up"
        )
        if training.max_steps:
            self.total: Planned[int] = exact(
                training.max_steps, f"training.max_steps from {loaded.where('training.max_steps')}"
            )
        else:
            # 0.07 x 100 is a little more than 7 in floating point, and no reason for an eighth step.
            total = max(1, math.ceil(training.num_train_epochs * per_epoch - 1e-9))
            reason = f"{training.num_train_epochs:g} epochs of {per_epoch} steps"
            self.total = Planned(value=total, exact=facts.exact, reason=reason)
        limit = evaluation.max_eval_rows
        cut_down = 0 < limit < facts.eval_rows
        self.eval_rows = limit if cut_down else facts.eval_rows
        self.eval_rows_reason = "evaluation.max_eval_rows, evenly spaced" if cut_down else facts.reason
        self.evaluations = times(self.total.value, every(evaluation.eval_steps, self.total.value))
        self.saves = times(self.total.value, every(loaded.config.checkpoint.save_steps, self.total.value))
        if evaluation.early_stopping_patience:
            self.saves += self.evaluations

    def warmup(self, scheduler: str, setting: float) -> Planned[int]:
        if not LR_SCHEDULES[scheduler].warms_up:
            return exact(0, "this schedule has none; constant_with_warmup has")
        planned = self.cadence("warmup_steps", setting)
        if 0 < setting < 1 and planned.value >= (total := self.total.value):
            # Else a run of one step would train at rate 0.
            reason = f"all but the last of {total} steps, which has the peak learning rate"
            return Planned(value=total - 1, exact=self.total.exact, reason=reason)
        return planned if planned.value else exact(0, "the peak learning rate at once")

    def cadence(self, name: str, setting: float) -> Planned[int]:
        total = self.total
        value = every(setting, total.value)
        if 0 < setting < 1:
            return Planned(value=value, exact=total.exact, reason=f"{setting:g} of {total.value} steps")
        return exact(value, f"{name} = {setting:g}" if value else f"{name} = 0: not on the way")
