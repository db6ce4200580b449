"""The checklist: what every rule finds in a config before its run."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    STATUSES,
    Rule,
    Status,
    Verdict,
    all_rules,
    broken_words,
    failed,
    not_applicable,
    passed,
    warned,
)
from tui_trainer.advice.fixes import patched, refusals
from tui_trainer.advice.measured_gains import Gain, KeptGains, Measurable, is_of_steps
from tui_trainer.config.changes import Change, Patch
from tui_trainer.config.load import LoadedConfig, Origin, value_of
from tui_trainer.terminal.safe_text import one_line

ALL = "all"
"""For every check, where names of checks are asked for."""
_SHOWN_VALUE = 60
# A later fix may open an earlier check again: fewer steps ask for a smaller model.
_TRIES = 2
_NO_PLAN = "no plan can be made yet: see the first check in this list"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule and its verdict before a run. `changes` is its fix with the present values. Texts pass `safe_text` when
    they are shown.

    `gain` is the gain of the fix, or of the present config over the opposite; None if it was not measured.
    """

    rule: Rule
    verdict: Verdict
    changes: tuple[Change, ...] = ()
    gain: Gain | None = None

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def title(self) -> str:
        return self.rule.title

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def fix(self) -> Patch | None:
        return self.verdict.fix

    @property
    def is_open(self) -> bool:
        """Whether somebody should look at it."""
        return self.status in ("error", "fail", "warn")

    @property
    def alternative(self) -> Patch | None:
        """Settings that the config can be measured against: those of the fix, or the other position of the switch."""
        return self.verdict.fix or self.verdict.opposite

    @property
    def why_not_measured(self) -> str:
        """Why no steps can be measured; empty: they can."""
        if not self.alternative:
            return "this check has no setting to toggle"
        if not any(map(is_of_steps, self.alternative)):
            return "this check has no effect on step time"
        return ""

    @property
    def measured_gain(self) -> float | None:
        """How many times as fast, as measured on this machine; None: not measured."""
        return self.gain.speed_up if self.gain else None

    @property
    def gain_words(self) -> str:
        """The gain that was measured or estimated here, in words, or that none was."""
        if self.gain is None and self.verdict.reckoned_gain:
            return f"{self.verdict.reckoned_gain:.2f} times as fast, estimated {self.verdict.reckoned_from}"
        if self.gain is None:
            return self.why_not_measured or "not measured yet"
        return self.gain.words("" if self.fix else patch_words(self.alternative or {}))


def patch_words(patch: Patch) -> str:
    """Return the settings in TOML: `data.packing = false`."""
    return ", ".join(f"{key} = {one_line(json.dumps(value), _SHOWN_VALUE)}" for key, value in patch.items())


@cache
def all_checks() -> tuple[Rule, ...]:
    """Return the rules that check a config before a run, in the order of the checklist."""
    return tuple(sorted((rule for rule in all_rules() if rule.order), key=lambda rule: (rule.order, rule.name)))


