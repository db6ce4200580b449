"""Which files of a model on the hub a run needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.tokenizer import TOKENIZER_FILES
from tui_trainer.safe_text import one_line

_SMALL = {"config.json", "generation_config.json", *TOKENIZER_FILES}
# In the order in which transformers looks for them: one file, or shards with their index.
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model-\d+-of-\d+\.bin|pytorch_model\.bin\.index\.json"),
)
_TEMPLATES = re.compile(r"additional_chat_templates/[\w.-]+\.jinja")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository."""

    name: str
    size_bytes: int


def files_to_fetch(model: str, listed: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Config, tokenizer and one form of the weights. Raises ConfigError where there is no model of transformers."""
    files = list(listed)
    names = {file.name for file in files}
    if "config.json" not in names:
        raise bad_model(f"{model} has no config.json", hint=_instead(names))
    kept = [file for file in files if file.name in _SMALL or _TEMPLATES.fullmatch(file.name)]
    for pattern in _WEIGHTS:
        if weights := [file for file in files if pattern.fullmatch(file.name)]:
            return (*kept, *weights)
    raise bad_model(f"{model} has no weights that transformers loads", hint=_instead(names))


def _instead(names: set[str]) -> str:
    if "adapter_config.json" in names:
        return "it is an adapter: name the model that it was trained on"
    if any(name.endswith(".gguf") for name in names):
        return "it has .gguf files, the form of llama.cpp, which is not trained: take the original model"
    shown = one_line(", ".join(sorted(names)[:4]), 160)
    return f"its files: {shown}" if shown else "it is empty"
