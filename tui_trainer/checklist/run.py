"""Runs the checks, and puts their fixes into a config."""

import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from tui_trainer.checklist import checks
from tui_trainer.checklist.contract import (
    STATUSES,
    Check,
    Context,
    Finding,
    Status,
    Verdict,
    failed,
    passed,
    patch_words,
)
from tui_trainer.config.changes import Change, Patch
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, Request, all_settings, value_of
from tui_trainer.launching.start import load_config
from tui_trainer.planning.measured_gains import KeptGains, Measurable

# A later fix may open an earlier check again: fewer steps ask for a smaller model.
_TRIES = 2
_NO_PLAN = "no plan can be made yet: see the first line of this list"


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check: one file of `checks/` each, in their own order."""
    names = [module.name for module in pkgutil.iter_modules(checks.__path__)]
    found: list[Check] = [import_module(f"{checks.__name__}.{name}").look for name in names]
    return tuple(sorted(found, key=lambda check: (check.order, check.name)))


def run_checks(context: Context, chosen: Iterable[Check] | None = None) -> list[Finding]:
    """What each check finds, in their order. A check that breaks becomes a finding, and stops no other."""
    wanted = all_checks() if chosen is None else chosen
    gains = KeptGains.read(Measurable.of(context.plan)) if context.plan else None
    return [_finding(check, context, gains) for check in wanted]


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status; `pass` outranks `n/a`, which is all there is when nothing applies."""
    return min((finding.status for finding in findings), key=STATUSES.index, default="n/a")


def counts(findings: Sequence[Finding]) -> dict[Status, int]:
    """How many of each status, from the worst on."""
    return {status: sum(finding.status == status for finding in findings) for status in STATUSES}


def patched(loaded: LoadedConfig, patch: Patch) -> LoadedConfig:
    """The config with some settings changed, as if the user had written them. Raises ConfigError."""
    return load_config(as_request(loaded, patch))


def as_request(loaded: LoadedConfig, patch: Patch) -> Request:
    """What asks for it: all that the user wrote is written again, so precedence stays. The profiles give the rest."""
    written = {key: value_of(loaded.config, key) for key in all_settings() if loaded.origin(key).by_user}
    profile = {"profile": value_of(loaded.config, "profile") or (loaded.recipe.name if loaded.recipe else "")}
    values = written | profile | dict(patch)
    return Request(assignments=tuple(f"{key}={toml_text(value)}" for key, value in values.items()))


def apply_fixes(
    loaded: LoadedConfig, gather: Callable[[LoadedConfig], Context]
) -> tuple[LoadedConfig, dict[str, Any], list[Finding]]:
    """One fix after the other, each seen in the light of those before it, so that they do not contradict each other.

    Returns the config with all fixes, the settings that changed with their new values, and what the checks then find.
    """
    changes: dict[str, Any] = {}
    tries: Counter[str] = Counter()
    findings = run_checks(gather(loaded))
    # Gains are kept by all settings that a loss depends on: after another fix they would not be found.
    fastest = {f.name for f in findings if f.check.is_for_speed and not f.fix and f.gain and f.gain.turned().is_slower}
    while chosen := next((f for f in findings if f.fix and f.name not in fastest and tries[f.name] < _TRIES), None):
        tries[chosen.name] += 1
        changes |= dict(chosen.fix or {})
        loaded = patched(loaded, chosen.fix or {})
        findings = run_checks(gather(loaded))
    return loaded, changes, findings


def _finding(check: Check, context: Context, gains: KeptGains | None) -> Finding:
    verdict = _look(check, context)
    gain = gains.find(verdict.fix or verdict.opposite or {}) if gains else None
    if check.is_for_speed and verdict.status == "warn" and gain and gain.is_slower:
        evidence = f"{verdict.evidence}; but {patch_words(verdict.fix or {})} was measured to be slower here"
        verdict = passed(evidence, *verdict.details, switch=verdict.switch, opposite=verdict.fix)
    changes = tuple(
        Change(key=key, old=value_of(context.config, key), new=new) for key, new in (verdict.fix or {}).items()
    )
    if gain and not verdict.fix and gain.ratios:
        gain = gain.turned()
    return Finding(check=check, verdict=verdict, changes=changes, gain=gain)


def _look(check: Check, context: Context) -> Verdict:
    if check.needs_plan and context.plan is None:
        return _without_plan(check, context)
    try:
        return check.look(context)
    except Exception as error:  # the one place: a check that breaks is a finding, and the others are made all the same
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Verdict(status="error", evidence=f"this check could not be made: {reason}")


def _without_plan(check: Check, context: Context) -> Verdict:
    """The setting that is in the way, where it is one of this check's."""
    refused = [problem for problem in context.problems if problem.key in check.fallback]
    if not refused:
        return Verdict(status="n/a", evidence=_NO_PLAN)
    fix = {problem.key: check.fallback[problem.key] for problem in refused}
    return failed("; ".join(f"{problem.key}: {problem.message}" for problem in refused), fix=fix)