def run_checks(context: Context, chosen: Iterable[Rule] | None = None) -> list[Finding]:
    """Return what each check finds, in their order. A check that breaks becomes a finding, and stops no other."""
    wanted = all_checks() if chosen is None else chosen
    gains = KeptGains.read(Measurable.of(context.plan)) if context.plan else None
    return [_finding(rule, context, gains) for rule in wanted]


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status; `pass` outranks `n/a`, which is all there is when nothing applies."""
    return min((finding.status for finding in findings), key=STATUSES.index, default="n/a")


def counts(findings: Sequence[Finding]) -> dict[Status, int]:
    """Return how many findings have each status, from the worst on."""
    return {status: sum(finding.status == status for finding in findings) for status in STATUSES}


def _finding(rule: Rule, context: Context, gains: KeptGains | None) -> Finding:
    verdict = _look(rule, context)
    gain = gains.find(verdict.fix or verdict.opposite or {}) if gains else None
    if rule.is_for_speed and verdict.status == "warn" and gain and gain.is_slower:
        evidence = f"{verdict.evidence}; but {patch_words(verdict.fix or {})} was measured to be slower here"
        verdict = passed(evidence, *verdict.details, switch=verdict.switch, opposite=verdict.fix)
    elif rule.is_for_speed and verdict.opposite and gain and gain.turned().is_slower:
        evidence = f"{verdict.evidence}; but {patch_words(verdict.opposite)} was measured to be faster here"
        verdict = warned(evidence, *verdict.details, switch=verdict.switch, fix=verdict.opposite)
    if verdict.status == "warn" and verdict.fix and not (gain and gain.is_difference):
        # A hardware profile has its reasons, which only a measurement on this machine can contradict.
        profile = context.loaded.hardware_profile
        if profile and {context.loaded.origin(key) for key in verdict.fix} == {Origin.HARDWARE}:
            evidence = f"{verdict.evidence}; no change is proposed: the setting is from hardware profile {profile.name}"
            verdict = passed(evidence, *verdict.details, switch=verdict.switch, opposite=verdict.fix)
    if verdict.fix and (refused := refusals(context, verdict.fix)):
        verdict, gain = _without_fix(verdict, verdict.fix, refused), None
    changes = tuple(
        Change(key=key, old=value_of(context.config, key), new=new) for key, new in (verdict.fix or {}).items()
    )
    if gain and not verdict.fix and gain.ratios:
        gain = gain.turned()
    return Finding(rule=rule, verdict=verdict, changes=changes, gain=gain)


def _without_fix(verdict: Verdict, fix: Patch, refused: Sequence[str]) -> Verdict:
    """Return the verdict without its fix, and with the reason why the fix would be refused."""
    why_none = f"{patch_words(fix)} would be refused here: {'; '.join(refused)}"
    return replace(verdict, fix=None, advice="; ".join(filter(None, (verdict.advice, why_none))), reckoned_gain=None)


def _look(rule: Rule, context: Context) -> Verdict:
    if rule.needs_plan and context.plan is None:
        return _without_plan(rule, context)
    if rule.counted and context.counted is None:
        return not_applicable(f"{rule.counted} is known once the data is prepared (run tui-trainer preview)")
    try:
        verdict = rule.before(context)
        if rule.counted and context.counted and not context.counted.exact and verdict.status != "n/a":
            return replace(verdict, evidence=f"{verdict.evidence} ({context.counted.reason})")
        return verdict
    except Exception as error:  # the one place: a check that breaks is a finding, and the others are made all the same
        return Verdict(status="error", evidence=f"this check could not run: {broken_words(error)}")


def _without_plan(rule: Rule, context: Context) -> Verdict:
    """Return a failure for a setting that keeps a plan from being made, if the rule knows a value that does not."""
    key = "" if rule.fallback is None else rule.settings[0]
    refused = [problem.message for problem in context.problems if key and problem.key == key]
    if not refused:
        return Verdict(status="n/a", evidence=_NO_PLAN)
    return failed("; ".join(f"{key}: {message}" for message in refused), fix={key: rule.fallback})


def apply_fixes(
    loaded: LoadedConfig, gather: Callable[[LoadedConfig], Context]
) -> tuple[LoadedConfig, dict[str, Any], list[Finding]]:
    """Apply one fix after the other, each after looking again, so that they do not contradict each other.

    Returns the config with all fixes, the settings that changed with their new values, and what the checks then find.
    """
    changes: dict[str, Any] = {}
    tries: Counter[str] = Counter()
    findings = run_checks(gather(loaded))
    # Gains are kept by all settings that a loss depends on: after another fix they would not be found.
    fastest = {f.name for f in findings if f.rule.is_for_speed and not f.fix and f.gain and f.gain.turned().is_slower}
    while chosen := next((f for f in findings if f.fix and f.name not in fastest and tries[f.name] < _TRIES), None):
        tries[chosen.name] += 1
        changes |= dict(chosen.fix or {})
        loaded = patched(loaded, chosen.fix or {})
        findings = run_checks(gather(loaded))
    return loaded, changes, findings
