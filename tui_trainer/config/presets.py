"""What a recipe and a hardware profile give together, before the user's own values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tui_trainer.config.load import (
    HardwareChoice,
    Layer,
    LoadedConfig,
    Origin,
    all_settings,
    flatten,
    profile_layer,
    validate,
    value_of,
)
from tui_trainer.config.profiles import Profile, find_profile
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError, Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Presets:
    """The two profiles in force and the layer behind each value that they set. `recipe_name` is the one asked for."""

    recipe_name: str = ""
    recipe: Profile | None = None
    hardware_profile: Profile | None = None
    hardware_reason: str = ""
    layers: Mapping[str, Layer] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def value(self, key: str) -> Any:
        """What the profiles and the defaults give. `profile` itself is the recipe that was asked for."""
        return self.layers[key].values[key] if key in self.layers else all_settings()[key].default

    def under(self, config: Config, layers: Mapping[str, Layer]) -> LoadedConfig:
        """A whole config that was made on these profiles, with the layers behind its values."""
        return LoadedConfig(
            config=config,
            layers=dict(layers),
            recipe=self.recipe,
            hardware_profile=self.hardware_profile,
            hardware_reason=self.hardware_reason,
        )


def find_presets(recipe_name: str, own: Mapping[str, Any], choose_hardware: HardwareChoice) -> Presets:
    """The profiles for a recipe and for the user's own choice of hardware. What cannot be found becomes a problem."""
    problems: list[Problem] = []
    recipe = hardware = None
    reason = ""
    layers: dict[str, Layer] = {}
    try:
        recipe = find_profile(recipe_name, "recipes") if recipe_name else None
    except ConfigError as error:
        problems += [replace(problem, key="profile") for problem in error.problems]
    if recipe:
        layer = profile_layer(recipe, Origin.RECIPE, problems)
        layers |= dict.fromkeys(layer.values, layer)
    try:
        hardware, reason = choose_hardware(_requested_hardware(own, layers))
    except ConfigError as error:
        problems += [replace(problem, key="hardware_profile") for problem in error.problems]
    if hardware:
        layer = profile_layer(hardware, Origin.HARDWARE, problems)
        layers |= dict.fromkeys(layer.values, layer)
    return Presets(
        recipe_name=recipe_name,
        recipe=recipe,
        hardware_profile=hardware,
        hardware_reason=reason,
        layers=layers,
        problems=tuple(problems),
    )


def fitting(key: str, value: Any, choose_hardware: HardwareChoice, problems: list[Problem]) -> Any:
    """The value as its setting keeps it (3 as 3.0). What does not fit, or names no profile, is added to `problems`."""
    if key not in all_settings():
        flatten({key: value}, "", problems)
        return value
    config = validate({key: value}, {}, problems)
    if config is None:
        return value
    if key == "profile":
        problems += find_presets(value, {}, choose_hardware).problems
    elif key == "hardware_profile":
        problems += find_presets("", {key: value}, choose_hardware).problems
    return value_of(config, key)


def _requested_hardware(own: Mapping[str, Any], layers: Mapping[str, Layer]) -> str:
    key = "hardware_profile"
    candidates = [own.get(key), layers[key].values[key] if key in layers else None, all_settings()[key].default]
    return next(requested for requested in candidates if isinstance(requested, str))
