"""The doctor: finds what costs a run time and what goes wrong in it, with all rules, and ranks the findings.

The doctor needs only the journal. It examines an active run repeatedly and reports new findings, or a run that ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import Any

from tui_trainer.advice.contract import LEAST_CAUSE_SHARE, Cause, Symptom, all_rules, broken_words
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.changes import settings_words
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_percent, format_seconds

LEAST_STEPS = 20
LEAST_SECONDS = 15.0
"""Training time after which an active run can be judged, which gives three readings of its gauges."""
_MOST_PARTS = 3
_PERIOD_SECONDS = 2.0
# A finding that leads only for a moment, such as during one evaluation, is not reported.
_CONFIRMED_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCause:
    """A symptom and the cause that it found. Show texts only through `safe_text`."""

    symptom: Symptom
    cause: Cause

    @property
    def name(self) -> str:
        return self.symptom.name

    @property
    def matters(self) -> bool:
        return self.cause.is_fault or self.cause.share >= LEAST_CAUSE_SHARE

    @property
    def cost_words(self) -> str:
        """Cost of the cause as text: `61 % of the time`, `error` for a fault, or `note` if it costs little time."""
        words = f"{format_percent(self.cause.share)} of the time" if self.matters else "note"
        return "error" if self.cause.is_fault else words

    @property
    def remedy_words(self) -> str:
        return "; ".join(filter(None, (settings_words(self.cause.fix or {}), self.cause.advice)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """All findings about a run, the costliest first. `is_known` is false while there are too few steps to judge."""

    is_known: bool
    findings: tuple[FoundCause, ...]
    healthy_sentence: str
    """Sentence for a run without findings: where its time goes, or why the run cannot be judged yet."""
    step: int = 0

    @property
    def leading_finding(self) -> FoundCause | None:
        """The costliest finding, if it costs enough to matter; None for a healthy run."""
        return next((finding for finding in self.findings if finding.matters), None)

    @property
    def name(self) -> str:
        """Name of the leading finding; `healthy` if there is none, or empty while the run cannot be judged."""
        return self.leading_finding.name if self.leading_finding else "healthy" if self.is_known else ""

    @property
    def words(self) -> str:
        """The leading finding with its remedy on one line, or the sentence `healthy_sentence`."""
        if self.leading_finding is None:
            return self.healthy_sentence
        remedy = one_line(self.leading_finding.remedy_words, 300)
        cause = self.leading_finding.cause
        headline = one_line(f"{cause.cause.rstrip('.')}: {cause.evidence}", 400)
        return headline + (f"; next run: {remedy}" if remedy else "")

    @property
    def fix(self) -> dict[str, Any]:
        """Settings that the findings which matter propose for the next run. If findings disagree on a setting, the
        costlier one decides."""
        patch: dict[str, Any] = {}
        for finding in self.findings:
            patch = {**(finding.cause.fix or {}), **patch} if finding.matters else patch
        return patch


@cache
def all_symptoms() -> tuple[Symptom, ...]:
    """Return the symptoms of all rules."""
    return tuple(symptom for rule in all_rules() for symptom in rule.symptoms)


def examine(state: RunState) -> Examination:
    """Examine a run with all symptoms. This is fast, because the state has already added up the journal."""
    view = RunView(state)
    is_long_enough = view.is_over or view.sums.steps * view.whole_seconds >= LEAST_SECONDS
    has_steps = view.sums.steps >= LEAST_STEPS and is_long_enough
    findings = [
        FoundCause(symptom=symptom, cause=cause)
        for symptom in all_symptoms()
        if (has_steps or not symptom.needs_steps) and (cause := _find_cause(symptom, view))
    ]
    if any(finding.cause.is_fault for finding in findings):
        findings = [finding for finding in findings if not finding.symptom.needs_health]
    findings.sort(key=lambda finding: (not finding.cause.is_fault, -finding.cause.share))
    return Examination(
        is_known=has_steps or bool(findings),
        findings=tuple(findings),
        healthy_sentence=_where_time_goes(view) if has_steps else _too_early_sentence(view),
        step=state.step,
    )


def _find_cause(symptom: Symptom, view: RunView) -> Cause | None:
    try:
        cause = symptom.find_cause(view)
    except Exception as error:  # a symptom that fails becomes a finding, and the other symptoms are still examined
        return Cause(cause="This diagnosis could not run.", evidence=broken_words(error), share=0.0)
    if not cause or not (cause.is_fault or cause.share >= symptom.least_share):
        return None
    # Values of a hardware profile have reasons, which only a measurement on this machine can contradict.
    profile_keys = set(view.plan.hardware_settings) if view.plan and not cause.is_measured else set()
    return None if cause.fix and not cause.is_fault and set(cause.fix) <= profile_keys else cause


def _where_time_goes(view: RunView) -> str:
    seconds_by_part = {
        "forward and backward": view.compute_seconds,
        "optimizer": view.optimizer_seconds,
        "data": view.data_seconds,
        "evaluations": view.evaluation_seconds,
        "checkpoints": view.checkpoint_seconds,
        "samples": view.sample_seconds,
        "journal": view.journal_seconds,
        "the rest": view.empty_cache_seconds + view.other_seconds,
    }
    largest_parts = sorted(seconds_by_part.items(), key=lambda part: -part[1])[:_MOST_PARTS]
    shares_text = ", ".join(f"{name} {format_percent(view.share_of_time(seconds))}" for name, seconds in largest_parts)
    return f"healthy: {shares_text} of the time; nothing avoidable takes {format_percent(LEAST_CAUSE_SHARE)} or more"


def _too_early_sentence(view: RunView) -> str:
    steps_done = view.sums.steps
    if view.is_over:
        return f"too short to judge: {LEAST_STEPS} steps after the first two are needed, but there are {steps_done}"
    return f"too early to judge: {LEAST_STEPS} steps and {format_seconds(LEAST_SECONDS)} of training are needed"


class Doctor:
    """The doctor of one run, which examines the run when it has new steps, at most every two seconds."""

    def __init__(self, state: RunState, now: Callable[[], float] = monotonic) -> None:
        self._state, self._now = state, now
        self.examination: Examination | None = None
        """The newest examination; None before the first."""
        self._reported_name = ""
        self._candidate, self._since = "", 0.0
        self._examined_at, self._examined_progress = -_PERIOD_SECONDS, (-1, False)

    def examine_news(self) -> Examination | None:
        """Examine the run. Return the examination if it is news, else None. News is the first judgement, and later each
        change of the leading finding that lasts."""
        state = self._state
        is_over = state.finished is not None or state.failed is not None
        is_early = self._now() - self._examined_at < _PERIOD_SECONDS and not is_over
        if is_early or (state.step, is_over) == self._examined_progress:
            return None
        self._examined_at, self._examined_progress = self._now(), (state.step, is_over)
        self.examination = examine(state)
        return self.examination if self._is_news(self.examination, is_over=is_over) else None

    def _is_news(self, verdict: Examination, *, is_over: bool) -> bool:
        """Return whether to report an examination. That of a run which has ended is not reported, because it is shown
        with the end."""
        if is_over or not verdict.name or verdict.name == self._reported_name:
            self._candidate = ""
            return False
        if verdict.name != self._candidate:
            self._candidate, self._since = verdict.name, self._now()
        if self._reported_name and self._now() - self._since < _CONFIRMED_SECONDS:
            return False
        self._reported_name, self._candidate = verdict.name, ""
        return True
