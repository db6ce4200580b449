"""Count the steps of a run, and decide at which steps it evaluates, saves and writes samples."""

import math

from tui_trainer.config.fields import Auto
from tui_trainer.config.load import ResolvedLoaded
from tui_trainer.config.sections import EVALUATIONS_SHARE, LEAST_EVAL_ROWS, epochs_of
from tui_trainer.data.batching.row_order import steps_per_epoch
from tui_trainer.methods.lr_schedules import LR_SCHEDULES
from tui_trainer.planning.batch_cut import BatchCut
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE, count_due, interval_steps
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import quantity


class Steps:
    """The steps of a run, counted from its settings and its data."""

    def __init__(self, loaded: ResolvedLoaded, facts: DataFacts, cut: BatchCut) -> None:
        training, evaluation = loaded.config.training, loaded.config.evaluation
        epoch_steps = steps_per_epoch(facts.rows, cut.effective_batch)
        reason = f"{quantity(facts.rows, 'row')} / {cut.effective_batch}, rounded up"
        self.per_epoch: Planned[int] = Planned(value=epoch_steps, exact=facts.exact, reason=reason)
        reason = f"training.max_steps from {loaded.where('training.max_steps')}"
        self.total: Planned[int] = exact(training.max_steps, reason)
        if not training.max_steps:
            # 0.07 x 100 is a little more than 7 in floating point, and no reason for an eighth step.
            epochs = epochs_of(loaded.config)
            step_count = max(1, math.ceil(epochs * epoch_steps - 1e-9))
            reason = f"{quantity(epochs, 'epoch')} of {quantity(epoch_steps, 'step')}"
            self.total = Planned(value=step_count, exact=facts.exact, reason=reason)
        steps = self.total.value
        self.evaluation_count = count_due(steps, interval_steps(evaluation.eval_steps, steps))
        self.eval_rows: Planned[int] = self._eval_rows(evaluation.max_eval_rows, facts, cut)
        sample_interval = interval_steps(loaded.config.logging.sample_steps, steps)
        self.sample_count = steps // sample_interval if sample_interval else 0
        self.save_count = count_due(steps, interval_steps(loaded.config.checkpoint.save_steps, steps))
        if evaluation.early_stopping_patience:
            self.save_count += self.evaluation_count

    def _eval_rows(self, limit: int | Auto, facts: DataFacts, cut: BatchCut) -> Planned[int]:
        """Return how many held-out rows an evaluation uses: equal runs use equal rows, whatever times were measured."""
        reason, early_count, rows = "evaluation.max_eval_rows, evenly spaced", self.evaluation_count - 1, 0
        if limit != "auto":
            rows = limit
        elif early_count:
            training_rows = self.total.value * min(cut.effective_batch, facts.rows)
            affordable_rows = EVALUATIONS_SHARE * training_rows / EVALUATION_SHARE / early_count
            rows = max(LEAST_EVAL_ROWS, round(affordable_rows))
            share = early_count * rows * EVALUATION_SHARE / max(training_rows, 1)
            reason = f"of {facts.eval_rows:,} rows, evenly spaced: {quantity(early_count, 'evaluation', 'take')} "
            reason += f"{share:.0%} of the time; evaluation.max_eval_rows = 0 uses all rows"
        if 0 < rows < facts.eval_rows:
            return Planned(value=rows, exact=facts.exact, reason=reason)
        return Planned(value=facts.eval_rows, exact=facts.exact, reason=facts.reason)

    def warmup(self, scheduler: str, setting: float) -> Planned[int]:
        if not LR_SCHEDULES[scheduler].warms_up:
            return exact(0, "this schedule has no warm-up; constant_with_warmup has one")
        warmup_figure = self.interval_steps("warmup_steps", setting)
        if 0 < setting < 1 and warmup_figure.value >= (total_steps := self.total.value):
            # Otherwise a run of one step would train at rate 0.
            reason = f"all but the last of {quantity(total_steps, 'step')}, which has the peak learning rate"
            return Planned(value=total_steps - 1, exact=self.total.exact, reason=reason)
        return warmup_figure if warmup_figure.value else exact(0, "starts at the peak learning rate")

    def decay(self, scheduler: str, setting: float, warmup_steps: int) -> Planned[int] | None:
        """Return how many of the last steps lower the rate, if the schedule decays only at its end; None for others."""
        if not LR_SCHEDULES[scheduler].has_decay_steps:
            return None
        decay_figure, left = self.interval_steps("num_decay_steps", setting), max(0, self.total.value - warmup_steps)
        if decay_figure.value > left:
            requested_text = quantity(decay_figure.value, "step")
            reason = (
                f"all {quantity(left, 'step')} after warm-up; num_decay_steps = {setting:g} asks for {requested_text}"
            )
            return Planned(value=left, exact=self.total.exact, reason=reason)
        return decay_figure if decay_figure.value else exact(0, "stays at the peak learning rate")

    def interval_steps(self, name: str, setting: float) -> Planned[int]:
        total = self.total
        interval = interval_steps(setting, total.value)
        if 0 < setting < 1:
            return Planned(value=interval, exact=total.exact, reason=f"{setting:g} of {quantity(total.value, 'step')}")
        return exact(interval, f"{name} = {setting:g}" if interval else f"{name} = 0: not during the run")
