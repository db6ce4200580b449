"""Read a model's config.json, whose field names depend on the architecture, and refuse models of other kinds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.heads import CAUSAL, ENCODERS, Head, lacks_head, missing_head_message, usable_tasks_hint
from tui_trainer.models.towers import NOT_TRAINED, TEXT_TRAINED_TYPES, has_towers, is_multimodal
from tui_trainer.terminal.safe_text import one_line

CONFIG_FILE = "config.json"
_LARGEST = 10**9
# Source: `attribute_map` and the names of fields in the configuration files of transformers 5.23 and older.
ALIASES: dict[str, list[str]] = {
    "hidden_size": "hidden_size n_embd n_embed d_model dim".split(),
    "num_hidden_layers": "encoder_layers num_hidden_layers n_layer num_layers n_layers".split(),
    "num_attention_heads": "num_attention_heads n_head num_heads n_heads encoder_attention_heads".split(),
    "num_key_value_heads": "num_key_value_heads num_kv_heads n_head_kv".split(),
    "intermediate_size": "intermediate_size ffn_dim n_inner ffn_hidden_size hidden_dim d_ff encoder_ffn_dim".split(),
    # CANINE hashes code points to rows of several tables.
    "vocab_size": "vocab_size num_hash_buckets".split(),
    "max_position_embeddings": "max_position_embeddings n_positions n_ctx seq_length max_seq_len".split(),
    "attention_dropout": "attention_dropout attn_pdrop attention_probs_dropout_prob dropout_rate".split(),
}


def bad_model(message: str, hint: str = "", where: str = "") -> ConfigError:
    """Return an error about the model that `model.model_name_or_path` names."""
    return ConfigError(Problem(message=message, hint=hint, where=one_line(where), key=MODEL_KEY))


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of a config.json. Impossible numbers raise a ConfigError that names the field."""

    values: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return one_line(str(self.values.get("model_type") or ""), 80)

    def number(self, name: str, default: int | None = None) -> int:
        """Return a field as a positive integer. Raise ConfigError if it is missing and there is no default."""
        value = self.optional(name)
        if value is not None:
            return value
        if default is None:
            raise bad_model(f"config.json has no {name}", hint="the file is damaged, or the model is not a decoder")
        return default

    def optional(self, name: str) -> int | None:
        """Return a field as a positive integer, or None if it is missing or null."""
        for alias in ALIASES.get(name, [name]):
            value = self.values.get(alias)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LARGEST:
                value_text = one_line(repr(value), 40)
                message = f"config.json: {alias} is {value_text}, not a whole number from 1 to {_LARGEST - 1:,}"
                raise bad_model(message, hint="the file is damaged: copy it again")
            return value
        return None

    def share(self, name: str) -> float:
        """Return a field as a number from 0 to below 1; 0 if it is missing."""
        for alias in ALIASES.get(name, [name]):
            value = self.values.get(alias)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
                return float(value)
        return 0.0

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false; the default if it is missing or null."""
        value = self.values.get(name)
        return default if value is None else bool(value)


_LARGEST_CONFIG = 16 * 1024 * 1024
_CLASSIFIERS = {
    "ForSequenceClassification": "a text classifier",
    "ForTokenClassification": "a token classifier",
    "ForQuestionAnswering": "a question answering model",
    "ForMultipleChoice": "a multiple choice model",
    "ForImageClassification": "an image classifier",
    "ForSpeechSeq2Seq": "a speech recognition model",
}


def read_json(path: Path, largest: int = _LARGEST_CONFIG) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None without the file. Raise ConfigError for any other content."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > largest:
            raise ValueError
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise bad_model(f"{path.name} cannot be read as JSON", hint="copy it again", where=str(path.parent))
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. Without one, raise ConfigError with what the folder contains instead."""
    config = read_json(folder / CONFIG_FILE)
    if config is not None:
        return config
    where = str(folder)
    if any(folder.glob("*.gguf")):
        hint = "use the version of the model with config.json and .safetensors files"
        raise bad_model("the folder has only .gguf files (llama.cpp), which cannot be trained", hint, where)
    if folders_with_config := sorted(path.parent.name for path in folder.glob("*/config.json"))[:3]:
        hint = f"these subfolders have a config.json: {one_line(', '.join(folders_with_config))}"
        raise bad_model("the folder has no config.json", hint, where)
    raise bad_model("the folder has no config.json", "give the folder where transformers saved the model", where)


