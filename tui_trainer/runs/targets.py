"""What a run was meant to reach, beside what it has reached: from the journal alone, while it runs and afterwards."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tui_trainer.runs.result import best_evaluation, held_out_loss, newest_scores
from tui_trainer.runs.score_words import number, plain
from tui_trainer.runs.state import RunState
from tui_trainer.units import GIB, format_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One setting of [targets]. `measured` is None while it is not known; bytes where `requested` is bytes too."""

    label: str
    requested: float
    measured: float | None
    at_most: bool
    show: Callable[[float], str] = number

    @property
    def met(self) -> bool | None:
        """None: not known yet. A loss that is not a number meets nothing."""
        if self.measured is None:
            return None
        return self.measured <= self.requested if self.at_most else self.measured >= self.requested

    @property
    def verdict(self) -> str:
        return {True: "met", False: "not met", None: "not known yet"}[self.met]

    @property
    def words(self) -> str:
        """`samples/s 28.3 (at least 20)`."""
        measured = "--" if self.measured is None else self.show(self.measured)
        bound = "at most" if self.at_most else "at least"
        return f"{self.label} {measured} ({bound} {self.show(self.requested)})"


def targets_of(state: RunState) -> list[Target]:
    requested = state.plan.targets if state.plan else {}
    metric = plain(state.plan.metric) if state.plan else ""
    return [
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
