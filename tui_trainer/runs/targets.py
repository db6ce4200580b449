"""What a run was meant to reach, beside what it has reached: from the journal alone, while it runs and afterwards."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tui_trainer.deadlines import clock_words
from tui_trainer.runs.remaining import eta_seconds
from tui_trainer.runs.result import best_evaluation, held_out_loss, newest_scores
from tui_trainer.runs.score_words import number, plain
from tui_trainer.runs.state import RunState
from tui_trainer.units import GIB, format_bytes

_DEADLINE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One setting of [targets]. `measured` is None while it is not known; bytes where `requested` is bytes too, and
    seconds since 1970 of a deadline. `is_forecast`: it is measured at the end."""

    label: str
    requested: float
    measured: float | None
    at_most: bool
    show: Callable[[float], str] = number
    is_forecast: bool = False

    @property
    def met(self) -> bool | None:
        """None: not known yet. A loss that is not a number meets nothing."""
        if self.measured is None:
            return None
        return self.measured <= self.requested if self.at_most else self.measured >= self.requested

    @property
    def verdict(self) -> str:
        if self.is_forecast and self.met is not None:
            return "in time" if self.met else "too late"
        return {True: "met", False: "not met", None: "not known yet"}[self.met]

    @property
    def words(self) -> str:
        """`samples/s 28.3 (at least 20)`."""
        measured = "--" if self.measured is None else self.show(self.measured)
        bound = "by" if self.label == _DEADLINE else "at most" if self.at_most else "at least"
        return f"{self.label} {measured} ({bound} {self.show(self.requested)})"


def targets_of(state: RunState) -> list[Target]:
    requested = state.plan.targets if state.plan else {}
    deadline = _deadline(state)
    metric = plain(state.plan.metric) if state.plan else ""
    return ([deadline] if deadline else []) + [
        Target(
            label=metric if name == "score" else label,
            requested=requested[name] * (GIB if in_bytes else 1),
            measured=measure(state),
            at_most=at_most,
            show=format_bytes if in_bytes else number,
        )
        for name, (label, at_most, in_bytes, measure) in _TARGETS.items()
        if requested.get(name)
    ]


def _deadline(state: RunState) -> Target | None:
    """When the run is done, or will be at the rate of its last steps."""
    if state.plan is None or not state.plan.deadline:
        return None
    by, over = datetime.fromisoformat(state.plan.deadline), state.finished or state.failed
    done = state.finished.at if state.finished and state.finished.reason != "stopped" else ""
    left = eta_seconds(state)
    if not over and left is not None and state.last_step is not None:
        done = state.last_step.at
    expected = (datetime.fromisoformat(done) + timedelta(seconds=left or 0.0)).timestamp() if done else None
    return Target(
        label=_DEADLINE,
        requested=by.timestamp(),
        measured=expected,
        at_most=True,
        show=lambda stamp: clock_words(datetime.fromtimestamp(stamp), by),
        is_forecast=not over,
    )


def targets_summary(state: RunState) -> str:
    """`2 of 3 met`; empty where none was set."""
    targets = targets_of(state)
    unknown = sum(target.met is None for target in targets)
    met = f"{sum(target.met is True for target in targets)} of {len(targets)} met"
    return "" if not targets else met + (f", {unknown} not known yet" if unknown else "")


def _score(state: RunState) -> float | None:
    """Of the model where it has one, of the best evaluation so far before."""
    metric = state.plan.metric if state.plan else ""
    best = best_evaluation(state)
    scores = newest_scores(state) if state.finished or best is None else best.scores
    return scores.get(metric)


def _loss(state: RunState) -> float | None:
    loss = held_out_loss(state) if state.finished else state.best_eval_loss
    return None if loss is None else loss if math.isfinite(loss) else math.inf


# By the name of the setting: label, whether less is better, whether it is set in GiB, what it is compared with.
_TARGETS: dict[str, tuple[str, bool, bool, Callable[[RunState], float | None]]] = {
    "samples_per_second": ("samples/s", False, False, lambda state: state.samples_per_second),
    "memory_gib": ("memory", True, True, lambda state: state.peak_memory_bytes or None),
    "model_size_gib": ("model size", True, True, lambda state: state.finished.model_bytes if state.finished else None),
    "loss": ("held-out loss", True, False, _loss),
    "score": ("score", False, False, _score),
}