def refuse_other_kinds(config: Mapping[str, Any], where: str = "", head: Head | None = CAUSAL) -> None:
    """Raise ConfigError if a model cannot have this head. None accepts any head."""
    names, model_type = config.get("architectures"), one_line(str(config.get("model_type")), 80)
    name = one_line(str(names[0]), 80) if isinstance(names, list) and names else ""
    if is_multimodal(config):
        _refuse_towers(config, name or model_type, where, head)
        return
    if head == CAUSAL and (kind := _kind_without_decoder(config, name)):
        need = "plain text and conversations need a decoder, such as a LlamaForCausalLM or a Qwen3ForCausalLM"
        hint = "; ".join(filter(None, (need, usable_tasks_hint(model_type))))
        raise bad_model(f"{name or model_type} is {kind}, which cannot be trained to continue text", hint, where)
    if head not in (None, CAUSAL) and lacks_head(model_type, head):
        raise bad_model(missing_head_message(model_type, head), usable_tasks_hint(model_type), where)


def _refuse_towers(config: Mapping[str, Any], name: str, where: str, head: Head | None) -> None:
    """Raise ConfigError for a multimodal model, unless its type can be trained on text with this head."""
    multimodal = "a multimodal model (images or sound as well as text)"
    if not has_towers(config.get("model_type")):
        hint = f"these types can be trained on text: {', '.join(TEXT_TRAINED_TYPES)}; or choose a text-only model"
        reason = NOT_TRAINED.get(str(config.get("model_type")), "this type is not supported")
        raise bad_model(f"{name} is {multimodal}, and {reason}", hint, where)
    if kind := _kind_without_decoder(config, name):
        hint = "use the full model, with its language-model head"
        raise bad_model(f"{name} is {kind}, which cannot be trained to continue text", hint, where)
    if head not in (None, CAUSAL):
        hint = "set task.type to causal_lm or chat, or choose a text-only model"
        raise bad_model(f"{name} is {multimodal}, which can only be trained to continue text", hint, where)


def _kind_without_decoder(config: Mapping[str, Any], name: str) -> str:
    """Return the kind of a model that cannot continue text, in words; "" for one that can."""
    if config.get("is_encoder_decoder"):
        return "an encoder-decoder model"
    for ending, kind in _CLASSIFIERS.items():
        if name.endswith(ending):
            return kind
    if name.endswith("ForMaskedLM"):
        return "a masked language model"
    if config.get("model_type") in ENCODERS and not config.get("is_decoder"):
        return "an encoder"
    return ""


# Families whose activations exceed the range of fp16: they were trained in bf16 or fp32.

_T5 = "github.com/huggingface/transformers/issues/5651, and _keep_in_fp32_modules = ['wo'] in modeling_t5.py"
_GEMMA_3 = "github.com/huggingface/transformers/issues/36822, unsloth.ai/blog/gemma3: beyond 65,504, and so NaN"
_GEMMA_3N = "unsloth.ai/blog/gemma-3n: activations become infinite in fp16 as well"
_GEMMA_4 = "github.com/unslothai/unsloth-zoo/pull/600: the MLP's products pass 65,504 under autocast"
_GPT_OSS = "github.com/microsoft/onnxruntime-genai/pull/2444: beyond 65,504 in the last layer, and so NaN"

# The source for each `model_type`. Loss scaling does not help, because the forward pass overflows.
OVERFLOWS_IN_FP16: Mapping[str, str] = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano"), _T5),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA_3),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), _GEMMA_3N),
    **dict.fromkeys(("gemma4", "gemma4_text"), _GEMMA_4),
    "gpt_oss": _GPT_OSS,
}


def fp16_problems(config: Config, model_type: str) -> list[Problem]:
    """Return a problem for each setting that requests fp16 for a model that overflows in it."""
    if model_type not in OVERFLOWS_IN_FP16:
        return []
    message = f"{model_type} overflows in fp16: its activations exceed 65,504"
    hint = "set it to auto, which never chooses fp16 for this model"
    keys = ["training.mixed_precision"] if config.training.mixed_precision == "fp16" else []
    keys += ["model.dtype"] if config.model.dtype == "float16" else []
    return [Problem(message=message, key=key, hint=hint) for key in keys]
