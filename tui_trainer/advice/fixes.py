"""Puts the fixes of the checklist into a config."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from tui_trainer.advice.checklist import Finding, run_checks
from tui_trainer.advice.context import Context
from tui_trainer.config.changes import Patch
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import LoadedConfig, Request, all_settings, value_of
from tui_trainer.launching.open_run import load_config

# A later fix may open an earlier check again: fewer steps ask for a smaller model.
_TRIES = 2


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
    fastest = {f.name for f in findings if f.rule.is_for_speed and not f.fix and f.gain and f.gain.turned().is_slower}
    while chosen := next((f for f in findings if f.fix and f.name not in fastest and tries[f.name] < _TRIES), None):
        tries[chosen.name] += 1
        changes |= dict(chosen.fix or {})
        loaded = patched(loaded, chosen.fix or {})
        findings = run_checks(gather(loaded))
    return loaded, changes, findings
