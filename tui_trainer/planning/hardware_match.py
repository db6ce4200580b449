"""Which hardware profile suits this machine, and why."""

from __future__ import annotations

from tui_trainer.config.profiles import Profile, all_profiles, find_profile
from tui_trainer.hardware.facts import Hardware


def choose_hardware_profile(wish: str, hardware: Hardware) -> tuple[Profile | None, str]:
    """The profile for `hardware_profile = "auto" | NAME | "none"`, and why. Raises ConfigError for an unknown name."""
    if wish == "none":
        return None, 'hardware_profile = "none"'
    if wish != "auto":
        return find_profile(wish, "hardware"), "chosen by name"
    for profile in all_profiles("hardware").values():
        if reason := why_it_matches(profile, hardware):
            return profile, reason
    return None, "no hardware profile matches this machine"


def why_it_matches(profile: Profile, hardware: Hardware) -> str:
    """One sentence when the profile's [match] fits this machine, else empty."""
    if profile.match.get("device") == "cpu":
        return f"trains on the CPU ({hardware.cpu_name}, {hardware.usable_cores} cores)"
    return ""
