"""From `model.model_name_or_path` to facts: where the model is, what it is made of, what its files say.

Only headers and small files are read: no weights, no torch, no network.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.catalogue import CatalogueEntry, find_shape
from tui_trainer.models.config_json import bad_model, read_config, read_json, refuse_other_kinds
from tui_trainer.models.files.hub_cache import cached_snapshot, local_folder, nearest_folder, remedies
from tui_trainer.models.files.weights import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorFacts,
    read_file_header,
    read_headers,
    weight_files,
    with_names_of_today,
)
from tui_trainer.models.heads import CAUSAL, Head
from tui_trainer.models.shape import ModelShape, shape_of, with_more_rows
from tui_trainer.models.tokenizer import tokenizer_files_in, tokenizer_key
from tui_trainer.terminal.safe_text import one_line

Weights = Literal["safetensors", "bin", "none", "not here"]
ADAPTER_FILE, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BIN_FILE, BIN_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Source: the names that `torch_dtype` and `dtype` of config.json take, for those of safetensors.
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "F8_E4M3": "float8_e4m3fn"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What is known of a model before anything is loaded.

    `folder` is None where only the catalogue knows it. `weights` is "not here" for a model of the hub whose weights
    are not on this machine: it can be planned and not trained. `weights_bytes` is None where nothing says it.
    `dtype` is that of most of the stored weights, by config.json where they have no header. `damage` is what is wrong
    with the files of the weights; then there are no headers. `model_problems` judges all of it.
    """

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
    """Named instead of the model that it is for; `folder` and the weights are those of that model."""
    stored_vocabulary: int | None = None
    """`vocab_size` of the files with the weights, where tokens were added since; None: that of `config`."""

    @property
    def tokenizer_folder(self) -> Path | None:
        """An adapter may come with a tokenizer of its own, which knows its chat template."""
        return self.adapter.folder if self.adapter and self.adapter.has_tokenizer else self.folder

    @property
    def shape(self) -> ModelShape:
        """What is trained. The first answer about a model takes seconds. Raises ConfigError where nobody can tell."""
        counted = shape_of(self.config, self.headers, head=self.head, labels=self.labels)
        found = replace(counted, stored_dtype=self.dtype or "")
        return found if self.stored_vocabulary is None else with_more_rows(found, self.stored_shape)

    @property
    def stored_shape(self) -> ModelShape:
        """What the files hold: without tokens that were added since."""
        stored = {"vocab_size": self.stored_vocabulary} if self.stored_vocabulary else {}
        return shape_of({**self.config, **stored}, self.headers, head=self.head, labels=self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A folder with an adapter of peft. `fields` are those of adapter_config.json, `base` is the model it is for."""

    folder: Path
    fields: Mapping[str, Any]
    base: ModelFacts
    has_tokenizer: bool
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json beside it, of a model with other labels, tokens or positions than those of `base`; empty: none."""


def find_model(
    name: str,
    revision: str = "main",
    *,
    head: Head = CAUSAL,
    labels: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> ModelFacts:
    """A folder on this disk, else the hub's cache, else the catalogue. Nothing is asked of the network.

    `head` is what the task trains, with so many `labels` where it is a classifier's (0: as many as config.json says).
    Raises ConfigError for a name that none of them knows, and for a model that cannot have the head.
    """
    asked = {"name": name, "revision": revision, "head": head, "labels": labels}
    folder = local_folder(name)
    if folder is not None and (folder / ADAPTER_FILE).is_file() and not _has_weights(folder):
        return _with_adapter(folder, asked, environment)
    if folder is not None:
        return _facts_of(folder, asked)
    entry = find_shape(name)
    # The hub knows gpt2 and openai-community/gpt2 as one; the cache keeps it under the name it was asked for.
    for alias in dict.fromkeys((name, entry.name if entry else name)):
        snapshot = cached_snapshot(alias, revision, environment)
        if snapshot is not None:
            facts = _facts_of(snapshot, asked)
            return replace(facts, weights="not here") if facts.weights == "none" else facts
    if entry:
        return _catalogued(entry, asked)
    near = nearest_folder(name)
    hint = f"did you mean the folder ./{near}? Otherwise {remedies(name)}" if near else remedies(name)
    raise bad_model(f"the model {name} is not on this machine", hint=hint)


def require_folder(facts: ModelFacts) -> Path:
    """The folder to train from. Raises ConfigError with both remedies for a model that is only catalogued."""
    if facts.folder is None:
        what = f"a run with {facts.name} can be planned but not started: the model is not on this machine"
        raise bad_model(what, remedies(facts.name))
    return facts.folder


def _facts_of(folder: Path, asked: dict[str, Any]) -> ModelFacts:
    config = read_config(folder)
    refuse_other_kinds(config, str(folder), asked["head"])
    headers: dict[str, TensorFacts] = {}
    damage: tuple[Problem, ...] = ()
    try:
        headers = with_names_of_today(read_headers(folder))
    except ConfigError as error:
        damage = error.problems
    files = () if damage else _files_with_weights(folder)
    tokenizer_files = tokenizer_files_in(folder, config)
    in_safetensors = (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()
    in_bin = (folder / BIN_FILE).is_file() or (folder / BIN_INDEX_FILE).is_file()
    kind: Weights = "safetensors" if in_safetensors else "bin" if in_bin else "none"
    generation = read_json(folder / "generation_config.json") or {}
    return ModelFacts(
        **asked,
        folder=folder,
        config=config,
        weights=kind,
        weight_files=files,
        weights_bytes=sum((folder / file).stat().st_size for file in files if (folder / file).exists()) or None,
        headers=headers or None,
        damage=damage,
        dtype=_stored_dtype(headers) or _told_dtype(config),
        tokenizer_key=tokenizer_key(folder, tokenizer_files, config),
        tokenizer_files=tokenizer_files,
        # Whether the model or its tokenizer wants to run Python files that come with it.
        has_remote_code="auto_map" in config or "auto_map" in (read_json(folder / "tokenizer_config.json") or {}),
        eos_token_ids=_ids(generation.get("eos_token_id")) or _ids(config.get("eos_token_id")),
    )


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (SINGLE_FILE, INDEX_FILE, BIN_FILE, BIN_INDEX_FILE))


def _with_adapter(folder: Path, asked: dict[str, Any], environment: Mapping[str, str]) -> ModelFacts:
    """Of the model that an adapter is for, with the adapter's own tokenizer and labels where it has them."""
    fields = read_json(folder / ADAPTER_FILE) or {}
    told, where = fields.get("base_model_name_or_path"), str(folder)
    if not isinstance(told, str) or not told:
        hint = f"write the name of its base model into {ADAPTER_FILE} as base_model_name_or_path"
        raise bad_model("the adapter does not name its base model", hint, where)
    revision = fields.get("revision")
    more = {"revision": revision if isinstance(revision, str) else asked["revision"]}
    try:
        base = find_model(**{**asked, **more, "name": told}, environment=environment)
    except ConfigError as error:
        words = f"the adapter is for {one_line(told, 200)}"
        raise ConfigError(
            replace(one, message=f"{words}: {one.message}", where=where) for one in error.problems
        ) from None
    if base.adapter:
        hint = "merge that adapter into its base model first"
        raise bad_model("the base of this adapter is another adapter", hint, where)
    if base.folder is None:
        raise bad_model(f"the adapter is for {base.name}, which is not on this machine", remedies(base.name), where)
    # Beside an adapter where the model that it is for knows no such labels, tokens or positions.
    own = read_json(folder / "config.json") or {}
    config, vocabulary = own or base.config, base.config.get("vocab_size")
    generation = read_json(folder / "generation_config.json") or {}
    damage: tuple[Problem, ...] = ()
    if not (folder / ADAPTER_WEIGHTS).is_file():
        hint = "copy the adapter again; to convert a .bin adapter, save it again with peft"
        damage = (Problem(message=f"the adapter has no {ADAPTER_WEIGHTS}", key=MODEL_KEY, where=where, hint=hint),)
    else:
        try:
            read_file_header(folder / ADAPTER_WEIGHTS)
        except ConfigError as error:
            damage = error.problems
    files = tokenizer_files_in(folder, config)
    found = replace(
        base,
        name=asked["name"],
        revision=asked["revision"],
        config=config,
        stored_vocabulary=vocabulary if vocabulary != config.get("vocab_size") else None,
        damage=(*base.damage, *damage),
        eos_token_ids=_ids(generation.get("eos_token_id")) or base.eos_token_ids,
        adapter=Adapter(folder=folder, fields=fields, base=base, has_tokenizer=bool(files), config=own),
    )
    return replace(found, tokenizer_files=files, tokenizer_key=tokenizer_key(folder, files, config)) if files else found


def _catalogued(entry: CatalogueEntry, asked: dict[str, Any]) -> ModelFacts:
    refuse_other_kinds(entry.config, entry.name, asked["head"])
    return ModelFacts(
        **asked,
        folder=None,
        config=entry.config,
        weights="not here",
        weights_bytes=entry.weights_bytes,
        dtype=_told_dtype(entry.config),
        eos_token_ids=_ids(entry.config.get("eos_token_id")),
    )


def _files_with_weights(folder: Path) -> tuple[str, ...]:
    if found := weight_files(folder):
        return found
    if (folder / BIN_FILE).is_file():
        return (BIN_FILE,)
    index = (read_json(folder / BIN_INDEX_FILE) or {}).get("weight_map")
    return tuple(sorted(set(map(str, index.values())))) if isinstance(index, dict) else ()


def _stored_dtype(headers: Mapping[str, TensorFacts]) -> str | None:
    """The kind of number that takes the most bytes."""
    sizes: Counter[str] = Counter()
    for facts in headers.values():
        sizes[facts.dtype] += facts.size_bytes
    found = sizes.most_common(1)
    return DTYPES.get(found[0][0], found[0][0].lower()) if found else None


def _told_dtype(config: Mapping[str, Any]) -> str | None:
    """Newer files with towers say it where they describe the language model."""
    language = config.get("text_config")
    places = (config, language if isinstance(language, Mapping) else {})
    told = (place.get(name) for place in places for name in ("dtype", "torch_dtype"))
    return next((name for name in told if isinstance(name, str)), None)


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(number for number in values if type(number) is int and number >= 0)
