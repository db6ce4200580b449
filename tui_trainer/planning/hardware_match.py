"""Choose the hardware profile for this machine, with the reason.

A profile's [match] may hold

- `device`: "cpu" or "cuda", what training runs on; required
- `name`: a pattern such as "*A100*", or a list of them, upper and lower case alike. With "cuda" the name of the card
  that would be used, with "cpu" that of a card that is there and cannot be used
- `capability_at_least`, `capability_below`: "8.0", of the card ("cuda" only)
- `memory_gib`: [at least, at most], of the card ("cuda" only)
- `cores_at_most`: cores of the processor that training may use, such as 2

All of them must fit. Of several profiles that match, one with a name wins over those without, then one with more keys,
then the one read last, which is the user's own.
"""

import math
import re
from fnmatch import fnmatchcase
from typing import Any, TypeGuard

from tui_trainer.config.toml_files import Profile, Shapes, all_profiles, find_profile, is_range, misfits
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import Device, GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gpu_models import version_text
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import GIB

_CPU_KEYS = ("device", "name", "cores_at_most")
_CUDA_KEYS = ("device", "name", "capability_at_least", "capability_below", "memory_gib", "cores_at_most")


def choose_hardware_profile(
    requested: str, hardware: Hardware, chosen_gpu: GpuChoice = None
) -> tuple[Profile | None, str]:
    """Return the profile for `hardware_profile = "auto" | NAME | "none"` and why. The most specific match counts.

    Raises ConfigError for an unknown name or a [match] that is not understood, InputError for a wrong `chosen_gpu`.
    """
    if requested == "none":
        return None, 'hardware_profile = "none"'
    if requested != "auto":
        return find_profile(requested, "hardware"), "chosen by name"
    gpu, _ = choose_gpu(hardware, chosen_gpu)
    device, _ = training_device(hardware, gpu, chosen_gpu)
    profiles_and_reasons = [
        (profile, reason)
        for profile in all_profiles("hardware").values()
        if (reason := why_it_matches(profile, hardware, gpu, device))
    ]
    if not profiles_and_reasons:
        return None, "no hardware profile matches this machine"
    # max() takes the first of equals.
    return max(reversed(profiles_and_reasons), key=lambda pair: specificity(pair[0]))


def specificity(profile: Profile) -> tuple[bool, int]:
    """Return a sort key for profiles, which puts the profile with the most specific [match] last."""
    return "name" in profile.match, len(profile.match)


def why_it_matches(profile: Profile, hardware: Hardware, gpu: Gpu | None = None, device: Device | None = None) -> str:
    """Return why the profile's [match] fits this machine, as a clause; empty if it does not. Raises ConfigError.

    `gpu` is the GPU that would be used (None: the one with the most free memory), `device` is where training runs
    (None: the default choice).
    """
    if problems := match_problems(profile):
        raise ConfigError(problems)
    gpu = gpu or choose_gpu(hardware, None)[0]
    device = device or training_device(hardware, gpu)[0]
    if profile.match["device"] != device or hardware.usable_cores > profile.match.get("cores_at_most", math.inf):
        return ""
    if device == "cpu":
        return _why_the_cpu_matches(profile.match, hardware, gpu)
    if not gpu or not (card_reason := _why_the_card_matches(profile.match, gpu)):
        return ""
    return card_reason + (f", with {_cores(hardware)}" if "cores_at_most" in profile.match else "")


def match_problems(profile: Profile) -> list[Problem]:
    """Return a problem for each wrong key or value of a [match]."""
    match, where = profile.match, one_line(str(profile.path))
    allowed_keys = _CPU_KEYS if match.get("device") == "cpu" else _CUDA_KEYS
    hint = f"valid keys with device = {one_line(repr(match.get('device')), 20)}: " + ", ".join(allowed_keys[1:])
    problems = [
        Problem(message="is not a valid key of [match]", where=where, key=f"match.{one_line(key)}", hint=hint)
        for key in match
        if key not in allowed_keys
    ]
    problems += [
        Problem(message="is missing or wrong", where=where, key=f"match.{key}", hint=hint)
        for key, hint in misfits(match, _SHAPES, ("device",))
    ]
    lowest, capability_limit = match.get("capability_at_least"), match.get("capability_below")
    if _is_version(lowest) and _is_version(capability_limit) and _version(lowest) >= _version(capability_limit):
        hint = "it must be greater than capability_at_least"
        problems.append(Problem(message=f"is {capability_limit}", where=where, key="match.capability_below", hint=hint))
    return problems


def _is_version(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and re.fullmatch(r"\d{1,4}\.\d{1,4}", value) is not None


def _version(text: str) -> tuple[int, int]:
    major, minor = map(int, text.split("."))
    return major, minor


_SHAPES: Shapes = {
    "device": (lambda value: value in ("cpu", "cuda"), 'write device = "cpu" or device = "cuda"'),
    "capability_at_least": (_is_version, 'write it as text: capability_at_least = "8.0"'),
    "capability_below": (_is_version, 'write it as text: capability_below = "8.6"'),
    "name": (
        lambda value: all(isinstance(part, str) for part in (value if isinstance(value, list) else [value])),
        'write name = "*A100*", or a list of such patterns',
    ),
    "memory_gib": (is_range, "write memory_gib = [20, 25]"),
    "cores_at_most": (lambda value: type(value) is int and value > 0, "write cores_at_most = 2"),
}


def _why_the_cpu_matches(match: dict[str, Any], hardware: Hardware, gpu: Gpu | None) -> str:
    """Return why a [match] with `device = "cpu"` fits this machine.

    A match with a `name` fits only if a GPU of that name cannot be used. The reason then names the GPU; it is empty if
    there is no such GPU.
    """
    reason = f"trains on the CPU ({one_line(hardware.cpu_name)}, {_cores(hardware)})"
    if "name" not in match:
        return reason
    unusable = [card.name for card in ([gpu] if gpu else hardware.gpus) if _named(match["name"], card.name)]
    return f"{reason}, because {one_line(unusable[0])} cannot be used" if unusable and unusable[0] else ""


def _cores(hardware: Hardware) -> str:
    return f"{hardware.usable_cores} core" + ("" if hardware.usable_cores == 1 else "s")


def _why_the_card_matches(match: dict[str, Any], gpu: Gpu) -> str:
    """Return why a [match] fits this GPU: its name and the figures of the match. Empty if a figure differs."""
    clauses = [f"GPU {gpu.index}" if gpu.name is None else one_line(gpu.name)]
    if "name" in match and not _named(match["name"], gpu.name):
        return ""
    if "capability_at_least" in match or "capability_below" in match:
        lowest, capability_limit = match.get("capability_at_least", "0.0"), match.get("capability_below", "9999.9999")
        if gpu.capability is None or not _version(lowest) <= gpu.capability < _version(capability_limit):
            return ""
        clauses.append(f"compute capability {version_text(gpu.capability)}")
    if "memory_gib" in match:
        lowest_gib, highest_gib = match["memory_gib"]
        if gpu.memory_bytes is None or not lowest_gib <= gpu.memory_bytes / GIB <= highest_gib:
            return ""
        clauses.append(f"{gpu.memory_bytes / GIB:.1f} GiB")
    return "trains on " + ", ".join(clauses)


def _named(patterns: str | list[str], name: str | None) -> bool:
    pattern_list = [patterns] if isinstance(patterns, str) else patterns
    return name is not None and any(fnmatchcase(name.lower(), pattern.lower()) for pattern in pattern_list)
