"""Asks every diagnosis, and ranks what they find; beside a run that lives now and then, and says what is news."""

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from time import monotonic

from tui_trainer.doctor import diagnoses
from tui_trainer.doctor.contract import BAR_SHARE, Cause, Diagnosis, Finding, Verdict, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.state import RunState
from tui_trainer.units import format_seconds

LEAST_STEPS = 20
LEAST_SECONDS = 15.0
"""Of a run that lives: three readings of its gauges."""
_MOST_PARTS = 3
_PERIOD_SECONDS = 2.0
# A cause that leads for a moment only, as during one evaluation, is no news.
_CONFIRMED_SECONDS = 10.0


@cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every diagnosis of the files of `diagnoses/`."""
    names = [module.name for module in pkgutil.iter_modules(diagnoses.__path__)]
    found = [one for name in names for one in vars(import_module(f"{diagnoses.__name__}.{name}")).values()]
    return tuple(one for one in found if isinstance(one, Diagnosis))


def examine(state: RunState) -> Verdict:
    """What the journal so far tells. Quick: a few sums over what was added up already."""
    view = RunView(state)
    is_long_enough = view.is_over or view.sums.steps * view.whole_seconds >= LEAST_SECONDS
    has_steps = view.sums.steps >= LEAST_STEPS and is_long_enough
    findings = [
        Finding(diagnosis=one, found=found)
        for one in all_diagnoses()
        if (has_steps or not one.needs_steps) and (found := _look(one, view))
    ]
    findings.sort(key=lambda one: (not one.found.is_fault, -one.found.share))
    is_known = has_steps or bool(findings)
    return Verdict(
        is_known=is_known,
        findings=tuple(findings),
        healthy=_where_time_goes(view) if has_steps else _too_early(view),
        step=state.step,
    )


def _look(diagnosis: Diagnosis, view: RunView) -> Cause | None:
    try:
        found = diagnosis.look(view)
    except Exception as error:  # as a check: one that breaks is a finding, and the others are made all the same
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Cause(cause="This diagnosis could not be made.", evidence=reason, share=0.0)
    return found if found and (found.is_fault or found.share >= diagnosis.least_share) else None


def _where_time_goes(view: RunView) -> str:
    parts = {
        "forward and backward": view.compute_seconds,
        "optimizer": view.optimizer_seconds,
        "data": view.data_seconds,
        "evaluations": view.evaluation_seconds,
        "checkpoints": view.checkpoint_seconds,
        "text samples": view.sample_seconds,
        "journal": view.journal_seconds,
        "the rest": view.empty_cache_seconds + view.other_seconds,
    }
    largest = sorted(parts, key=lambda name: -parts[name])[:_MOST_PARTS]
    named = ", ".join(f"{name} {percent(view.share(parts[name]))}" for name in largest)
    return f"healthy: {named} of the time; nothing that could be spared costs {percent(BAR_SHARE)} of it"


def _too_early(view: RunView) -> str:
    done = view.sums.steps
    if view.is_over:
        return f"too short to judge: {done} steps after the first two, and {LEAST_STEPS} are needed"
    return f"too early to say: {LEAST_STEPS} steps and {format_seconds(LEAST_SECONDS)} of training are needed"


class Doctor:
    """Of one run. It looks where there are new steps, at most once in two seconds."""

    def __init__(self, state: RunState, now: Callable[[], float] = monotonic) -> None:
        self._state, self._now = state, now
        self.verdict: Verdict | None = None
        """The newest; None before the first look."""
        self._told = ""
        self._candidate, self._since = "", 0.0
        self._looked, self._looked_at = -_PERIOD_SECONDS, (-1, False)

    def look(self) -> Verdict | None:
        """The verdict where it is news: the first that stands, and each with another leading cause that lasts."""
        state = self._state
        seen = state.step, state.finished is not None or state.failed is not None
        if seen == self._looked_at or (self._now() - self._looked < _PERIOD_SECONDS and not seen[1]):
            return None
        self._looked, self._looked_at = self._now(), seen
        self.verdict = examine(state)
        return self.verdict if self._is_news(self.verdict, is_over=seen[1]) else None

    def _is_news(self, verdict: Verdict, *, is_over: bool) -> bool:
        """What came out in the end is for whoever shows the end."""
        if is_over or not verdict.name or verdict.name == self._told:
            self._candidate = ""
            return False
        if verdict.name != self._candidate:
            self._candidate, self._since = verdict.name, self._now()
        if self._told and self._now() - self._since < _CONFIRMED_SECONDS:
            return False
        self._told, self._candidate = verdict.name, ""
        return True
