"""Multimodal checkpoints whose language model is trained on text.

A vision tower turns images into vectors, and a projector gives these the width of token embeddings. Text uses neither.
Both are loaded as transformers loads them, stay frozen, and are saved with the rest, so that the trained model still
accepts images.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import Problem

if TYPE_CHECKING:
    from tui_trainer.config.sections import Config

# Values of `model_type` of the whole checkpoint. Tests train, stop, resume and merge a tiny model of each type.
TEXT_TRAINED_TYPES = ("gemma3", "mistral3", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
# `Llama4ForConditionalGeneration.forward` of transformers 5.24 asks a text model's output for `image_outputs`.
NOT_TRAINED = {"llama4": "every forward pass of this model class fails in transformers 5.24"}
"""Reason why a popular model type is not supported."""
LANGUAGE_MODEL = "language_model"
"""Name of the language model's module in all supported classes."""
AUTO_CLASS = "AutoModelForImageTextToText"
"""The class of transformers that loads all supported types."""
# Layers for multi-token prediction, which transformers does not load. Source: `_keys_to_ignore_on_load_unexpected` in
# modeling_qwen3_5.py.
_NOT_LOADED = "mtp"
# Files of a processor other than the tokenizer's. Each model has some of them.
PROCESSOR_FILES = (
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json", "chat_template.json",
)  # fmt: skip


def has_towers(model_type: object) -> bool:
    """Return whether models of this type have vision towers and are trained on text."""
    return model_type in TEXT_TRAINED_TYPES


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes a model with inputs other than text."""
    return "text_config" in config or "vision_config" in config or has_towers(config.get("model_type"))


def language_config(config: Any) -> Any:
    """Return the part of a transformers config for the language model, or all of it for a text model."""
    return config.get_text_config() if has_towers(config.model_type) else config


def language_model(model: Any) -> tuple[str, Any]:
    """Return (path, module) of the language model in a model or adapter; ("", model) for a text model."""
    if not has_towers(getattr(getattr(model, "config", None), "model_type", None)):
        return "", model
    return next((path, part) for path, part in model.named_modules() if path.split(".")[-1] == LANGUAGE_MODEL)


def tower_modules(model: Any) -> dict[str, Any]:
    """Return the towers and projectors by path: the outermost modules outside of the language model and its head."""
    language_path, language_module = language_model(model)
    if not language_path:
        return {}
    towers: dict[str, Any] = {}
    head = model.get_output_embeddings()
    for path, part in model.named_modules():
        contains_language = part is model or any(module is language_module for module in part.modules())
        is_nested = f"{path}.".startswith((f"{language_path}.", *(f"{outer}." for outer in towers)))
        if not contains_language and not is_nested and part is not head and any(True for _ in part.parameters()):
            towers[path] = part
    return towers


def freeze_towers(model: Any) -> None:
    """Exclude all parts other than the language model from training."""
    for part in tower_modules(model).values():
        part.requires_grad_(False)


def move_to_device(model: Any, device: Any, *, towers_on_host: bool) -> None:
    """Move a model to a device, and with `towers_on_host` its towers to the CPU. The towers become the last modules,
    because transformers takes the device of the first weight for that of the model."""
    host_towers = tower_modules(model) if towers_on_host else {}
    for path in host_towers:
        parent_path, _, name = path.rpartition(".")
        delattr(model.get_submodule(parent_path), name)
    model.to(device)
    for path, tower in host_towers.items():
        parent_path, _, name = path.rpartition(".")
        model.get_submodule(parent_path).add_module(name, tower.to("cpu"))


def mask_by_positions(model: Any) -> None:
    """Make Qwen 2.5-VL separate packed documents in its mask, which reads only the first of four kinds of positions:
    positions [B, T] are repeated for all four. Source: `Qwen2_5_VLTextModel.forward` of transformers 5.24."""

    def repeat_positions(
        _module: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positions_BT = options.get("position_ids")
        if positions_BT is not None and positions_BT.ndim == 2:
            options["position_ids"] = positions_BT.expand(4, -1, -1)
        return args, options

    if model.config.model_type == "qwen2_5_vl":
        language_model(model)[1].register_forward_pre_hook(repeat_positions, with_kwargs=True)


def is_of_tower(tensor_name: str, towers: Mapping[str, int]) -> bool:
    """Return whether a stored tensor belongs to one of `towers`. Files use the names of the modules with various
    prefixes (`visual.blocks.0`, `model.visual.blocks.0`)."""
    return not towers.keys().isdisjoint(tensor_name.split("."))


def is_of_language_model(tensor_name: str, towers: Mapping[str, int]) -> bool:
    """Return whether a stored tensor is loaded and belongs to none of `towers`."""
    return not is_of_tower(tensor_name, towers) and not is_of_tower(tensor_name, {_NOT_LOADED: 0})


def copy_processor_files(base: Path, folder: Path) -> None:
    """Copy the files of the image processor in `base`, if it has any, without loading them. Raise OSError."""
    for name in PROCESSOR_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def tower_problems(config: Config, model_type: str) -> Iterator[Problem]:
    """Yield settings that were not tested with multimodal models, and settings of towers for a model without them."""
    # `heads.py` imports this module and should not load the editing of settings.
    from tui_trainer.config.editing import refused_values, toml_text

    allowed_settings: dict[str, tuple[object, tuple[object, ...]]] = {}
    fault = f"has not been tested with {model_type}, a model with vision towers"
    if config.model.text_only:
        fault = "does not work with model.text_only = true, because the text model is saved only after training"
        allowed_settings = {
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
        allowed_settings = {
            "model.init": (config.model.init, ("pretrained",)),
            "model.provider": (config.model.provider, ("transformers",)),
            "distributed.strategy": (config.distributed.strategy, ("auto", "ddp", "fsdp", "hsdp")),
        }
    yield from refused_values(allowed_settings, fault)
