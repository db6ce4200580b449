"""Write the reports of steps to the journal in groups, so that training waits for the device once per group."""

import ctypes
import importlib
import math
from collections import deque
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from tui_trainer.config.sections import Config
from tui_trainer.errors import RunError
from tui_trainer.hardware.processes import own_peak_bytes
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.runs.events import Event, StepDone
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.tasks import find_task
from tui_trainer.training.clock import BetweenStepsTimer, GroupTimes, seconds_of
from tui_trainer.training.position import Position
from tui_trainer.training.step import StepReport

_RECENT_STEPS = 50
# Width of a matmul that is large enough to use all threads.
_WIDTH = 256
_ENOUGH_STEPS = 10
_FLUSH_SECONDS = 2.0
# A loss scale is halved at each overflow: 16 halvings take the initial scale to 1, which scales nothing.
_MOST_OVERFLOWS = 24
# A scaled loss means fp16, whose forward pass may overflow. A lower learning rate does not prevent that.
_OVERFLOWED = (
    "Numbers beyond 65,504 overflow in fp16, at any learning rate: "
    'set training.mixed_precision = "no" for fp32, or "bf16" if the GPU supports it'
)
_DIVERGED = "Try a lower training.learning_rate, more training.warmup_steps or a smaller training.max_grad_norm"
# Modules that libraries import at first use: for data tables, and for any transformers model.
_AT_FIRST_USE = ("pyarrow.ipc", "transformers.generation.utils")


@dataclass(slots=True)
class Recorder:
    """Writer of step reports. Their tensors stay on the device until `flush` writes the reports to the journal."""

    journal: JournalWriter
    position: Position
    device: torch.device
    between_steps: BetweenStepsTimer
    _: KW_ONLY
    steps_per_epoch: int
    group: int
    clipped_by_scale: bool = False
    """Whether the loss is scaled (fp16). Steps whose gradients overflow are then skipped, which is normal."""
    times: GroupTimes = field(default_factory=GroupTimes)
    """Communication times of all processes, to which each written step is added."""
    _overflows: int = 0
    _waiting: list[tuple[int, StepReport]] = field(default_factory=list)
    # The initial value causes the first step to be written at once.
    _flushed_at: float = -math.inf
    _recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    @property
    def median_step_seconds(self) -> float | None:
        """Median seconds of the last steps; None if fewer than ten steps are written."""
        return median(self._recent_seconds) if len(self._recent_seconds) >= _ENOUGH_STEPS else None

    @property
    def has_written_all(self) -> bool:
        """Whether all steps are written. The device has then finished them."""
        return not self._waiting

    def add(self, step: int, report: StepReport) -> None:
        self._waiting.append((step, report))
        # Slow steps are written before the group is complete, so that a user sees progress.
        if len(self._waiting) >= self.group or monotonic() - self._flushed_at >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all waiting steps. Raises RunError if the loss or gradient of a step is not finite."""
        if not self._waiting:
            return
        # The numbers of all steps are copied at once, because each copy waits for the device.
        numbers = torch.stack([x.double() for _, report in self._waiting for x in _on_device(report)])
        values = numbers.tolist()
        # `_write` does not wait for the device, so its time is the cost of the journal itself.
        with self.between_steps.writing():
            bad_step = self._write(values)
        if bad_step is not None:
            raise RunError(
                f"the loss or its gradient was not finite at step {bad_step}; that step changed no weights. "
                + (_OVERFLOWED if self.clipped_by_scale else _DIVERGED)
            )

    def _write(self, values: list[float]) -> int | None:
        """Write all waiting steps. Return the first with a loss or gradient that is not finite, or None."""
        peak_bytes = peak_memory_bytes(self.device)
        events: list[Event] = []
        bad_step = None
        remaining_values = iter(values)
        for step, report in self._waiting:
            loss_sum, grad_norm, *sums = islice(remaining_values, len(_on_device(report)))
            part_seconds = report.seconds()
            seconds = sum(part_seconds.values())
            rounded_seconds: dict[str, Any] = {name: round(part, 6) for name, part in part_seconds.items()}
            events.append(
                StepDone(
                    step=step,
                    epoch=round(step / self.steps_per_epoch, 4),
                    loss_sum=loss_sum,
                    tokens=report.token_count,
                    input_tokens=report.input_tokens,
                    samples=report.samples,
                    lr=report.lr,
                    grad_norm=grad_norm,
                    step_seconds=round(seconds, 6),
                    **rounded_seconds,
                    tokens_per_second=round(report.input_tokens / seconds, 1),
                    samples_per_second=round(report.samples / seconds, 2),
                    peak_memory_bytes=peak_bytes,
                    positions=report.positions,
                    sums=dict(zip(report.sums, sums, strict=True)),
                    counts={name: count for name, (_, count) in report.sums.items()},
                )
            )
            self.position.count(report, loss_sum, seconds)
            self._recent_seconds.append(seconds)
            self.times.add(seconds_of(report.communication))
            if self._is_bad(loss_sum, grad_norm):
                bad_step = step
                break
        self._waiting.clear()
        self._flushed_at = monotonic()
        self.journal.append(*events)
        return bad_step

    def _is_bad(self, loss_sum: float, grad_norm: float) -> bool:
        self._overflows = 0 if math.isfinite(grad_norm) else self._overflows + 1
        if self.clipped_by_scale and math.isfinite(loss_sum):
            return self._overflows >= _MOST_OVERFLOWS
        return not (math.isfinite(loss_sum) and math.isfinite(grad_norm))


def _on_device(report: StepReport) -> list[Tensor]:
    return [report.loss_sum, report.grad_norm, *(total for total, _ in report.sums.values())]


def memory_before(config: Config) -> int:
    """Return the resident bytes of this process before training on a CPU, and reset the memory peak.

    This first loads libraries that would be loaded at first use, so that the bytes include them.
    """
    adapter_modules = ("peft",) if config.tuning.has_adapter else ()
    score_modules = find_task(config.task.type).loads_to_score
    for name in (*_AT_FIRST_USE, *adapter_modules, *score_modules, *OPTIMIZERS[config.training.optim].modules):
        importlib.import_module(name)
    _compute_once()
    # Otherwise training would reuse memory that data preparation freed, and seem to grow too little. Only in glibc.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    start_peak(torch.device("cpu"))
    return int(psutil.Process().memory_info().rss)


def _compute_once() -> None:
    """Run the operations of a step once, so that torch loads their code. Random generators do not change."""
    square = torch.ones(_WIDTH, _WIDTH, requires_grad=True)
    hidden = functional.layer_norm(functional.gelu(square @ square), (_WIDTH,))
    heads = hidden.view(1, 1, _WIDTH, _WIDTH)
    hidden = hidden + functional.scaled_dot_product_attention(heads, heads, heads).view(_WIDTH, _WIDTH)
    functional.cross_entropy(hidden @ square, torch.zeros(_WIDTH, dtype=torch.int64)).backward()
    torch.nn.utils.clip_grad_norm_([square], 1.0)
    torch.optim.AdamW([square], fused=True).step()


def start_peak(device: torch.device) -> None:
    """Reset the peak that `peak_memory_bytes` returns. If the system does not allow that, the earlier peak is kept."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak of bytes allocated on the GPU, or for a CPU the peak of this process's resident bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return own_peak_bytes()
