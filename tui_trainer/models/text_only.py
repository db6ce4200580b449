"""Load the language model of a multimodal checkpoint as a text model of its own (`model.text_only`).

Its class is the causal model of transformers for the type of the language model. transformers has no such class for the
language models of Qwen's multimodal checkpoints. On text, their layers compute the same as Qwen 2 and 3, because the
positions of time, height and width are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.counting import count_model
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.files.weights import has_head
from tui_trainer.models.four_bits import stored_tensors
from tui_trainer.models.heads import CAUSAL, auto_class
from tui_trainer.models.towers import has_towers, is_of_tower, tower_modules

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

TEXT_ONLY_KEY = "model.text_only"
# The `model_type` of the text model that is equivalent to each nested language model.
_TEXT_TYPES = {"qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
# Fields that divide positions among time, height and width.
_IMAGE_FIELDS = ("mrope_section", "mrope_interleaved")
_PREFIX = re.compile(r"^(model\.language_model|language_model\.model)\.|^language_model\.(?=lm_head\.)")


def text_facts(facts: ModelFacts) -> ModelFacts:
    """Return the facts of a multimodal model's language model. Raise ConfigError for other models and adapters."""
    model_type = facts.config.get("model_type")
    if not has_towers(model_type) or facts.adapter:
        reason = "an adapter on a multimodal model" if facts.adapter else f"{model_type}, which reads only text"
        message = f"is true, but {facts.name} is {reason}"
        raise ConfigError(Problem(message=message, key=TEXT_ONLY_KEY, hint="set it to false"))
    counts = count_model(facts.config, CAUSAL, 0, 0)
    towers = counts["towers"]
    stored_headers = facts.headers or {}
    headers = {_text_name(name): tensor for name, tensor in stored_headers.items() if not is_of_tower(name, towers)}
    nested_fields = facts.config.get("text_config")
    # Older files do not nest the fields of the language model.
    flat_fields = {key: value for key, value in facts.config.items() if "vision" not in key}
    language_fields = nested_fields if isinstance(nested_fields, Mapping) else flat_fields
    is_tied = counts["tied"] and not has_head(headers)
    fields = {**counts["language"], **language_fields, "tie_word_embeddings": is_tied}
    return replace(facts, config=_text_fields(fields, counts["language"]["model_type"]), headers=headers or None)


def text_config(whole: PretrainedConfig, *, tied: bool) -> PretrainedConfig:
    """Return the config of the language model alone. `tied`: the files contain no separate head."""
    from transformers import AutoConfig

    text_fields = _text_fields(whole.get_text_config().to_dict(), whole.get_text_config().model_type)
    model_type = text_fields.pop("model_type")
    config: PretrainedConfig = AutoConfig.for_model(model_type, **text_fields | {"tie_word_embeddings": tied})
    return config


def load_text_model(
    folder: Path, full_config: PretrainedConfig, dtype: torch.dtype, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load the language model from the files of a multimodal checkpoint. All of its weights are in host memory at once.
    Return the model and transformers' report on its weights."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig

    with torch.device("meta"):
        skeleton = auto_class(CAUSAL, full_config.model_type).from_config(full_config)
    towers = {path.rpartition(".")[2]: 0 for path in tower_modules(skeleton)}
    tensors = {_text_name(name): tensor for name, tensor in stored_tensors(folder) if not is_of_tower(name, towers)}
    config = text_config(full_config, tied="lm_head.weight" not in tensors)
    options["ignore_mismatched_sizes"] = True  # the caller reports mismatches
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model, report = model_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True, **options
    )
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model, report


def _text_fields(fields: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Return the config.json of the text model that is equivalent to a nested language model."""
    if model_type not in _TEXT_TYPES:
        return {**fields, "model_type": model_type}
    dropped_names = ("architectures", "model_type", *_IMAGE_FIELDS)
    text_fields = {key: value for key, value in fields.items() if key not in dropped_names}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(stored_rope := text_fields.get(name), Mapping):
            new_rope = {key: "default" if value == "mrope" else value for key, value in stored_rope.items()}
            text_fields[name] = {key: value for key, value in new_rope.items() if key not in _IMAGE_FIELDS}
    return {**text_fields, "model_type": _TEXT_TYPES[model_type]}


def _text_name(stored_name: str) -> str:
    """Return a tensor's name in the text model: `model.language_model.layers.0...` gives `model.layers.0...`."""
    return _PREFIX.sub(lambda match: "model." if match[1] else "", stored_name)
