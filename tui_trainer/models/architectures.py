"""What config.json says that a model is, and which models cannot be trained for a task."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.heads import CAUSAL, ENCODERS, Head, instead, is_unfit, lack_of
from tui_trainer.safe_text import one_line

_LARGEST_CONFIG = 16 * 1024 * 1024
_CLASSIFIERS = {
    "ForSequenceClassification": "a classifier of texts",
    "ForTokenClassification": "a classifier of tokens",
    "ForQuestionAnswering": "a finder of answers",
    "ForMultipleChoice": "a chooser among answers",
    "ForImageClassification": "a classifier of images",
    "ForSpeechSeq2Seq": "a transcriber of speech",
}


def read_json(path: Path, largest: int = _LARGEST_CONFIG) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file. Raises ConfigError for anything else."""
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
    """config.json of a folder. Raises ConfigError that says what the folder holds instead."""
    config = read_json(folder / "config.json")
    if config is not None:
        return config
    where = str(folder)
    if adapter := read_json(folder / "adapter_config.json"):
        base = one_line(str(adapter.get("base_model_name_or_path") or "a base model"), 120)
        hint = f"name {base}, or merge the adapter into it first and give the merged folder"
        raise bad_model(f"the folder holds an adapter for {base} and no model", hint, where)
    if any(folder.glob("*.gguf")):
        hint = "take the version of the model with config.json and .safetensors files"
        raise bad_model("the folder holds .gguf files only, the form of llama.cpp, which is not trained", hint, where)
    if nested := sorted(path.parent.name for path in folder.glob("*/config.json"))[:3]:
        raise bad_model("the folder has no config.json", f"its folders have: {one_line(', '.join(nested))}", where)
    raise bad_model("the folder has no config.json", "give the folder that transformers saved a model in", where)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that the weights were saved from, `LlamaForCausalLM`; empty where it is not said."""
    names = config.get("architectures")
    return one_line(str(names[0]), 80) if isinstance(names, list) and names else ""


def refuse_other_kinds(config: Mapping[str, Any], where: str = "", head: Head | None = CAUSAL) -> None:
    """Raises ConfigError for a model that cannot have this head, and says what it is; None: any head will do."""
    name, model_type = architecture_of(config), one_line(str(config.get("model_type")), 80)
    is_mixed, hint = "text_config" in config or "vision_config" in config, ""
    what = "a model of several kinds of input (images or sound beside text)" if is_mixed else ""
    if not is_mixed and head == CAUSAL:
        what, hint = _no_decoder(config, name), instead(model_type)
    if what:
        hint = "; ".join(filter(None, ("take a decoder, such as a LlamaForCausalLM or a Qwen3ForCausalLM", hint)))
        raise bad_model(f"{name or model_type} is {what}, and does not continue a text", hint, where)
    if head not in (None, CAUSAL) and is_unfit(model_type, head):
        raise bad_model(lack_of(model_type, head), instead(model_type), where)


def _no_decoder(config: Mapping[str, Any], name: str) -> str:
    """What a model is that does not continue texts; empty for one that does."""
    if config.get("is_encoder_decoder"):
        return "a sequence-to-sequence model, an encoder with a decoder"
    for ending, what in _CLASSIFIERS.items():
        if name.endswith(ending):
            return what
    if name.endswith("ForMaskedLM"):
        return "an encoder, which fills gaps"
    if config.get("model_type") in ENCODERS and not config.get("is_decoder"):
        return "an encoder"
    return ""
