"""Checkpoints of a language model with towers for images, of which the language model is trained on text.

A tower makes vectors of images, and a projector makes them as wide as those of tokens. Text goes through neither: both
are loaded as transformers loads them, stay frozen, and are saved with the rest, so that what is left behind takes
images as before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import Problem

if TYPE_CHECKING:
    from tui_trainer.config.sections import Config

# By `model_type`, of config.json as a whole. Each is trained, stopped, resumed and merged by tests with a tiny one.
TRAINED_ON_TEXT = ("gemma3", "mistral3", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
# `Llama4ForConditionalGeneration.forward` of transformers 5.24 asks a text model's output for `image_outputs`.
NOT_TRAINED = {"llama4": "every forward pass of this model class fails in transformers 5.24"}
"""Why not, of others that people ask for."""
LANGUAGE_MODEL = "language_model"
"""What the module is called that reads tokens, in the classes of all of them."""
AUTO_CLASS = "AutoModelForImageTextToText"
"""The class of transformers that loads them: for some of them its class for causal models does as well."""
# Layers that guess several tokens at once, which transformers leaves out. Source: `_keys_to_ignore_on_load_unexpected`
# in modeling_qwen3_5.py.
_NOT_LOADED = "mtp"
# What a processor is made of, beside the tokenizer: each model has some of them.
PROCESSOR_FILES = (
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "chat_template.json",
)  # fmt: skip


def has_towers(model_type: object) -> bool:
    """Whether models of this kind have towers, and are trained on text."""
    return model_type in TRAINED_ON_TEXT


def is_of_several_kinds(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a model that reads other things beside text."""
    return "text_config" in config or "vision_config" in config or has_towers(config.get("model_type"))


def language_config(config: Any) -> Any:
    """The part of a config of transformers that describes the language model; all of it where there is nothing else."""
    return config.get_text_config() if has_towers(config.model_type) else config


def language_model(model: Any) -> tuple[str, Any]:
    """(its path, the module) inside of a model of transformers, or of an adapter on one; ("", model) where the model is
    nothing else."""
    if not has_towers(getattr(getattr(model, "config", None), "model_type", None)):
        return "", model
    return next((path, part) for path, part in model.named_modules() if path.split(".")[-1] == LANGUAGE_MODEL)


def tower_modules(model: Any) -> dict[str, Any]:
    """The outermost modules beside the language model and its head, by path: towers and projectors; none where there
    are no towers."""
    inside, language = language_model(model)
    if not inside:
        return {}
    found: dict[str, Any] = {}
    output = model.get_output_embeddings()
    for path, part in model.named_modules():
        around = part is model or any(each is language for each in part.modules())
        beneath = f"{path}.".startswith((f"{inside}.", *(f"{outer}." for outer in found)))
        if not around and not beneath and part is not output and any(True for _ in part.parameters()):
            found[path] = part
    return found


def freeze_towers(model: Any) -> None:
    """What is no part of the language model trains no more."""
    for part in tower_modules(model).values():
        part.requires_grad_(False)


def place(model: Any, device: Any, *, towers_on_host: bool) -> None:
    """Moves a model to a device, and its towers to the host where that is asked. They come last among its modules from
    then on: transformers takes a model to be where its first weight is."""
    kept = tower_modules(model) if towers_on_host else {}
    for path in kept:
        outer, _, name = path.rpartition(".")
        delattr(model.get_submodule(outer), name)
    model.to(device)
    for path, tower in kept.items():
        outer, _, name = path.rpartition(".")
        model.get_submodule(outer).add_module(name, tower.to("cpu"))


def mask_by_positions(model: Any) -> None:
    """Lets Qwen 2.5-VL see where packed documents begin: of positions of text it makes those of time, height and width,
    and its mask only of a fourth kind in front of them. Source: `Qwen2_5_VLTextModel.forward` of transformers 5.24."""

    def four_kinds(
        _module: Any, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positions_BT = given.get("position_ids")
        if positions_BT is not None and positions_BT.ndim == 2:
            given["position_ids"] = positions_BT.expand(4, -1, -1)
        return args, given

    if model.config.model_type == "qwen2_5_vl":
        language_model(model)[1].register_forward_pre_hook(four_kinds, with_kwargs=True)


def is_of_tower(tensor_name: str, towers: Mapping[str, int]) -> bool:
    """Whether a stored tensor is part of one of `towers`: files name these as modules do, with more or less in front
    (`visual.blocks.0`, `model.visual.blocks.0`)."""
    return not towers.keys().isdisjoint(tensor_name.split("."))


def is_of_language_model(tensor_name: str, towers: Mapping[str, int]) -> bool:
    """Whether a stored tensor is loaded, and part of none of `towers`."""
    return not is_of_tower(tensor_name, towers) and not is_of_tower(tensor_name, {_NOT_LOADED: 0})


def keep_processor(base: Path, folder: Path) -> None:
    """Copies what the model in `base` makes inputs of images with, where it has towers: to the byte, and so without
    the libraries that it takes to load them. Raises OSError."""
    for name in PROCESSOR_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def refusals(config: Config, model_type: str) -> Iterator[Problem]:
    """Settings that a model with towers, or the text model that is made of one, was not tried with; and settings of
    towers where there are none."""
    # Lists of tasks and heads are made without it.
    from tui_trainer.config.editing import refused_values, toml_text

    settings: dict[str, tuple[object, tuple[object, ...]]] = {}
    why = f"has not been tested with {model_type}, a model with vision towers"
    if config.model.text_only:
        why = "does not work with model.text_only = true: the text model gets a folder of its own only after training"
        settings = {
            "model.init": (config.model.init, ("pretrained",)),
            "tuning.method": (config.tuning.method, ("full",)),
            "model.provider": (config.model.provider, ("transformers",)),
            "model.add_tokens": (config.model.add_tokens, ("",)),
            "model.rope_scaling.rope_type": (config.model.rope_scaling.rope_type, ("default",)),
        }
    if not has_towers(model_type) and config.model.towers != "host":
        message = f"is {toml_text(config.model.towers)}, but {model_type or 'the model'} has no vision towers"
        yield Problem(message=message, key="model.towers", hint="remove it")
    if has_towers(model_type):
        settings = {
            "model.init": (config.model.init, ("pretrained",)),
            "model.provider": (config.model.provider, ("transformers",)),
            "distributed.strategy": (config.distributed.strategy, ("auto", "ddp", "fsdp", "hsdp")),
        }
    yield from refused_values(settings, why)
