"""Steps into journal lines, in groups, so that training waits for the device once a group."""

from __future__ import annotations

import math
import resource
from collections import deque
from statistics import median
from time import monotonic

import torch

from tui_trainer.errors import RunError
from tui_trainer.runs.events import Event, StepDone
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.position import Position
from tui_trainer.training.step import StepReport

_RECENT_STEPS = 50
_ENOUGH_STEPS = 10
_FLUSH_SECONDS = 2.0


class Recorder:
    """Keeps the reports of steps on the device until `flush` writes them."""

    def __init__(self, journal: JournalWriter, position: Position, *, steps_per_epoch: int, group: int) -> None:
        self._journal = journal
        self._position = position
        self._steps_per_epoch = steps_per_epoch
        self._group = group
        self._waiting: list[tuple[int, StepReport]] = []
        # So that the first step of a start is written at once.
        self._flushed_at = -math.inf
        self._recent_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)

    @property
    def median_step_seconds(self) -> float | None:
        """Of the last steps that were written; None while there are fewer than ten."""
        return median(self._recent_seconds) if len(self._recent_seconds) >= _ENOUGH_STEPS else None

    def add(self, step: int, report: StepReport) -> None:
        self._waiting.append((step, report))
        # Slow steps are not held back for a whole group: somebody may be watching.
        if len(self._waiting) >= self._group or monotonic() - self._flushed_at >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all waiting steps. Raises RunError at the first whose loss or gradient is not finite."""
        if not self._waiting:
            return
        loss_sums = torch.stack([report.loss_sum for _, report in self._waiting]).tolist()
        grad_norms = torch.stack([report.grad_norm for _, report in self._waiting]).tolist()
        peak = peak_memory_bytes()
        events: list[Event] = []
        bad_step = None
        for (step, report), loss_sum, grad_norm in zip(self._waiting, loss_sums, grad_norms, strict=True):
            events.append(self._event(step, report, loss_sum, grad_norm, peak))
            self._position.count(report, loss_sum)
            self._recent_seconds.append(report.step_seconds)
            if not (math.isfinite(loss_sum) and math.isfinite(grad_norm)):
                bad_step = step
                break
        self._waiting.clear()
        self._flushed_at = monotonic()
        self._journal.append(*events)
        if bad_step is not None:
            raise RunError(
                f"the loss or its gradient stopped being finite at step {bad_step}; that step changed no weight. "
                "Try a lower training.learning_rate, more training.warmup_steps or a smaller training.max_grad_norm"
            )

    def _event(self, step: int, report: StepReport, loss_sum: float, grad_norm: float, peak: int) -> StepDone:
        seconds = report.step_seconds
        return StepDone(
            step=step,
            epoch=round(step / self._steps_per_epoch, 4),
            loss_sum=loss_sum,
            tokens=report.tokens,
            samples=report.samples,
            lr=report.lr,
            grad_norm=grad_norm,
            step_seconds=round(seconds, 6),
            data_seconds=round(report.data_seconds, 6),
            forward_seconds=round(report.forward_seconds, 6),
            backward_seconds=round(report.backward_seconds, 6),
            optimiser_seconds=round(report.optimiser_seconds, 6),
            tokens_per_second=round(report.tokens / seconds, 1),
            samples_per_second=round(report.samples / seconds, 2),
            peak_memory_bytes=peak,
        )


def peak_memory_bytes() -> int:
    """The most resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
