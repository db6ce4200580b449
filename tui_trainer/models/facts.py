"""Find the model that `model.model_name_or_path` names, and read its facts from headers and small files.

Weights, torch and the network are not used. `problems.py` judges the facts.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.catalogue import CatalogueEntry, find_catalogue_entry
from tui_trainer.models.config_json import bad_model, read_config, read_json, refuse_other_kinds
from tui_trainer.models.files.hub_cache import cached_snapshot, local_folder, missing_model_hint, nearest_folder
from tui_trainer.models.files.weights import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorFacts,
    read_file_header,
    read_headers,
    weight_files,
    with_current_names,
)
from tui_trainer.models.heads import CAUSAL, Head
from tui_trainer.models.shape import ModelShape, add_new_row_weights, shape_of
from tui_trainer.models.tokenizer import tokenizer_files_in, tokenizer_key
from tui_trainer.terminal.safe_text import one_line

Weights = Literal["safetensors", "bin", "none", "not here"]
ADAPTER_FILE, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BIN_FILE, BIN_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"
# The name in config.json for each dtype of safetensors.
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "F8_E4M3": "float8_e4m3fn"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Facts about a model before it is loaded.

    If only the catalogue has the model, `folder` is None. `weights` is "not here" for a model of the hub whose weights
    are not on this machine: it can be planned but not trained. `weights_bytes` is None if unknown. `dtype` is that of
    most stored weights, or that of config.json for files without headers. `damage` holds the problems of the weight
    files, which then have no headers. `model_problems` judges these facts."""

    name: str
    revision: str
    folder: Path | None
    config: Mapping[str, Any]
    head: Head
    labels: int
    weights: Weights
    weight_files: tuple[str, ...] = ()
    weights_bytes: int | None = None
    headers: Mapping[str, TensorFacts] | None = None
    damage: tuple[Problem, ...] = ()
    dtype: str | None = None
    tokenizer_key: str | None = None
    tokenizer_files: tuple[str, ...] = ()
    has_remote_code: bool = False
    eos_token_ids: tuple[int, ...] = ()
    adapter: "Adapter | None" = None
    """The adapter, if the name refers to one; `folder` and the weights are then those of its base model."""
    stored_vocabulary: int | None = None
    """`vocab_size` of the weight files if tokens were added since, else None."""

    @property
    def tokenizer_folder(self) -> Path | None:
        """The adapter's folder if it has a tokenizer of its own, with its chat template; else the model's folder."""
        return self.adapter.folder if self.adapter and self.adapter.has_tokenizer else self.folder

    @property
    def shape(self) -> ModelShape:
        """The shape of the trained model. The first answer about a model takes seconds. Raises ConfigError."""
        counted_shape = shape_of(self.config, self.headers, head=self.head, labels=self.labels)
        shape = replace(counted_shape, stored_dtype=self.dtype or "")
        return shape if self.stored_vocabulary is None else add_new_row_weights(shape, self.stored_shape)

    @property
    def stored_shape(self) -> ModelShape:
        """The shape of the model in the files, without tokens that were added since."""
        vocabulary_field = {"vocab_size": self.stored_vocabulary} if self.stored_vocabulary else {}
        return shape_of({**self.config, **vocabulary_field}, self.headers, head=self.head, labels=self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A folder with a peft adapter. `fields` are those of adapter_config.json; `base` is the model for the adapter."""

    folder: Path
    fields: Mapping[str, Any]
    base: ModelFacts
    has_tokenizer: bool
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config.json beside the adapter, written if its model has other labels, tokens or positions than `base`."""


def find_model(
    name: str,
    revision: str = "main",
    *,
    head: Head = CAUSAL,
    labels: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> ModelFacts:
    """Find a model in a local folder, else in the hub's cache, else in the catalogue, without network access.

    `head` is the head that the task trains, with `labels` labels for a classifier (0: as many as config.json has).
    Raise ConfigError for an unknown name, and for a model that cannot have this head."""
    request = {"name": name, "revision": revision, "head": head, "labels": labels}
    folder = local_folder(name)
    if folder is not None and (folder / ADAPTER_FILE).is_file() and not _has_weights(folder):
        return _facts_with_adapter(folder, request, environment)
    if folder is not None:
        return _facts_of_folder(folder, request)
    entry = find_catalogue_entry(name)
    # gpt2 is an alias of openai-community/gpt2 on the hub; the cache uses the name of the download.
    for alias in dict.fromkeys((name, entry.name if entry else name)):
        snapshot = cached_snapshot(alias, revision, environment)
        if snapshot is not None:
            facts = _facts_of_folder(snapshot, request)
            return replace(facts, weights="not here") if facts.weights == "none" else facts
    if entry:
        return _facts_of_entry(entry, request)
    similar = nearest_folder(name)
    suggestion = f"did you mean the folder ./{similar}? Otherwise " if similar else ""
    raise bad_model(f"the model {name} is not on this machine", hint=suggestion + missing_model_hint(name))


def require_folder(facts: ModelFacts) -> Path:
    """Return the folder to train from. Raise ConfigError with the remedies if the model is only in the catalogue."""
    if facts.folder is None:
        message = f"a run with {facts.name} can be planned but not started, because the model is not on this machine"
        raise bad_model(message, missing_model_hint(facts.name))
    return facts.folder


def _facts_of_folder(folder: Path, request: dict[str, Any]) -> ModelFacts:
    config = read_config(folder)
    refuse_other_kinds(config, str(folder), request["head"])
    headers: dict[str, TensorFacts] = {}
    damage: tuple[Problem, ...] = ()
    try:
        headers = with_current_names(read_headers(folder))
    except ConfigError as error:
        damage = error.problems
    weight_names = () if damage else _files_with_weights(folder)
    tokenizer_files = tokenizer_files_in(folder, config)
    has_safetensors = (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()
    has_bin = (folder / BIN_FILE).is_file() or (folder / BIN_INDEX_FILE).is_file()
    weights: Weights = "safetensors" if has_safetensors else "bin" if has_bin else "none"
    generation = read_json(folder / "generation_config.json") or {}
    return ModelFacts(
        **request,
        folder=folder,
        config=config,
        weights=weights,
        weight_files=weight_names,
        weights_bytes=sum((folder / file).stat().st_size for file in weight_names if (folder / file).exists()) or None,
        headers=headers or None,
        damage=damage,
        dtype=_stored_dtype(headers) or _dtype_in_config(config),
        tokenizer_key=tokenizer_key(folder, tokenizer_files, config),
        tokenizer_files=tokenizer_files,
        has_remote_code="auto_map" in config or "auto_map" in (read_json(folder / "tokenizer_config.json") or {}),
        eos_token_ids=_ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id")),
    )


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (SINGLE_FILE, INDEX_FILE, BIN_FILE, BIN_INDEX_FILE))


def _facts_with_adapter(folder: Path, request: dict[str, Any], environment: Mapping[str, str]) -> ModelFacts:
    """Return the facts of an adapter's base model, with the adapter's own tokenizer and labels if it has them."""
    fields = read_json(folder / ADAPTER_FILE) or {}
    base_name, location = fields.get("base_model_name_or_path"), str(folder)
    if not isinstance(base_name, str) or not base_name:
        hint = f"write the name of its base model into {ADAPTER_FILE} as base_model_name_or_path"
        raise bad_model("the adapter does not name its base model", hint, location)
    revision = fields.get("revision")
    base_request = request | {"name": base_name} | ({"revision": revision} if isinstance(revision, str) else {})
    try:
        base = find_model(**base_request, environment=environment)
    except ConfigError as error:
        subject = f"the adapter is for {one_line(base_name, 200)}: "
        problems = [replace(problem, message=subject + problem.message, where=location) for problem in error.problems]
        raise ConfigError(problems) from None
    if base.adapter:
        hint = "merge the other adapter into its base model first"
        raise bad_model("the base of this adapter is another adapter", hint, location)
    if base.folder is None:
        problem = f"the adapter is for {base.name}, which is not on this machine"
        raise bad_model(problem, missing_model_hint(base.name), location)
    # Written beside an adapter if its base model has other labels, tokens or positions.
    own_config = read_json(folder / "config.json") or {}
    config, vocabulary = own_config or base.config, base.config.get("vocab_size")
    generation = read_json(folder / "generation_config.json") or {}
    damage: tuple[Problem, ...] = ()
    if not (folder / ADAPTER_WEIGHTS).is_file():
        hint = "copy the adapter again; to convert a .bin adapter, save it again with peft"
        damage = (Problem(message=f"the adapter has no {ADAPTER_WEIGHTS}", key=MODEL_KEY, where=location, hint=hint),)
    else:
        try:
            read_file_header(folder / ADAPTER_WEIGHTS)
        except ConfigError as error:
            damage = error.problems
    names = tokenizer_files_in(folder, config)
    facts = replace(
        base,
        name=request["name"],
        revision=request["revision"],
        config=config,
        stored_vocabulary=vocabulary if vocabulary != config.get("vocab_size") else None,
        damage=(*base.damage, *damage),
        eos_token_ids=_ids(generation.get("eos_token_id")) or base.eos_token_ids,
        adapter=Adapter(folder=folder, fields=fields, base=base, has_tokenizer=bool(names), config=own_config),
    )
    return replace(facts, tokenizer_files=names, tokenizer_key=tokenizer_key(folder, names, config)) if names else facts


def _facts_of_entry(entry: CatalogueEntry, request: dict[str, Any]) -> ModelFacts:
    refuse_other_kinds(entry.config, entry.name, request["head"])
    return ModelFacts(
        **request,
        folder=None,
        config=entry.config,
        weights="not here",
        weights_bytes=entry.weights_bytes,
        dtype=_dtype_in_config(entry.config),
        eos_token_ids=_ids(entry.config.get("eos_token_id")),
    )


def _files_with_weights(folder: Path) -> tuple[str, ...]:
    if safetensors_names := weight_files(folder):
        return safetensors_names
    if (folder / BIN_FILE).is_file():
        return (BIN_FILE,)
    weight_map = (read_json(folder / BIN_INDEX_FILE) or {}).get("weight_map")
    return tuple(sorted(set(map(str, weight_map.values())))) if isinstance(weight_map, dict) else ()


def _stored_dtype(headers: Mapping[str, TensorFacts]) -> str | None:
    """Return the dtype of most bytes in the stored tensors, or None without headers."""
    bytes_by_dtype: Counter[str] = Counter()
    for facts in headers.values():
        bytes_by_dtype[facts.dtype] += facts.size_bytes
    main_dtype = max(bytes_by_dtype, key=lambda name: bytes_by_dtype[name], default=None)
    return DTYPES.get(main_dtype, main_dtype.lower()) if main_dtype else None


def _dtype_in_config(config: Mapping[str, Any]) -> str | None:
    """Return the dtype in a config.json. Newer multimodal models have it in `text_config`."""
    text_config = config.get("text_config")
    sections = (config, text_config if isinstance(text_config, Mapping) else {})
    dtypes = (section.get(name) for section in sections for name in ("dtype", "torch_dtype"))
    return next((name for name in dtypes if isinstance(name, str)), None)


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in values if type(number) is int and number >= 0)
