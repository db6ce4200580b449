"""Divide tensors among files of limited size. Each file is copied to the host and written before the next one.

File names and index are those of transformers, which loads `model-00001-of-00003.safetensors` like a single file.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tui_trainer.units import GIB

SHARD_BYTES = 2 * GIB
"""Maximum size of a file, in bytes. A larger tensor gets a file of its own."""


def split(bytes_by_name: Mapping[str, int], single: str, limit_bytes: float) -> dict[str, list[str]]:
    """Return the tensors' names by file, given their bytes: `model.safetensors`, or `model-00001-of-00002.safetensors`
    and so on. Without tensors, return a single empty file."""
    from huggingface_hub import split_state_dict_into_shards_factory

    stem, ending = single.rsplit(".", 1)
    shards = split_state_dict_into_shards_factory(
        {name: (size,) for name, size in bytes_by_name.items()},
        get_storage_size=lambda size: size[0],
        filename_pattern=f"{stem}{{suffix}}.{ending}",
        max_shard_size=int(limit_bytes),
    )
    return shards.filename_to_tensors or {single: []}


def part_names(single: str, process: int, count: int) -> list[str]:
    """Return the names of the files with one process's parts of sharded tensors, as torch.distributed.checkpoint names
    them: `shard-00002-model-00001-of-00001.safetensors`."""
    stem, ending = single.rsplit(".", 1)
    return [f"shard-{process + 1:05}-{stem}-{number:05}-of-{count:05}.{ending}" for number in range(1, count + 1)]


def files_of(folder: Path, single: str) -> list[Path]:
    """Return the file of that name, or its shards in order. The manifest checks that none is missing."""
    stem, ending = single.rsplit(".", 1)
    whole_file = folder / single
    return [whole_file] if whole_file.is_file() else sorted(folder.glob(f"{stem}-*-of-*.{ending}"))


def all_files_of(folder: Path, single: str) -> list[Path]:
    """Return the files of `files_of`, and the files with parts of sharded tensors."""
    stem, ending = single.rsplit(".", 1)
    return [*files_of(folder, single), *sorted(folder.glob(f"shard-*-{stem}-*-of-*.{ending}"))]


def index_of(files: Mapping[str, Iterable[str]], total_bytes: int) -> dict[str, Any]:
    """Return the index with which transformers finds each tensor. `files` maps file names to names of tensors."""
    weight_map = {name: file for file, names in files.items() for name in names}
    return {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
