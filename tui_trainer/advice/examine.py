"""Asks every rule what a run loses its time to and what goes wrong in it, and ranks what they find.

From its journal alone: beside a run that lives now and then, saying what is news, and afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any

from tui_trainer.advice.contract import BAR_SHARE, Cause, Symptom, all_rules, broken_words
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import settings_words
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_seconds, percent

LEAST_STEPS = 20
LEAST_SECONDS = 15.0
"""Of a run that lives: three readings of its gauges."""
_MOST_PARTS = 3
_PERIOD_SECONDS = 2.0
# A cause that leads for a moment only, as during one evaluation, is no news.
_CONFIRMED_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCause:
    """A symptom with what it found. Texts pass `safe_text` where they are shown."""

    symptom: Symptom
    found: Cause

    @property
    def name(self) -> str:
        return self.symptom.name

    @property
    def matters(self) -> bool:
        return self.found.is_fault or self.found.share >= BAR_SHARE

    @property
    def cost_words(self) -> str:
        """`61 % of the time`, or `error` for a fault."""
        return "error" if self.found.is_fault else f"{percent(self.found.share)} of the time"

    @property
    def remedy_words(self) -> str:
        return "; ".join(filter(None, (settings_words(self.found.fix or {}), self.found.advice)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """All that was found, the costliest first. `is_known` is false while there are too few steps to judge by."""

    is_known: bool
    findings: tuple[FoundCause, ...]
    healthy: str
    """Where the time goes in a healthy run; while `is_known` is false, why the run cannot be judged yet."""
    step: int = 0

    @property
    def leading(self) -> FoundCause | None:
        """The finding that costs most, if it costs enough; None for a healthy run."""
        return next((finding for finding in self.findings if finding.matters), None)

    @property
    def name(self) -> str:
        """Name of the leading cause; `healthy`, or empty while it is not known."""
        return self.leading.name if self.leading else "healthy" if self.is_known else ""

    @property
    def words(self) -> str:
        """The leading cause with its remedy in one line, or that nothing costs much."""
        if self.leading is None:
            return self.healthy
        remedy = one_line(self.leading.remedy_words, 300)
        cause = self.leading.found
        headline = one_line(f"{cause.cause.rstrip('.')}: {cause.evidence}", 400)
        return headline + (f"; next run: {remedy}" if remedy else "")

    @property
    def fix(self) -> dict[str, Any]:
        """Settings that all findings that matter propose for the next run; the costlier finding decides on a
        setting."""
        patch: dict[str, Any] = {}
        for finding in self.findings:
            patch = {**(finding.found.fix or {}), **patch} if finding.matters else patch
        return patch


@cache
def all_symptoms() -> tuple[Symptom, ...]:
    """Return every symptom of every rule."""
    return tuple(symptom for rule in all_rules() for symptom in rule.during)


def examine(state: RunState) -> Examination:
    """Return what the journal shows so far. It is quick: a few sums over what was added up already."""
    view = RunView(state)
    is_long_enough = view.is_over or view.sums.steps * view.whole_seconds >= LEAST_SECONDS
    has_steps = view.sums.steps >= LEAST_STEPS and is_long_enough
    findings = [
        FoundCause(symptom=symptom, found=cause)
        for symptom in all_symptoms()
        if (has_steps or not symptom.needs_steps) and (cause := _look(symptom, view))
    ]
    findings.sort(key=lambda finding: (not finding.found.is_fault, -finding.found.share))
    is_known = has_steps or bool(findings)
    return Examination(
        is_known=is_known,
        findings=tuple(findings),
        healthy=_where_time_goes(view) if has_steps else _too_early(view),
        step=state.step,
    )


def _look(symptom: Symptom, view: RunView) -> Cause | None:
    try:
        cause = symptom.look(view)
    except Exception as error:  # as a check: one that breaks is a finding, and the others are made all the same
        return Cause(cause="This diagnosis could not run.", evidence=broken_words(error), share=0.0)
    if not cause or not (cause.is_fault or cause.share >= symptom.least_share):
        return None
    # A hardware profile has its reasons, which only a measurement on this machine can contradict.
    decided = set(view.plan.hardware_settings) if view.plan and not cause.is_measured else set()
    return None if cause.fix and not cause.is_fault and set(cause.fix) <= decided else cause


def _where_time_goes(view: RunView) -> str:
    parts = {
        "forward and backward": view.compute_seconds,
        "optimizer": view.optimizer_seconds,
        "data": view.data_seconds,
        "evaluations": view.evaluation_seconds,
        "checkpoints": view.checkpoint_seconds,
        "samples": view.sample_seconds,
        "journal": view.journal_seconds,
        "the rest": view.empty_cache_seconds + view.other_seconds,
    }
    largest = sorted(parts, key=lambda name: -parts[name])[:_MOST_PARTS]
    named = ", ".join(f"{name} {percent(view.share(parts[name]))}" for name in largest)
    return f"healthy: {named} of the time; nothing avoidable takes {percent(BAR_SHARE)} or more"


def _too_early(view: RunView) -> str:
    done = view.sums.steps
    if view.is_over:
        return f"too short to judge: {done} steps after the first two, but at least {LEAST_STEPS} are needed"
    return f"too early to judge: {LEAST_STEPS} steps and {format_seconds(LEAST_SECONDS)} of training are needed"


class Doctor:
    """The doctor of one run. It examines new steps, at most once in two seconds."""

    def __init__(self, state: RunState, now: Callable[[], float] = monotonic) -> None:
        self._state, self._now = state, now
        self.verdict: Examination | None = None
        """The newest examination; None before the first."""
        self._told = ""
        self._candidate, self._since = "", 0.0
        self._looked, self._looked_at = -_PERIOD_SECONDS, (-1, False)

    def look(self) -> Examination | None:
        """Return the verdict if it is news: the first that stands, and each with another leading cause that lasts."""
        state = self._state
        position = state.step, state.finished is not None or state.failed is not None
        if position == self._looked_at or (self._now() - self._looked < _PERIOD_SECONDS and not position[1]):
            return None
        self._looked, self._looked_at = self._now(), position
        self.verdict = examine(state)
        return self.verdict if self._is_news(self.verdict, is_over=position[1]) else None

    def _is_news(self, verdict: Examination, *, is_over: bool) -> bool:
        """Return whether to report the verdict. The end of a run is not news: whoever shows the end shows the
        verdict."""
        if is_over or not verdict.name or verdict.name == self._told:
            self._candidate = ""
            return False
        if verdict.name != self._candidate:
            self._candidate, self._since = verdict.name, self._now()
        if self._told and self._now() - self._since < _CONFIRMED_SECONDS:
            return False
        self._told, self._candidate = verdict.name, ""
        return True
