"""Fingerprints of the model that a run starts from and of the model that it writes, to notice if one was replaced.

Small files are hashed whole. Of weight files, the header and samples of the data are hashed: 16 GB take less than a
second.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tui_trainer.errors import system_reason
from tui_trainer.models.config_json import bad_model, read_json
from tui_trainer.models.facts import ADAPTER_FILE, BIN_INDEX_FILE, ModelFacts
from tui_trainer.models.files.weights import INDEX_FILE, tensor_starts
from tui_trainer.models.tokenizer import add_whole_file

SAMPLES = 64  # in each weight file, evenly spaced
SAMPLE_BYTES = 64 * 1024
# Read at the start of each tensor, so that a change to one small tensor is noticed.
TENSOR_BYTES = 4096
_WEIGHTS = frozenset({".safetensors", ".bin"})
_SMALL = frozenset({".json", ".jinja", ".txt", ".model"})
_WRITTEN_BY_PEOPLE = frozenset({"generation_config.json"})
# Separator between the fingerprint of a model and that of an adapter on it.
_SEPARATOR = "+"
_LOCATION_FIELDS = frozenset({"base_model_name_or_path", "revision"})


def fingerprint(facts: ModelFacts, *, with_weights: bool) -> str:
    """Return an XXH3-128 hash of config.json and the model's code; `with_weights` adds the tokenizer and the weights.

    Of a weight file, the hash covers its name and size, the header, the first 4 KiB of each tensor, and 64 blocks of 64
    KiB. Files of up to 4 MiB are hashed whole. Raise ConfigError if a file cannot be read."""
    import xxhash

    if facts.folder is None:
        return ""
    if facts.adapter:
        adapter_files = json.dumps(_adapter_fingerprints(facts.adapter.folder), sort_keys=True)
        base_fingerprint = fingerprint(facts.adapter.base, with_weights=with_weights)
        return f"{base_fingerprint}{_SEPARATOR}{xxhash.xxh3_128(adapter_files.encode()).hexdigest()}"
    digest = xxhash.xxh3_128()
    for name in _small_files(facts, facts.folder, with_weights):
        add_whole_file(digest, facts.folder, name)
    for name in facts.weight_files if with_weights else ():
        _add_weights(digest, facts.folder, name)
    return str(digest.hexdigest())


def file_fingerprints(folder: Path) -> dict[str, str]:
    """Return the hash of each file that affects the model's output, by name. Weight files are sampled as above.

    Model cards, sampling settings and the location of an adapter's base model are excluded, because users edit them.
    Raise ConfigError and OSError for a file that cannot be read."""
    import xxhash

    hash_by_name = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        digest = xxhash.xxh3_128()
        if path.suffix in _WEIGHTS:
            _add_weights(digest, folder, path.name)
        elif path.name == ADAPTER_FILE:
            fields = {name: value for name, value in (read_json(path) or {}).items() if name not in _LOCATION_FIELDS}
            digest.update(json.dumps(fields, sort_keys=True).encode())
        elif path.suffix in _SMALL and path.name not in _WRITTEN_BY_PEOPLE:
            digest.update(path.read_bytes())
        else:
            continue
        hash_by_name[path.name] = str(digest.hexdigest())
    return hash_by_name


def base_model_part(key: str) -> str:
    """Return the part of an adapter's fingerprint that belongs to its base model; any other fingerprint unchanged."""
    return key.partition(_SEPARATOR)[0]


def _adapter_fingerprints(folder: Path) -> dict[str, str]:
    try:
        return file_fingerprints(folder)
    except OSError as error:
        raise bad_model(f"the adapter cannot be read: {system_reason(error)}", where=str(folder)) from None


def _small_files(facts: ModelFacts, folder: Path, with_weights: bool) -> Iterator[str]:
    yield "config.json"
    if facts.has_remote_code:
        yield from sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.is_file())
    if with_weights:
        yield from sorted(facts.tokenizer_files)
        yield from (name for name in (INDEX_FILE, BIN_INDEX_FILE) if (folder / name).is_file())


def _add_weights(digest: Any, folder: Path, name: str) -> None:
    path = folder / name
    try:
        size_bytes = path.stat().st_size
        digest.update(f"{name}\0{size_bytes}\0".encode())
        with path.open("rb", buffering=0) as file:
            for start, length in _samples(path, size_bytes):
                file.seek(start)
                digest.update(file.read(length))
    except OSError as error:
        raise bad_model(f"{name} cannot be read: {system_reason(error)}", where=str(folder)) from None


def _samples(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the parts to hash: all of a small file, else its header and samples."""
    if size <= SAMPLES * SAMPLE_BYTES:
        yield 0, size
        return
    if path.suffix == ".safetensors":
        starts = tensor_starts(path)
        yield 0, min(starts, default=0)
        yield from ((start, TENSOR_BYTES) for start in starts)
    # The last block ends at the end of the file.
    yield from ((number * (size - SAMPLE_BYTES) // (SAMPLES - 1), SAMPLE_BYTES) for number in range(SAMPLES))
