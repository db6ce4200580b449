"""Read LLaMA-Factory's lists of data sets: `dataset_info.json`, and the YAML of its v1.

Source: src/llamafactory/data/parser.py and data/v1_sft_demo.yaml of hiyouga/LLaMA-Factory at ff6d4d12e."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tui_trainer.data.columns.conversations import ROLES
from tui_trainer.data.columns.usual_names import CONVERSATION_NAMES
from tui_trainer.data.sources.hub import MAIN, HubPath
from tui_trainer.errors import name_hint
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import file_near
from tui_trainer.terminal.safe_text import one_line

NAME = "dataset_info.json"
_ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
_SETTINGS = {"prompt": "data.text_column", "query": "data.text_pair_column", "response": "data.target_column"}
_PART = {"subset": "data.name", "split": "data.split", "num_samples": "data.max_rows", "size": "data.max_rows"}
_ANSWERS = ("chosen", "rejected")
_MEDIA = ("images", "videos", "audios")
# Tag of the list, its default value, and our role.
_ROLE_TAGS = {
    "user_tag": ("human", "user"), "assistant_tag": ("gpt", "assistant"), "system_tag": ("system", "system"),
    "observation_tag": ("observation", "tool"), "function_tag": ("function_call", "assistant"),
}  # fmt: skip
_FIELD_TAGS = {"role_tag": ("role", "from"), "content_tag": ("content", "value")}


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of a list: its path as in data.path, and the other settings that it needs."""

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def find_list(folder: Path, dataset_dir: str) -> Path | None:
    """Return the path of the list of data sets for a config in `folder`; None if it is not on this machine."""
    return file_near(folder, str(Path(dataset_dir) / NAME)) or file_near(folder, NAME)


def read_list(path: Path, names: list[str], *, task: str) -> list[DataSet]:
    """Return the data sets with these names in the list at `path`, for the task `task`.

    Raises ValueError for a data set that is invalid or would be used differently, ConfigError for a broken list."""
    entries = read_foreign(path)
    data_sets = []
    for name in names:
        entry = entries.get(name)
        if not isinstance(entry, dict):
            raise ValueError(f"{path.name} has no data set {one_line(name, 40)!r}; {name_hint(name, entries)}")
        try:
            data_sets.append(DataSet(_path_of(entry, path.parent), dict(_settings(entry, task))))
        except ValueError as error:
            raise ValueError(f"{one_line(name, 40)} in {path.name}: {error}") from None
    return data_sets


def _path_of(entry: Mapping[str, Any], folder: Path) -> str:
    hub_name = entry.get("hf_hub_url") or (entry.get("path") if entry.get("source", "hf_hub") == "hf_hub" else None)
    if hub_name:
        subfolder = str(entry.get("folder") or "")
        return str(HubPath(str(hub_name), str(entry.get("revision") or MAIN), subfolder))
    name = entry.get("file_name") or (entry.get("path") if entry.get("source") == "local" else None)
    if not name:
        raise ValueError("the entry names neither a file nor a data set on the Hub; set data.path to the file")
    # In v1 the list is in the folder of the data or in a folder next to it.
    folders = (folder / str(entry.get("dataset_dir") or ""), folder, folder.parent)
    paths = [parent / str(name) for parent in folders]
    return str(next((file for file in paths if file.exists()), paths[0]))


def _settings(entry: Mapping[str, Any], task: str) -> Iterator[tuple[str, Any]]:
    # In v1, rows without a converter are conversations.
    row_format = str(entry.get("formatting") or entry.get("converter") or ("openai" if "path" in entry else "alpaca"))
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if bool(mark := columns.get("kto_tag")) != (task == "kto"):
        kind, stage = ("marked as good or bad (kto_tag)", "kto") if mark else ("not marked (kto_tag)", "sft")
        raise ValueError(f"the answers are {kind}; nearest: stage {stage}")
    if mark and mark != "kto_tag":
        yield "data.label_column", str(mark)
    has_pairs = entry.get("ranking") is True or row_format == "pair" or any(columns.get(name) for name in _ANSWERS)
    if has_pairs != (task in ("preference", "reward")):
        kind, stage = ("pairs of answers", "dpo") if has_pairs else ("no pairs of answers (ranking)", "sft")
        raise ValueError(f"the rows are {kind}; nearest: stage {stage}")
    if media_columns := [name for name in _MEDIA if columns.get(name)]:
        raise ValueError(f"the rows have {', '.join(media_columns)}, but models are trained on text")
    if columns.get("history"):
        raise ValueError("a column of earlier turns is not supported; write the turns as messages")
    if row_format not in ("alpaca", "sharegpt", "openai", "pair"):
        raise ValueError(f"the formatting {one_line(row_format, 40)} is not supported; use alpaca, sharegpt or openai")
    for name in ("system", "tools"):
        if columns.get(name, name) != name:
            raise ValueError(f"the {name} column must be called {name}, not {one_line(columns[name], 40)}")
    if (weight := entry.get("weight")) not in (None, 1):
        raise ValueError(f"the weight {weight} is not supported; set data.weights to how often rows are used")
    for name, setting in _PART.items():
        value = entry.get(name)
        if value not in (None, "") and (name, value) != ("split", "train"):
            yield setting, value
    if has_pairs and (answers := ",".join(str(columns.get(name) or name) for name in _ANSWERS)) != ",".join(_ANSWERS):
        yield "data.target_column", answers
    yield from _conversation(columns, tags) if row_format != "alpaca" else _columns(columns, task)


def _columns(columns: Mapping[str, Any], task: str) -> Iterator[tuple[str, Any]]:
    """Yield our settings for the columns that a data set names. Usual column names need no setting."""
    named_columns = {name: str(columns[name]) for name in _ALPACA if columns.get(name)}
    if task in ("preference", "reward"):
        # LLaMA-Factory reads the answers from other columns.
        named_columns.pop("response", None)
        usual = {name: column for name, column in _ALPACA.items() if name in named_columns}
        yield from ((_SETTINGS[name], column) for name, column in named_columns.items() if named_columns != usual)
    elif task == "causal_lm" and named_columns:
        yield "data.text_column", named_columns.get("prompt", "auto")
    elif named_columns and named_columns != _ALPACA:
        if "prompt" not in named_columns or "response" not in named_columns:
            raise ValueError("columns must name both prompt and response")
        yield from ((_SETTINGS[name], column) for name, column in named_columns.items())


def _conversation(columns: Mapping[str, Any], tags: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    column = str(columns.get("messages") or "conversations")
    if column not in CONVERSATION_NAMES:
        yield "data.text_column", column
    for tag, usual_names in _FIELD_TAGS.items():
        if str(tags.get(tag, usual_names[0])) not in usual_names:
            raise ValueError(f"{tag} must be {' or '.join(usual_names)}, not {one_line(str(tags[tag]), 40)}")
    for tag, (usual_tag, role) in _ROLE_TAGS.items():
        value = str(tags.get(tag) or usual_tag)
        if ROLES.get(value.lower()) != role:
            problem = f"{tag} {one_line(value, 40)} is not a known name of the role {role}"
            raise ValueError(f"{problem}; use a known name in the data")
