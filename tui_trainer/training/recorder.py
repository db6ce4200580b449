"""Steps into journal lines, in groups, so that training waits for the device once a group."""

import ctypes
import importlib
import math
import resource
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
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.runs.events import Event, StepDone
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.tasks import find_task
from tui_trainer.training.clock import Between, GroupTimes, seconds_of
from tui_trainer.training.position import Position
from tui_trainer.training.step import StepReport

_RECENT_STEPS = 50
# Of a matmul in which all threads take a part.
_WIDTH = 256
_ENOUGH_STEPS = 10
_FLUSH_SECONDS = 2.0
# A scaled loss halves its scale at each overflow: 16 halvings take the first scale to 1, and then it is no scale.
_MOST_OVERFLOWS = 24
# With a scaled loss, which is fp16's, the forward pass is what overflows: no learning rate mends that.
_OVERFLOWED = (
    "Numbers beyond 65,504 overflow in fp16, at any learning rate: "
    'set training.mixed_precision = "no" for fp32, or "bf16" if the GPU supports it'
)
_DIVERGED = "Try a lower training.learning_rate, more training.warmup_steps or a smaller training.max_grad_norm"
# For tables of data, for any model and for the schedule of its learning rate, which brings all of peft along.
_AT_FIRST_USE = ("pyarrow.ipc", "transformers.generation.utils")


@dataclass(slots=True)
class Recorder:
    """Keeps the reports of steps on the device until `flush` writes them."""

    journal: JournalWriter
    position: Position
    device: torch.device
    between: Between
    _: KW_ONLY
    steps_per_epoch: int
    group: int
    clipped_by_scale: bool = False
    """With a scaled loss a gradient that overflows is normal, and its step is passed over."""
    times: GroupTimes = field(default_factory=GroupTimes)
    """Of the processes that train together; they are told of each step that is written."""
    _overflows: int = 0
    _waiting: list[tuple[int, StepReport]] = field(default_factory=list)
    # So that the first step of a start is written at once.
    _flushed_at: float = -math.inf
    _recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))

    @property
    def median_step_seconds(self) -> float | None:
        """Of the last steps that were written; None while there are fewer than ten."""
        return median(self._recent_seconds) if len(self._recent_seconds) >= _ENOUGH_STEPS else None

    @property
    def has_read_all(self) -> bool:
        """Whether the device was waited for since the last step."""
        return not self._waiting

    def add(self, step: int, report: StepReport) -> None:
        self._waiting.append((step, report))
        # Slow steps are not held back for a whole group: somebody may be watching.
        if len(self._waiting) >= self.group or monotonic() - self._flushed_at >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all waiting steps. Raises RunError at the first whose loss or gradient is not finite."""
        if not self._waiting:
            return
        # All of a group in one copy: each would wait for the device.
        numbers = torch.stack([x.double() for _, report in self._waiting for x in _on_device(report)])
        read = numbers.tolist()
        # From here on the device is not waited for: what follows is the cost of the journal itself.
        with self.between.writing():
            bad_step = self._write(read)
        if bad_step is not None:
            raise RunError(
                f"the loss or its gradient was not finite at step {bad_step}; that step changed no weights. "
                + (_OVERFLOWED if self.clipped_by_scale else _DIVERGED)
            )

    def _write(self, read: list[float]) -> int | None:
        """All waiting steps with what was read of each; the first one that was not finite, if any."""
        peak = peak_memory_bytes(self.device)
        events: list[Event] = []
        bad_step = None
        numbers = iter(read)
        for step, report in self._waiting:
            loss_sum, grad_norm, *sums = islice(numbers, len(_on_device(report)))
            parts = report.seconds()
            seconds = sum(parts.values())
            rounded: dict[str, Any] = {name: round(part, 6) for name, part in parts.items()}
            events.append(
                StepDone(
                    step=step,
                    epoch=round(step / self.steps_per_epoch, 4),
                    loss_sum=loss_sum,
                    tokens=report.tokens,
                    input_tokens=report.input_tokens,
                    samples=report.samples,
                    lr=report.lr,
                    grad_norm=grad_norm,
                    step_seconds=round(seconds, 6),
                    **rounded,
                    tokens_per_second=round(report.input_tokens / seconds, 1),
                    samples_per_second=round(report.samples / seconds, 2),
                    peak_memory_bytes=peak,
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
    """Resident bytes of this process, from which the plan counts on a CPU; the peak starts anew.

    The plan counts from a process that has its libraries: those that load at first use load now, and so do the code
    and the threads of a step.
    """
    adapters = ("peft",) if config.tuning.has_adapter else ()
    scores = find_task(config.task.type).loads_to_score
    for name in (*_AT_FIRST_USE, *adapters, *scores, *OPTIMIZERS[config.training.optim].modules):
        importlib.import_module(name)
    _compute_once()
    # Otherwise training would reuse memory that data preparation freed, and its growth would be measured too small.
    # Only glibc has this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    start_peak(torch.device("cpu"))
    return int(psutil.Process().memory_info().rss)


def _compute_once() -> None:
    """What steps are made of, on some numbers that are not random: nobody's seed moves on."""
    square = torch.ones(_WIDTH, _WIDTH, requires_grad=True)
    hidden = functional.layer_norm(functional.gelu(square @ square), (_WIDTH,))
    heads = hidden.view(1, 1, _WIDTH, _WIDTH)
    hidden = hidden + functional.scaled_dot_product_attention(heads, heads, heads).view(_WIDTH, _WIDTH)
    functional.cross_entropy(hidden @ square, torch.zeros(_WIDTH, dtype=torch.int64)).backward()
    torch.nn.utils.clip_grad_norm_([square], 1.0)
    torch.optim.AdamW([square], fused=True).step()


def start_peak(device: torch.device) -> None:
    """What `peak_memory_bytes` says from here on. Where a process cannot reset its peak, that of before counts too."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """On a GPU the most that was allocated on it, else the most resident memory that this process has had."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
