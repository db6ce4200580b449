"""What names the model that a run starts from, and the one that it writes, so that no other is taken for it. No torch.

Small files are read whole. Of weights the header and samples of the numbers are read: 16 GB take a part of a second.
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

SAMPLES = 64  # of each file with weights, evenly spread
SAMPLE_BYTES = 64 * 1024
# Beside the spread ones, so that a tensor of its own that was changed is met however small it is.
TENSOR_BYTES = 4096
_WEIGHTS = frozenset({".safetensors", ".bin"})
_SMALL = frozenset({".json", ".jinja", ".txt", ".model"})
_WRITTEN_BY_PEOPLE = frozenset({"generation_config.json"})
# Between the fingerprint of a model and that of the adapter on it.
_BEHIND_BASE = "+"
_OF_THE_PLACE = frozenset({"base_model_name_or_path", "revision"})


def fingerprint(facts: ModelFacts, *, with_weights: bool) -> str:
    """XXH3-128 over config.json and the model's own code; `with_weights` over tokenizer and weights as well.

    Of a file with weights: name, size, the header with all names and shapes, the first 4 KiB of each tensor and 64
    blocks of 64 KiB. A file of up to 4 MiB is read whole. Raises ConfigError for a file that cannot be read.
    """
    import xxhash

    if facts.folder is None:
        return ""
    if facts.adapter:
        own = json.dumps(_adapter_fingerprints(facts.adapter.folder), sort_keys=True)
        before = fingerprint(facts.adapter.base, with_weights=with_weights)
        return f"{before}{_BEHIND_BASE}{xxhash.xxh3_128(own.encode()).hexdigest()}"
    digest = xxhash.xxh3_128()
    for name in _small_files(facts, facts.folder, with_weights):
        add_whole_file(digest, facts.folder, name)
    for name in facts.weight_files if with_weights else ():
        _add_weights(digest, facts.folder, name)
    return str(digest.hexdigest())


def file_fingerprints(folder: Path) -> dict[str, str]:
    """Of the files in a folder that say what its model computes, by name: weights as above, others whole.

    Left out is what people write: cards, how a text is sampled, and where the model of an adapter lies. Raises
    ConfigError and OSError for a file that cannot be read.
    """
    import xxhash

    found = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        digest = xxhash.xxh3_128()
        if path.suffix in _WEIGHTS:
            _add_weights(digest, folder, path.name)
        elif path.name == ADAPTER_FILE:
            kept = {name: value for name, value in (read_json(path) or {}).items() if name not in _OF_THE_PLACE}
            digest.update(json.dumps(kept, sort_keys=True).encode())
        elif path.suffix in _SMALL and path.name not in _WRITTEN_BY_PEOPLE:
            digest.update(path.read_bytes())
        else:
            continue
        found[path.name] = str(digest.hexdigest())
    return found


def base_part(key: str) -> str:
    """Of the fingerprint of an adapter with its model that of the model; any other as it is."""
    return key.partition(_BEHIND_BASE)[0]


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
        size = path.stat().st_size
        digest.update(f"{name}\0{size}\0".encode())
        with path.open("rb", buffering=0) as file:
            for start, length in _pieces(path, size):
                file.seek(start)
                digest.update(file.read(length))
    except OSError as error:
        raise bad_model(f"{name} cannot be read: {system_reason(error)}", where=str(folder)) from None


def _pieces(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """(start, length) of what is read: all of a small file, else its header and samples."""
    if size <= SAMPLES * SAMPLE_BYTES:
        yield 0, size
        return
    if path.suffix == ".safetensors":
        starts = tensor_starts(path)
        yield 0, min(starts, default=0)
        yield from ((start, TENSOR_BYTES) for start in starts)
    # The last block ends where the file does.
    yield from ((at * (size - SAMPLE_BYTES) // (SAMPLES - 1), SAMPLE_BYTES) for at in range(SAMPLES))
