"""The checklist: the verdicts of all rules on a config before its run."""

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
from tui_trainer.advice.fixes import load_patched, refusals
from tui_trainer.advice.measured_gains import Gain, KeptGains, Measurable, affects_steps
from tui_trainer.config.changes import Change, Patch
from tui_trainer.config.load import LoadedConfig, Origin, value_of
from tui_trainer.terminal.safe_text import one_line

ALL = "all"
"""Word that stands for all checks where the user may enter names of checks."""
_SHOWN_VALUE = 60
# After a later fix an earlier check may fail again: a run of fewer steps needs a smaller model.
_TRIES = 2
_NO_PLAN = "no plan can be made yet: see the first check in this list"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A rule and its verdict before a run. `changes` has the settings of the fix with their present and new values.
    Show texts only through `safe_text`.

    `gain` is that of the fix or, without a fix, that of the present config over `alternative`; None if unmeasured."""

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
    def setting(self) -> str:
        """Key of the setting to look at; empty if the finding is not about a setting."""
        return next(iter([*(self.fix or ()), *filter(None, [self.verdict.setting]), *self.rule.settings]), "")

    @property
    def is_open(self) -> bool:
        """Whether the finding is an error, a failure or a warning, so that the user should look at it."""
        return self.status in ("error", "fail", "warn")

    @property
    def alternative(self) -> Patch | None:
        """Settings with which the config can be compared by measurement: those of the fix, or else the opposite."""
        return self.verdict.fix or self.verdict.opposite_patch

    @property
    def why_not_measured(self) -> str:
        """Reason why no comparison of steps can be measured; empty if one can."""
        if not self.alternative:
            return "this check has no setting to toggle"
        if not any(map(affects_steps, self.alternative)):
            return "this check has no effect on step time"
        return ""

    @property
    def measured_gain(self) -> float | None:
        """Speed-up that was measured on this machine (1.5: 1.5 times as fast); None if it was not measured."""
        return self.gain.speed_up if self.gain else None

    @property
    def gain_words(self) -> str:
        """Measured or estimated gain as text, or why there is none: `not measured yet`."""
        if self.gain is None and self.verdict.reckoned_gain:
            return f"{self.verdict.reckoned_gain:.2f} times as fast, estimated {self.verdict.reckoned_from}"
        if self.gain is None:
            return self.why_not_measured or "not measured yet"
        return self.gain.words("" if self.fix else patch_words(self.alternative or {}))


def patch_words(patch: Patch) -> str:
    """Return the settings of a patch as text: `data.packing = false`."""
    return ", ".join(f"{key} = {one_line(json.dumps(value), _SHOWN_VALUE)}" for key, value in patch.items())


@cache
def all_checks() -> tuple[Rule, ...]:
    """Return the rules that check a config before a run, in the order of the checklist."""
    return tuple(sorted((rule for rule in all_rules() if rule.order), key=lambda rule: (rule.order, rule.name)))


def run_checks(context: Context, chosen: Iterable[Rule] | None = None) -> list[Finding]:
    """Return the findings of the chosen checks, by default of all, in order. A check that fails becomes a finding."""
    rules = all_checks() if chosen is None else chosen
    gains = KeptGains.read(Measurable.of(context.plan)) if context.plan else None
    return [_make_finding(rule, context, gains) for rule in rules]


def worst(findings: Iterable[Finding]) -> Status:
    """Return the worst status of the findings; `n/a` if no check applies."""
    return min((finding.status for finding in findings), key=STATUSES.index, default="n/a")


def count_statuses(findings: Sequence[Finding]) -> dict[Status, int]:
    """Return the number of findings with each status, the worst status first."""
    return {status: sum(finding.status == status for finding in findings) for status in STATUSES}


def _make_finding(rule: Rule, context: Context, gains: KeptGains | None) -> Finding:
    verdict = _judge(rule, context)
    gain = gains.find(verdict.fix or verdict.opposite_patch or {}) if gains else None
    if rule.is_for_speed and verdict.status == "warn" and gain and gain.is_slower:
        evidence = f"{verdict.evidence}; but {patch_words(verdict.fix or {})} was measured to be slower here"
        verdict = passed(evidence, *verdict.details, switch_state=verdict.switch_state, opposite_patch=verdict.fix)
    elif rule.is_for_speed and verdict.opposite_patch and gain and gain.inverse().is_slower:
        evidence = f"{verdict.evidence}; but {patch_words(verdict.opposite_patch)} was measured to be faster here"
        verdict = warned(evidence, *verdict.details, switch_state=verdict.switch_state, fix=verdict.opposite_patch)
    if verdict.status == "warn" and verdict.fix and not (gain and gain.is_difference):
        # Values of a hardware profile have reasons, which only a measurement on this machine can contradict.
        profile = context.loaded.hardware_profile
        if profile and {context.loaded.origin(key) for key in verdict.fix} == {Origin.HARDWARE}:
            evidence = f"{verdict.evidence}; no change is proposed, because hardware profile {profile.name} sets it"
            verdict = passed(evidence, *verdict.details, switch_state=verdict.switch_state, opposite_patch=verdict.fix)
    if verdict.fix and (reasons := refusals(context, verdict.fix)):
        refusal = f"{patch_words(verdict.fix)} would be refused here: {'; '.join(reasons)}"
        advice = "; ".join(filter(None, (verdict.advice, refusal)))
        verdict, gain = replace(verdict, fix=None, advice=advice, reckoned_gain=None), None
    fix = verdict.fix or {}
    changes = tuple(Change(key=key, old=value_of(context.config, key), new=new) for key, new in fix.items())
    if gain and not verdict.fix and gain.ratios:
        gain = gain.inverse()
    return Finding(rule=rule, verdict=verdict, changes=changes, gain=gain)


def _judge(rule: Rule, context: Context) -> Verdict:
    if rule.needs_plan and context.plan is None:
        return _without_plan(rule, context)
    if rule.needed_count and context.counted_facts is None:
        return not_applicable(f"{rule.needed_count} is known once the data is prepared (run tui-trainer preview)")
    try:
        verdict = rule.judge_config(context)
        if rule.needed_count and context.counted_facts and not context.counted_facts.exact and verdict.status != "n/a":
            return replace(verdict, evidence=f"{verdict.evidence} ({context.counted_facts.reason})")
        return verdict
    except Exception as error:  # a check that fails becomes a finding, and the other checks still run
        return Verdict(status="error", evidence=f"this check could not run: {broken_words(error)}")


def _without_plan(rule: Rule, context: Context) -> Verdict:
    """Return the verdict if there is no plan: a failure if the rule can fix the setting that prevents the plan."""
    key = "" if rule.fallback is None else rule.settings[0]
    messages = [problem.message for problem in context.problems if key and problem.key == key]
    if not messages:
        return Verdict(status="n/a", evidence=_NO_PLAN)
    return failed("; ".join(f"{key}: {message}" for message in messages), fix={key: rule.fallback})


def apply_fixes(
    loaded: LoadedConfig, gather: Callable[[LoadedConfig], Context]
) -> tuple[LoadedConfig, dict[str, Any], list[Finding]]:
    """Apply the fixes one after the other. The checks run again after each fix, so that fixes do not conflict.

    Returns the config with all fixes, the settings that changed with their new values, and the remaining findings."""
    changes: dict[str, Any] = {}
    tries: Counter[str] = Counter()
    findings = run_checks(gather(loaded))
    # Stored gains belong to one combination of settings, so they would not be found after another fix.
    speed_findings = [it for it in findings if it.rule.is_for_speed and not it.fix and it.gain]
    fast_names = {it.name for it in speed_findings if it.gain and it.gain.inverse().is_slower}
    while finding := next((f for f in findings if f.fix and f.name not in fast_names and tries[f.name] < _TRIES), None):
        tries[finding.name] += 1
        changes |= dict(finding.fix or {})
        loaded = load_patched(loaded, finding.fix or {})
        findings = run_checks(gather(loaded))
    return loaded, changes, findings
