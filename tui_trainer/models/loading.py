"""Models and tokenizers into memory, by transformers. torch and transformers are loaded inside the functions.

What cannot be loaded becomes one sentence: the file, what is wrong, what to do.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config, ModelSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.architectures import read_json
from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.shape import scratch_config
from tui_trainer.safe_text import one_line

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_END_BYTES = 1 << 20


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The model's own tokenizer. Raises ConfigError."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # transformers and tokenizers raise whatever their parts raise
        raise bad_model(_sentence("the tokenizer cannot be loaded", error), "copy it again", str(folder)) from None
    return tokenizer


def tokenizer_of_file(path: Path, max_length: int, special: Mapping[str, str]) -> PreTrainedTokenizerBase:
    """A tokenizer that was made from the data, as transformers saves and loads it. `special` by transformers' names."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        **special,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # text that spells <eos> is text, as in the training data
    )


def load_pretrained(folder: Path, model: ModelSection, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its own weights, on the CPU. Raises ConfigError when weights and config do not fit together."""
    from transformers import AutoModelForCausalLM

    try:
        result: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
            weights_only=True,
            **_attention(model),
        )
    except Exception as error:  # whatever its parts raise
        raise _cannot_load(error, folder, model) from None
    loaded: PreTrainedModel = result[0]
    report: dict[str, Any] = result[1]
    for kind in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(kind) or ())):
            raise _does_not_fit(folder, kind, names)
    return loaded


def load_config(
    folder: Path | None, config: Config, *, vocabulary: int, tokenizer: PreTrainedTokenizerBase
) -> PretrainedConfig:
    """The shape of a model from random weights: a folder's config.json, else Llama as [model.scratch] says."""
    special = {
        "vocab_size": vocabulary,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if folder is not None:
        from transformers import AutoConfig

        found: PretrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=config.model.trust_remote_code
        )
        for name, value in special.items():
            setattr(found, name, value)
        return found
    from transformers import LlamaConfig

    shape = scratch_config(config.model.scratch, vocabulary)
    return LlamaConfig.from_dict({**shape, **special, "max_position_embeddings": config.data.max_length})


def new_model(shape: PretrainedConfig, model: ModelSection, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights in that shape, drawn from torch's global generator."""
    from transformers import AutoModelForCausalLM

    build: Any = AutoModelForCausalLM.from_config
    made: PreTrainedModel = build(shape, dtype=dtype, trust_remote_code=model.trust_remote_code, **_attention(model))
    return made


def weights_key(facts: ModelFacts) -> str:
    """XXH3 over name, size and both ends of each file with weights: a run does not go on with other ones."""
    import xxhash

    digest = xxhash.xxh3_128()
    for name in facts.weight_files if facts.folder else ():
        path = Path(facts.folder or ".") / name
        with path.open("rb") as file:
            size = path.stat().st_size
            digest.update(f"{name}\0{size}\0".encode())
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return str(digest.hexdigest())


def _attention(model: ModelSection) -> dict[str, Any]:
    """auto leaves the choice to transformers: torch's fused kernel wherever the model has it."""
    return {} if model.attn_implementation == "auto" else {"attn_implementation": model.attn_implementation}


def _cannot_load(error: Exception, folder: Path, model: ModelSection) -> ConfigError:
    """What transformers could not do, in words that say what to do about it."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        hint = "take the version of the model with .safetensors files"
        return bad_model("a file with weights holds more than tensors and is not loaded", hint, str(folder))
    if "does not recognize this architecture" in text:
        kind = (read_json(folder / "config.json") or {}).get("model_type")
        message = f"this version of transformers does not know the architecture {one_line(str(kind), 80)}"
        return bad_model(message, "install a newer one: uv pip install -U transformers", str(folder))
    if model.attn_implementation != "auto" and "attention" in text.lower():
        message = _sentence(f"the model cannot be loaded with {model.attn_implementation}", error)
        return ConfigError(Problem(message=message, key="model.attn_implementation", hint="set it to auto"))
    return bad_model(_sentence("the model cannot be loaded", error), "copy the model again", str(folder))


def _does_not_fit(folder: Path, kind: str, names: Iterable[str]) -> ConfigError:
    first, *more = names
    what = "is not in the files" if kind == "missing_keys" else "has another shape in the files than in config.json"
    rest = f", and {len(more)} more" if more else ""
    message = f"the weights do not fit the config: {one_line(first, 120)}{rest} {what}"
    hint = "copy the model again, config.json and weights together"
    return ConfigError(Problem(message=message, where=str(folder), key="model.model_name_or_path", hint=hint))


def _sentence(what: str, error: Exception) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return f"{what}: {one_line(text, 240)}"
