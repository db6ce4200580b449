"""Extend the rotary positions of a model beyond those of its config.json (`model.rope_scaling`).

The new config.json is computed without torch, so that the plan, the dry run and the loaded model have the same
positions. A worker that builds the model answers whether its positions can be scaled.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config, RopeScalingSection
from tui_trainer.errors import Problem
from tui_trainer.models.config_json import ALIASES, ConfigFields
from tui_trainer.models.counting import Answers, deciding_fields, empty_model, fake_tensors, model_config
from tui_trainer.models.heads import Head
from tui_trainer.models.towers import has_towers
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.asking import WorkerFailed

ROPE_SCALING_KEY = "model.rope_scaling"
TYPE_KEY = f"{ROPE_SCALING_KEY}.rope_type"
ROPE_PARAMETERS, POSITIONS = "rope_parameters", "max_position_embeddings"
_UNSCALED_TYPE = "default"
_ORIGINAL = "original_max_position_embeddings"
# The required and the optional fields of each type. Source: `_validate_*_rope_parameters` in modeling_rope_utils.py of
# transformers 5.24. There, longrope needs no factor if config.json has the extended length.
FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "yarn": (
        ("factor",), (_ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (("factor", "short_factor", "long_factor"), (_ORIGINAL, "attention_factor")),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), (_ORIGINAL,)),
    "proportional": (("factor",), ()),
}  # fmt: skip
_EVERY_TYPE = ("rope_type", "rope_theta")
# The model's own parameters that remain with another type.
_KEPT = ("rope_theta", "partial_rotary_factor")
answers = Answers("rope_types", format_version=1)


def is_scaling_requested(section: RopeScalingSection) -> bool:
    return section.rope_type != _UNSCALED_TYPE


def scaled_config(config: Mapping[str, Any], section: RopeScalingSection) -> dict[str, Any]:
    """Return a copy of config.json with the requested rotary scaling and the number of positions that it reaches."""
    requested = _requested_fields(section)
    stored = rotary_parameters(config)
    limit = ConfigFields(config).optional(POSITIONS) or 0
    if _ORIGINAL in FIELDS[section.rope_type][1]:
        # The default of transformers, before the number of positions is raised.
        requested.setdefault(_ORIGINAL, config.get(_ORIGINAL) or stored.get(_ORIGINAL) or limit)
    kept_parameters = {name: stored[name] for name in _KEPT if name in stored}
    fields = {name: value for name, value in config.items() if name != "rope_scaling"}
    # A factor of the model itself has already raised its positions.
    unscaled_limit = limit / stored.get("factor", 1) if stored["rope_type"] == section.rope_type else limit
    fields[_positions_name(config)] = max(limit, round(section.factor * requested.get(_ORIGINAL, unscaled_limit)))
    return {**fields, ROPE_PARAMETERS: {**kept_parameters, **requested}}


def set_positions(loaded_config: Any, config: Mapping[str, Any]) -> None:
    """Set the positions of a loaded transformers config to those of another config.json of the same family."""
    parameters = config.get(ROPE_PARAMETERS)
    if not isinstance(parameters, Mapping) or not getattr(loaded_config, ROPE_PARAMETERS, None):
        return
    kept_parameters = {name: value for name, value in loaded_config.rope_parameters.items() if name in _KEPT}
    loaded_config.rope_parameters = {**kept_parameters, **parameters}
    if max_positions := ConfigFields(config).optional(POSITIONS):
        setattr(loaded_config, _positions_name(config), max_positions)
    loaded_config.standardize_rope_params()


def rope_problems(stored_config: Mapping[str, Any], config: Config, head: Head) -> list[Problem]:
    """Return what prevents the positions of a model from being scaled as requested. `stored_config` is config.json."""
    section = config.model.rope_scaling
    if problems := _field_problems(section):
        return problems
    if not is_scaling_requested(section):
        return []
    family = one_line(str(stored_config.get("model_type")), 80)

    def about(message: str, hint: str = f"remove the table [{ROPE_SCALING_KEY}]") -> list[Problem]:
        return [Problem(message=message, key=TYPE_KEY, hint=hint)]

    if config.is_from_scratch:
        return about("a model that is trained from scratch learns all positions of data.max_length without scaling")
    if has_towers(family):
        return about(f"the positions of {family} also count images, and scaling them has not been tested")
    if not ConfigFields(stored_config).optional(POSITIONS):
        return about(f"config.json does not state how many positions this {family} model was made for")
    stored_type = str(rotary_parameters(stored_config).get("rope_type") or _UNSCALED_TYPE)
    if stored_type not in (_UNSCALED_TYPE, section.rope_type):
        shown_type = one_line(stored_type, 40)
        message = f"is {section.rope_type}, but the model was trained with the type {shown_type}"
        hint = f"set it to {shown_type}, with a larger factor, or remove the table [{ROPE_SCALING_KEY}]"
        return about(message, hint)
    try:
        built_types = answers.ask({"config": deciding_fields(scaled_config(stored_config, section)), "head": head})
    except WorkerFailed as failure:
        return about(f"the {family} model cannot be built with this RoPE scaling: {failure.reason or failure}")
    if not built_types:
        return about(f"this {family} model has no rotary positions that transformers can scale")
    if built_types != [section.rope_type]:
        return about(f"the layers of this {family} model have other position types ({', '.join(built_types)})")
    return []


def answer(question: dict[str, Any], _: Any) -> list[str]:
    """Return, in the worker, the position types of the model in a config.json. Raise ValueError if a list of factors
    does not fit a head. transformers raises other errors."""
    head: Head = question["head"]
    with fake_tensors(head):
        model = empty_model(model_config(question["config"]), head)
        modules = [module for module in model.modules() if hasattr(module, "rope_type")]
        for module in modules:
            _check_factor_counts(module)
    return sorted({str(module.rope_type) for module in modules})


def _check_factor_counts(module: Any) -> None:
    """Raise ValueError unless there is one factor for each pair of dimensions; torch would broadcast a single one."""
    parameters = getattr(module.config, ROPE_PARAMETERS, None) or {}
    for name in ("short_factor", "long_factor"):
        factors, pair_count = parameters.get(name), module.inv_freq.shape[-1]
        if factors is not None and len(factors) != pair_count:
            raise ValueError(f"{name} has {len(factors)} factors, but a head has {pair_count} pairs of dimensions")


def _field_problems(section: RopeScalingSection) -> list[Problem]:
    """Return the required fields that are missing, and the fields that the type does not use."""
    requested_fields, rope_type = _requested_fields(section), section.rope_type
    if rope_type == _UNSCALED_TYPE:
        message, hint = f"has no effect with {TYPE_KEY} = {_UNSCALED_TYPE}", f"set {TYPE_KEY}"
        keys = [f"{ROPE_SCALING_KEY}.{name}" for name in requested_fields if name != "rope_type"]
        return [Problem(message=message, key=key, hint=hint) for key in keys]
    required, optional = FIELDS[rope_type]
    message, hint = f"is required by {rope_type}", f"set it, or change {TYPE_KEY}"
    keys = [f"{ROPE_SCALING_KEY}.{name}" for name in required if name not in requested_fields]
    problems = [Problem(message=message, key=key, hint=hint) for key in keys]
    if 0 < section.factor < 1:
        message = "is below 1, which would make the context shorter"
        problems.append(Problem(message=message, key=f"{ROPE_SCALING_KEY}.factor", hint="set it to 2"))
    for name in requested_fields:
        if name not in (*_EVERY_TYPE, *required, *optional):
            other_types = " or ".join(other for other, fields in FIELDS.items() if name in (*fields[0], *fields[1]))
            message, hint = f"is not used by {rope_type}", f"remove it, or use {other_types}"
            problems.append(Problem(message=message, key=f"{ROPE_SCALING_KEY}.{name}", hint=hint))
    return problems


def _requested_fields(section: RopeScalingSection) -> dict[str, Any]:
    """Return the fields that are set, by the names of transformers. Lists with text that is no number are left out."""
    fields = section.model_dump(exclude_defaults=True)
    for name in ("short_factor", "long_factor"):
        if text := fields.pop(name, ""):
            with suppress(ValueError):
                fields[name] = [float(word) for word in names_in(text)]
    return fields


def rotary_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of a config.json, which may have the format of transformers 5 or an older one."""
    stored_parameters = config.get(ROPE_PARAMETERS) or config.get("rope_scaling")
    parameters = dict(stored_parameters) if isinstance(stored_parameters, Mapping) else {}
    parameters.setdefault("rope_type", parameters.get("type") or _UNSCALED_TYPE)
    for name in _KEPT:
        if config.get(name) is not None:
            parameters.setdefault(name, config[name])
    return parameters


def _positions_name(config: Mapping[str, Any]) -> str:
    """Return the name that a config.json uses for the number of positions."""
    return next((name for name in ALIASES[POSITIONS] if config.get(name) is not None), POSITIONS)
