"""A model of which only the config is there: as much of it as a task asks for when it lays rows out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ConfigOnly:
    """Has no weights and computes nothing."""

    config: Any


def config_only(fields: Mapping[str, Any], tokenizer: Any, *, is_new: bool, problem_type: str = "") -> ConfigOnly:
    """`fields` as in config.json. `is_new`: from random weights, whose special tokens are those of `tokenizer`.

    A family that transformers does not know has the fields alone, without the family's defaults.
    """
    from transformers import AutoConfig, PretrainedConfig

    values = dict(fields)
    kind = str(values.pop("model_type", ""))
    if is_new:
        values |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        values["decoder_start_token_id"] = tokenizer.pad_token_id
    if problem_type:
        values["problem_type"] = problem_type
    try:
        config: Any = AutoConfig.for_model(kind, **values)
    except ValueError:
        config = PretrainedConfig(**values)
    return ConfigOnly(config)
