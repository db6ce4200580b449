"""A model of the hub, after a question and never without one.

Only what training reads is fetched: config, tokenizer and weights as safetensors (.bin files where there are no
others).
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.downloading.hub import Ask, HubFile, Kind, download
from tui_trainer.files.hub_layout import is_hub_name
from tui_trainer.models.config_json import bad_model, refuse_other_kinds
from tui_trainer.models.tokenizer import TEMPLATE_FOLDER, TOKENIZER_FILES
from tui_trainer.terminal.safe_text import one_line

MODEL = Kind(word="model", repository="models", refuse=bad_model, option="--model", revision_key="model.revision")

_SMALL = {"config.json", "generation_config.json", *TOKENIZER_FILES}
# In the order in which transformers looks for them: one file, or shards with their index.
_WEIGHTS = (
    re.compile(r"model\.safetensors"),
    re.compile(r"model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json"),
    re.compile(r"pytorch_model\.bin"),
    re.compile(r"pytorch_model-\d+-of-\d+\.bin|pytorch_model\.bin\.index\.json"),
)
_TEMPLATES = re.compile(rf"{TEMPLATE_FOLDER}/[\w.-]+\.jinja")


def download_model(name: str, revision: str = "main", *, ask: Ask, progress: Progress | None = None) -> Path | None:
    """Fetch a model and return the folder it is in; None when `ask` says no.

    Raises ConfigError for a name or revision that the hub does not have, for a model that may not be had without an
    account, and for one that no task trains; FolderError when the disk is too small; RunError when the network fails
    and on Ctrl+C.
    """
    if not is_hub_name(name):
        raise bad_model(f"{one_line(name, 120)} cannot be a name on the hub", hint="names look like org/model")

    def choose(info: Any, listed: list[HubFile]) -> tuple[Sequence[HubFile], str]:
        refuse_other_kinds(info.config or {}, where=name, head=None)
        return files_to_fetch(name, listed), ""

    return download(MODEL, name, revision, choose, ask=ask, progress=progress)


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
