"""Which hardware profile suits this machine, and why.

A profile's [match] may hold `device` ("cpu" or "cuda"; required), `capability_at_least` ("8.0"), `name` (a pattern such
as "*A100*", or a list of them, upper and lower case alike) and `memory_gib` ([at least, at most]). All must fit the
card that would be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from tui_trainer.config.profiles import Profile, all_profiles, find_profile
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import Device, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.safe_text import one_line
from tui_trainer.units import GIB

_GPU_KEYS = ("capability_at_least", "name", "memory_gib")


def choose_hardware_profile(wish: str, hardware: Hardware, chosen_gpu: int | None = None) -> tuple[Profile | None, str]:
    """The profile for `hardware_profile = "auto" | NAME | "none"`, and why; of several that match, the most specific.

    Raises ConfigError for an unknown name or a [match] that is not understood, InputError for a wrong `chosen_gpu`.
    """
    if wish == "none":
        return None, 'hardware_profile = "none"'
    if wish != "auto":
        return find_profile(wish, "hardware"), "chosen by name"
    gpu, _ = choose_gpu(hardware.gpus, chosen_gpu)
    matching = [
        (profile, reason)
        for profile in all_profiles("hardware").values()
        if (reason := why_it_matches(profile, hardware, gpu))
    ]
    if not matching:
        return None, "no hardware profile matches this machine"
    return max(matching, key=lambda pair: len(pair[0].match))


def why_it_matches(profile: Profile, hardware: Hardware, gpu: Gpu | None = None, device: Device | None = None) -> str:
    """One sentence when the profile's [match] fits this machine, else empty. Raises ConfigError.

    `gpu` is the card that would be used (None: the freest), `device` what training runs on (None: as it is decided).
    """
    if problems := match_problems(profile):
        raise ConfigError(problems)
    gpu = gpu or choose_gpu(hardware.gpus, None)[0]
    device = device or training_device(hardware, gpu)[0]
    if profile.match["device"] != device:
        return ""
    if device == "cpu":
        cores = f"{hardware.usable_cores} core" + ("" if hardware.usable_cores == 1 else "s")
        return f"trains on the CPU ({one_line(hardware.cpu_name)}, {cores})"
    return _why_the_card_matches(profile.match, gpu) if gpu else ""


def match_problems(profile: Profile) -> list[Problem]:
    """What is wrong with a [match]: it is not guessed at, and not ignored."""
    match, where = profile.match, one_line(str(profile.path))
    allowed = ("device", *_GPU_KEYS) if match.get("device") == "cuda" else ("device",)
    problems = [
        Problem(message="is not known in [match]", where=where, key=f"match.{one_line(key)}", hint=_allowed(match))
        for key in match
        if key not in allowed
    ]
    for key, (is_right, hint) in _SHAPES.items():
        if (key in match or key == "device") and not is_right(match.get(key)):
            problems.append(Problem(message="is missing or wrong", where=where, key=f"match.{key}", hint=hint))
    return problems


def _allowed(match: dict[str, Any]) -> str:
    if match.get("device") == "cpu":
        return 'device = "cpu" takes nothing beside it'
    return "known: device, " + ", ".join(_GPU_KEYS)


def _is_version(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+\.\d+", value) is not None


def _is_patterns(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _is_range(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(type(part) in (int, float) for part in value) and value[0] <= value[1]


_SHAPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "device": (lambda value: value in ("cpu", "cuda"), 'write device = "cpu" or device = "cuda"'),
    "capability_at_least": (_is_version, 'write it as text: capability_at_least = "8.0"'),
    "name": (_is_patterns, 'write name = "*A100*", or a list of such patterns'),
    "memory_gib": (_is_range, "write memory_gib = [20, 25]"),
}


def _why_the_card_matches(match: dict[str, Any], gpu: Gpu) -> str:
    """The card's name and the figures that were asked for; empty when one does not fit or is not reported."""
    parts = [f"GPU {gpu.index}" if gpu.name is None else one_line(gpu.name)]
    if "name" in match and not _named(match["name"], gpu.name):
        return ""
    if "capability_at_least" in match:
        least = tuple(map(int, match["capability_at_least"].split(".")))
        if gpu.capability is None or gpu.capability < least:
            return ""
        parts.append(f"compute capability {gpu.capability[0]}.{gpu.capability[1]}")
    if "memory_gib" in match:
        low, high = match["memory_gib"]
        if gpu.memory_bytes is None or not low <= gpu.memory_bytes / GIB <= high:
            return ""
        parts.append(f"{gpu.memory_bytes / GIB:.1f} GiB")
    return "trains on " + ", ".join(parts)


def _named(patterns: str | list[str], name: str | None) -> bool:
    wanted = [patterns] if isinstance(patterns, str) else patterns
    return name is not None and any(fnmatchcase(name.lower(), pattern.lower()) for pattern in wanted)
