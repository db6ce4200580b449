"""What a diagnosis is and what it finds. Those in `diagnoses/` are pure: a view of the journal in, a cause or None out.

A share is of the time of the run, 0 to 1: what the cause costs, measured where the journal measures it. Findings are
ranked by it. A fault is no cost but an end: what spoils the run, or will end it, comes before all that is merely slow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.doctor.view import RunView
from tui_trainer.terminal.safe_text import one_line

BAR_SHARE = 0.1
# A GPU that is busy for less of the time waits for something.
IDLE_GPU = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """What one look found. `cause` and `evidence` are one sentence each, the second with numbers; `advice` is for what
    no patch can do, `fix` for the next run."""

    cause: str
    evidence: str
    share: float
    advice: str = ""
    fix: Patch | None = None
    is_fault: bool = False


Look = Callable[[RunView], Cause | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """One rule; `why` is its reason.

    `needs_steps`: it is not asked before there are enough steps to judge by.
    """

    look: Look
    name: str
    title: str
    why: str
    needs_steps: bool = True
    least_share: float = BAR_SHARE
    """A cause that costs less, and is no fault, is no finding."""


def diagnosis(title: str, **more: Any) -> Callable[[Look], Diagnosis]:
    """Makes a diagnosis of the function that looks, whose docstring says why; `more` are its other fields."""
    return lambda look: Diagnosis(look=look, name=look.__name__, title=title, why=look.__doc__ or "", **more)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A diagnosis with what it found. Texts pass `safe_text` where they are shown."""

    diagnosis: Diagnosis
    found: Cause

    @property
    def name(self) -> str:
        return self.diagnosis.name

    @property
    def matters(self) -> bool:
        return self.found.is_fault or self.found.share >= BAR_SHARE

    @property
    def headline(self) -> str:
        return one_line(f"{self.found.cause.rstrip('.')}: {self.found.evidence}", 400)

    @property
    def cost_words(self) -> str:
        """`61 % of the time`, or that it is a fault."""
        return "a fault" if self.found.is_fault else f"{percent(self.found.share)} of the time"

    @property
    def remedy_words(self) -> str:
        return "; ".join(filter(None, (settings_words(self.found.fix or {}), self.found.advice)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """All findings, the costliest first. `is_known` is false while there are too few steps to judge by."""

    is_known: bool
    findings: tuple[Finding, ...]
    healthy: str
    """Where the time goes, for a run that nothing ails; why nothing can be said, while it is not known."""
    step: int = 0

    @property
    def leading(self) -> Finding | None:
        """What costs most, where it costs enough; None for a run that nothing ails."""
        return next((one for one in self.findings if one.matters), None)

    @property
    def name(self) -> str:
        """Of the leading cause; `healthy`, or empty while it is not known."""
        return self.leading.name if self.leading else "healthy" if self.is_known else ""

    @property
    def words(self) -> str:
        """In one line: what costs most with its remedy, or that nothing does."""
        if self.leading is None:
            return self.healthy
        remedy = one_line(self.leading.remedy_words, 300)
        return self.leading.headline + (f"; next run: {remedy}" if remedy else "")

    @property
    def fix(self) -> dict[str, Any]:
        """What all that matters proposes for the next run; the costlier has the first word on a setting."""
        patch: dict[str, Any] = {}
        for one in self.findings:
            patch = {**(one.found.fix or {}), **patch} if one.matters else patch
        return patch


def percent(share: float) -> str:
    """`61 %`."""
    return f"{100 * share:.0f} %"
