"""What can be drawn over the steps of a run."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tui_trainer.runs.state import RunState
from tui_trainer.units import format_count, format_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Metric:
    """`values` gives one number per step of `state.steps`; `robust`: a few that are far off may leave the range.

    `smooths` is false for what has no noise.
    """

    name: str
    unit: str
    values: Callable[[RunState], NDArray[np.float64]]
    show: Callable[[float], str]
    smooths: bool = True
    robust: bool = True


def _column(name: str) -> Callable[[RunState], NDArray[np.float64]]:
    def read(state: RunState) -> NDArray[np.float64]:
        import numpy as np

        # A copy made in one call: a view would lock the column against the thread that appends to it.
        column: array[float] = getattr(state, name)
        return np.frombuffer(column.tobytes(), np.float64)

    return read


def _tokens_per_second(state: RunState) -> NDArray[np.float64]:
    import numpy as np

    tokens, seconds = np.frombuffer(state.token_counts.tobytes(), np.int64), _column("step_seconds")(state)
    length = min(len(tokens), len(seconds))
    tokens, seconds = tokens[:length], seconds[:length]
    rates: NDArray[np.float64] = np.divide(tokens, seconds, out=np.full(length, np.nan), where=seconds > 0)
    return rates


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("loss", "nats a token", _column("losses"), "{:.4f}".format),
        Metric("learning rate", "", _column("lrs"), "{:.2e}".format, smooths=False, robust=False),
        Metric("gradient norm", "", _column("grad_norms"), "{:.3g}".format),
        Metric("tokens/s", "", _tokens_per_second, format_count),
        Metric("step seconds", "", _column("step_seconds"), format_seconds),
    )
}


class ChartView(Protocol):
    """What of a chart its parts are drawn by."""

    @property
    def metric(self) -> Metric: ...
    @property
    def smoothing(self) -> float: ...
    @property
    def compact(self) -> bool: ...
    @property
    def log(self) -> bool: ...
    @property
    def cross_step(self) -> int | None: ...
