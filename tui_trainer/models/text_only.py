"""The language model of a checkpoint with towers for images as a text model of its own (`model.text_only`).

Its class is the one that transformers has for causal models of that kind. Qwen's language models with towers have none:
of text their layers compute what those of Qwen 2 and 3 do, as positions of time, height and width are all the same.
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

KEY = "model.text_only"
# By the `model_type` of a language model, what it is alone.
_ALONE = {"qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
# What only divides positions among time, height and width.
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
_PREFIX = re.compile(r"^(model\.language_model|language_model\.model)\.|^language_model\.(?=lm_head\.)")


def text_facts(facts: ModelFacts) -> ModelFacts:
    """Of the language model alone, by the files of the whole. Raises ConfigError for a model without towers, and for an
    adapter."""
    kind = facts.config.get("model_type")
    if not has_towers(kind) or facts.adapter:
        what = "an adapter on a multimodal model" if facts.adapter else f"{kind}, which reads only text"
        raise ConfigError(Problem(message=f"is true, but {facts.name} is {what}", key=KEY, hint="set it to false"))
    counted = count_model(facts.config, CAUSAL, 0, 0)
    towers = counted["towers"]
    headers = {_text_name(name): one for name, one in (facts.headers or {}).items() if not is_of_tower(name, towers)}
    own = facts.config.get("text_config")
    # Older files have the fields of the language model among those of the whole.
    told = own if isinstance(own, Mapping) else {key: facts.config[key] for key in facts.config if "vision" not in key}
    fields = {**counted["language"], **told, "tie_word_embeddings": counted["tied"] and not has_head(headers)}
    return replace(facts, config=_alone(fields, counted["language"]["model_type"]), headers=headers or None)


def text_config(whole: PretrainedConfig, *, tied: bool) -> PretrainedConfig:
    """That of the language model alone; `tied`: the files hold no head of its own."""
    from transformers import AutoConfig

    fields = _alone(whole.get_text_config().to_dict(), whole.get_text_config().model_type)
    kind = fields.pop("model_type")
    made: PretrainedConfig = AutoConfig.for_model(kind, **fields | {"tie_word_embeddings": tied})
    return made


def load_text_model(
    folder: Path, whole: PretrainedConfig, dtype: torch.dtype, **more: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """(the model, what transformers reports of its weights), of the files of the whole. All weights of the language
    model are in the machine's memory at one time."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, GenerationConfig

    with torch.device("meta"):
        skeleton = auto_class(CAUSAL, whole.model_type).from_config(whole)
    towers = {path.rpartition(".")[2]: 0 for path in tower_modules(skeleton)}
    own = {_text_name(name): tensor for name, tensor in stored_tensors(folder) if not is_of_tower(name, towers)}
    config = text_config(whole, tied="lm_head.weight" not in own)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    made, report = kind.from_pretrained(
        None, config=config, state_dict=own, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **more
    )
    if (folder / "generation_config.json").is_file():
        made.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return made, report


def _alone(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if kind not in _ALONE:
        return {**fields, "model_type": kind}
    found = {key: value for key, value in fields.items() if key not in ("architectures", "model_type", *_OF_IMAGES)}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(told := found.get(name), Mapping):
            rope = {key: "default" if value == "mrope" else value for key, value in told.items()}
            found[name] = {key: value for key, value in rope.items() if key not in _OF_IMAGES}
    return {**found, "model_type": _ALONE[kind]}


def _text_name(stored: str) -> str:
    """`model.language_model.layers.0...` is `model.layers.0...` in the text model."""
    return _PREFIX.sub(lambda found: "model." if found[1] else "", stored)
