"""Rotary positions that reach further than those of the model's config.json, as `model.rope_scaling` says.

What becomes of config.json is worked out here without torch, so that the plan, the dry run and the loaded model have
the same positions; whether a model has any that can be changed is asked of a process that has built it.
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

KEY = "model.rope_scaling"
TYPE_KEY = f"{KEY}.rope_type"
PARAMETERS, POSITIONS = "rope_parameters", "max_position_embeddings"
_NONE = "default"
_ORIGINAL = "original_max_position_embeddings"
# What each type must have and what it may have. Source: `_validate_*_rope_parameters` in modeling_rope_utils.py of
# transformers 5.24; longrope works without a factor there, where config.json tells how long rows have become.
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
# Of a model's own parameters, what stays with another type.
_KEPT = ("rope_theta", "partial_rotary_factor")
answers = Answers("rope_types", format_version=1)


def is_asked_for(section: RopeScalingSection) -> bool:
    return section.rope_type != _NONE


def scaled_config(config: Mapping[str, Any], section: RopeScalingSection) -> dict[str, Any]:
    """config.json with the positions that the settings ask for, and as many of them as they reach to."""
    asked = _asked(section)
    own = own_parameters(config)
    limit = ConfigFields(config).optional(POSITIONS) or 0
    if _ORIGINAL in FIELDS[section.rope_type][1]:
        # What transformers would take, before the positions of the model are raised.
        asked.setdefault(_ORIGINAL, config.get(_ORIGINAL) or own.get(_ORIGINAL) or limit)
    kept = {name: own[name] for name in _KEPT if name in own}
    changed = {name: value for name, value in config.items() if name != "rope_scaling"}
    # With the model's own factor, its positions were raised before.
    before = limit / own.get("factor", 1) if own["rope_type"] == section.rope_type else limit
    changed[_positions_name(config)] = max(limit, round(section.factor * asked.get(_ORIGINAL, before)))
    return {**changed, PARAMETERS: {**kept, **asked}}


def changed_positions(made: Any, config: Mapping[str, Any]) -> None:
    """Gives a loaded config of transformers the positions of another config.json of the same family."""
    told = config.get(PARAMETERS)
    if not isinstance(told, Mapping) or not getattr(made, PARAMETERS, None):
        return
    own = {name: value for name, value in made.rope_parameters.items() if name in _KEPT}
    made.rope_parameters = {**own, **told}
    if limit := ConfigFields(config).optional(POSITIONS):
        setattr(made, _positions_name(config), limit)
    made.standardize_rope_params()


def rope_problems(stored: Mapping[str, Any], config: Config, head: Head) -> list[Problem]:
    """Everything that keeps the positions of a model from being changed as asked. `stored` is its config.json."""
    section = config.model.rope_scaling
    if found := [*_field_problems(section)]:
        return found
    if not is_asked_for(section):
        return []
    family = one_line(str(stored.get("model_type")), 80)

    def about(message: str, hint: str = f"remove the table [{KEY}]") -> list[Problem]:
        return [Problem(message=message, key=TYPE_KEY, hint=hint)]

    if config.is_from_scratch:
        return about("a model that is trained from scratch learns all positions of data.max_length without scaling")
    if has_towers(family):
        return about(f"the positions of {family} also count images, and scaling them has not been tested")
    if not ConfigFields(stored).optional(POSITIONS):
        return about(f"config.json does not say how many positions this {family} model was made for")
    own, asked = str(own_parameters(stored).get("rope_type") or _NONE), section.rope_type
    if own not in (_NONE, asked):
        message = f"is {asked}, but the model was trained with the type {one_line(own, 40)}"
        return about(message, f"set it to {one_line(own, 40)}, with a larger factor, or remove the table [{KEY}]")
    try:
        types = answers.ask({"config": deciding_fields(scaled_config(stored, section)), "head": head})
    except WorkerFailed as failure:
        return about(f"the {family} model cannot be built with these positions: {failure.reason or failure}")
    if not types:
        return about(f"this {family} model has no rotary positions that transformers can scale")
    if types != [asked]:
        return about(f"the layers of this {family} model use their own position types ({', '.join(types)})")
    return []


def answer(question: dict[str, Any], _: Any) -> list[str]:
    """In the worker: the types of positions in the model of a config.json. Raises ValueError for factors that do not
    fit a head, and what transformers raises for others."""
    head: Head = question["head"]
    with fake_tensors(head):
        model = empty_model(model_config(question["config"]), head)
        found = [module for module in model.modules() if hasattr(module, "rope_type")]
        for module in found:
            _refuse_other_pairs(module)
    return sorted({str(module.rope_type) for module in found})


def _refuse_other_pairs(module: Any) -> None:
    """One factor would count for all pairs of dimensions."""
    parameters = getattr(module.config, PARAMETERS, None) or {}
    for name in ("short_factor", "long_factor"):
        factors, pairs = parameters.get(name), module.inv_freq.shape[-1]
        if factors is not None and len(factors) != pairs:
            raise ValueError(f"{name} has {len(factors)} factors, but a head has {pairs} pairs of dimensions")


def _field_problems(section: RopeScalingSection) -> list[Problem]:
    """Fields that a type needs, and those that it does not read."""
    asked, kind = _asked(section), section.rope_type
    if kind == _NONE:
        return [
            Problem(message=f"has no effect with {TYPE_KEY} = {_NONE}", key=f"{KEY}.{name}", hint=f"set {TYPE_KEY}")
            for name in asked
            if name != "rope_type"
        ]
    needs, takes = FIELDS[kind]
    found = [
        Problem(message=f"is required by {kind}", key=f"{KEY}.{name}", hint=f"set it, or change {TYPE_KEY}")
        for name in needs
        if name not in asked
    ]
    if 0 < section.factor < 1:
        found.append(
            Problem(message="is below 1, but scaling makes the context longer", key=f"{KEY}.factor", hint="set it to 2")
        )
    readers = {name: [one for one, fields in FIELDS.items() if name in (*fields[0], *fields[1])] for name in asked}
    found += [
        Problem(message=f"is not used by {kind}", key=f"{KEY}.{name}", hint=f"remove it, or use {' or '.join(types)}")
        for name, types in readers.items()
        if name not in (*_EVERY_TYPE, *needs, *takes)
    ]
    return found


def _asked(section: RopeScalingSection) -> dict[str, Any]:
    """Return the fields that are set, by the names of transformers. Texts that are no numbers are left out."""
    fields = section.model_dump(exclude_defaults=True)
    for name in ("short_factor", "long_factor"):
        if text := fields.pop(name, ""):
            with suppress(ValueError):
                fields[name] = [float(word) for word in names_in(text)]
    return fields


def own_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a config.json, as transformers 5 writes them or in their older form."""
    told = config.get(PARAMETERS) or config.get("rope_scaling")
    own = dict(told) if isinstance(told, Mapping) else {}
    own.setdefault("rope_type", own.get("type") or _NONE)
    for name in _KEPT:
        if config.get(name) is not None:
            own.setdefault(name, config[name])
    return own


def _positions_name(config: Mapping[str, Any]) -> str:
    """How a config.json calls the number of positions."""
    return next((name for name in ALIASES[POSITIONS] if config.get(name) is not None), POSITIONS)
