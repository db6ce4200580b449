"""Train all weights of some layers, or weights whose names match a pattern, and freeze all others.

Importing this file loads no torch. A plan counts trainable weights in the model itself, which a worker builds without
memory for its weights, so that it counts exactly what the run will train.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import TuningSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.counting import Answers, deciding_fields, empty_model, fake_tensors, model_config
from tui_trainer.models.heads import Head
from tui_trainer.models.towers import tower_modules
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tuning.full import Method
from tui_trainer.tuning.lora import head_module_names

if TYPE_CHECKING:
    from torch import Tensor

LAYERS_KEY = "tuning.trainable_layers"
_BY_NUMBER = re.compile(r"(first|last)\s+(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedPart:
    """Sizes of the trainable part of a model."""

    parameters: int
    """Number of trainable weights."""
    backward_layers: int
    """Number of layers through which gradients pass: from the last layer back to the first that trains."""
    trains_output: bool
    """Whether the matrix that computes logits trains."""


def trained_names(model: Any, setting: str) -> list[str]:
    """Return the names of the parameters that train for `setting`, in the order of the model.

    The new head of a classifier is included. Raises ConfigError if a pattern matches none or all parameters.
    """
    names = list(_of_language_model(model))
    head_prefixes = tuple(f"{head}." for head in head_paths(model))
    body_names = [name for name in names if not name.startswith(head_prefixes)] if head_prefixes else names
    if number_match := _BY_NUMBER.fullmatch(setting.strip()):
        matching_names = _numbered(body_names, number_match[1], int(number_match[2]))
    else:
        try:
            pattern = re.compile(setting)
        except re.error as error:
            hint = 'write "last 2", "first 2" or a regular expression'
            raise _setting_error(f"is not a valid pattern: {error}", hint) from None
        matching_names = {name for name in body_names if pattern.search(name)}
    if not matching_names:
        examples = ", ".join([*body_names[:2], *body_names[-2:]])
        hint = f"names of weights are {one_line(examples, 300)}"
        raise _setting_error(f"matches no weight of the model: {one_line(setting, 80)}", hint)
    if len(matching_names) == len(body_names):
        message = f"matches all weights of the model: {one_line(setting, 80)}"
        raise _setting_error(message, "leave it empty to train all weights")
    return [name for name in names if name in matching_names or name.startswith(head_prefixes or ("\n",))]


def trained_part(model: Any, setting: str) -> TrainedPart:
    """Return the sizes of the part of a model that trains for `setting`. Raises ConfigError like `trained_names`."""
    chosen_names = set(trained_names(model, setting))
    weights = _of_language_model(model)
    layer_by_name = {name: _layer_number(name) for name in weights}
    list_paths = {layer[0] for layer in layer_by_name.values() if layer}
    depth = max((layer[1] for layer in layer_by_name.values() if layer), default=-1) + 1
    first_layer_index = next((index for index, layer in enumerate(layer_by_name.values()) if layer), 0)
    # Gradients of weights before the layers, such as embeddings, pass through all layers.
    names_below = [name for name in [*weights][:first_layer_index] if name in chosen_names]
    lowest = min((layer[1] for name, layer in layer_by_name.items() if name in chosen_names and layer), default=depth)
    output = model.get_output_embeddings()
    return TrainedPart(
        parameters=sum(weights[name].numel() for name in chosen_names),
        backward_layers=depth if names_below or len(list_paths) > 1 else depth - lowest,
        trains_output=output is not None and any(weights[name] is output.weight for name in chosen_names),
    )


def _of_language_model(model: Any) -> dict[str, Any]:
    """Return all parameters except those of image towers, keyed by name."""
    prefixes = tuple(f"{path}." for path in tower_modules(model))
    return {name: weight for name, weight in model.named_parameters() if not (prefixes and name.startswith(prefixes))}


def head_paths(model: Any) -> tuple[str, ...]:
    """Return the paths of the modules of a classifier's head, as in the names of parameters."""
    head_names = head_module_names(model)
    pooler_path = f"{model.base_model_prefix}.pooler"
    return tuple(pooler_path if name == "pooler" else name for name in head_names)


def _layer_number(name: str) -> tuple[str, int] | None:
    """Return (list of layers, number in it): `("model.layers", 7)` for `model.layers.7.mlp.up_proj.weight`."""
    parts = name.split(".")
    index = next((index for index, word in enumerate(parts) if word.isdigit()), None)
    return None if index is None else (".".join(parts[:index]), int(parts[index]))


def _numbered(names: Sequence[str], end: str, count: int) -> set[str]:
    layer_by_name = {name: layer for name in names if (layer := _layer_number(name))}
    list_paths = sorted({path for path, _ in layer_by_name.values()})
    if len(list_paths) != 1:
        hint = f"use a regular expression, such as {list_paths[0] if list_paths else 'layer'}"
        raise _setting_error(f"cannot count layers, because this model has {len(list_paths)} lists of layers", hint)
    numbers = sorted({number for _, number in layer_by_name.values()})
    if not 0 < count < len(numbers):
        raise _setting_error(f"selects {count} of {len(numbers)} layers", f"choose 1 to {len(numbers) - 1}")
    chosen_numbers = {*(numbers[-count:] if end == "last" else numbers[:count])}
    return {name for name, (_, number) in layer_by_name.items() if number in chosen_numbers}


def _setting_error(message: str, hint: str) -> ConfigError:
    return ConfigError(Problem(message=message, key=LAYERS_KEY, hint=hint))


class TrainedLayers(Method):
    """Method that trains some of the weights. Checkpoints have only these, the final model has all weights."""

    weights_file = "trained_layers.safetensors"
    """File name that no library loads as a whole model."""
    index_file = "trained_layers.safetensors.index.json"

    def apply(
        self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool, token_ids: Sequence[int] = ()
    ) -> Any:
        trainable_names = set(trained_names(model, tuning.trainable_layers))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trainable_names)
        return model

    def weights(self, model: Any) -> dict[str, Tensor]:
        """Return the weights that train, and the buffers that are saved with a model, keyed by name."""
        parameters = model.named_parameters(remove_duplicate=False)
        frozen_names = {name for name, parameter in parameters if not parameter.requires_grad}
        return {name: tensor for name, tensor in super().weights(model).items() if name not in frozen_names}


METHOD = TrainedLayers()
answers = Answers("count_trained", format_version=1)


def planned_part(config: Mapping[str, Any], head: Head, labels: int, setting: str) -> TrainedPart:
    """Return the sizes of the trainable part of a config.json's model. Raises ConfigError. The first call is slow."""
    question = {"config": deciding_fields(config), "head": head, "labels": labels, "wanted": setting}
    message, hint = "cannot be checked against the model", "leave it empty to train all weights"
    part = answers.ask_or_refuse(question, Problem(message=message, key=LAYERS_KEY, hint=hint))
    if "problem" in part:
        raise _setting_error(part["problem"], part["hint"])
    return TrainedPart(**part)


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """Return the fields of a `TrainedPart`, or a problem with its hint. Called in the worker, which loads torch."""
    head: Head = question["head"]
    with fake_tensors(head):
        model = empty_model(model_config(question["config"], question["labels"]), head)
        try:
            return asdict(trained_part(model, question["wanted"]))
        except ConfigError as error:
            return {"problem": error.problems[0].message, "hint": error.problems[0].hint}
