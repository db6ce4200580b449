"""Tensors in files of bounded size: what is written is copied to the host first, one file at a time.

Names and index are those of transformers, which loads `model-00001-of-00003.safetensors` as it does a single file.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tui_trainer.units import GIB

SHARD_BYTES = 2 * GIB
"""Of one file. A larger tensor has a file of its own."""


def split(sizes: Mapping[str, int], single: str, limit_bytes: float) -> dict[str, list[str]]:
    """The tensors' names by file, from their bytes: `model.safetensors`, or `model-00001-of-00002.safetensors` and so
    on. One file of nothing where there are none.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    stem, ending = single.rsplit(".", 1)
    made = split_state_dict_into_shards_factory(
        {name: (size,) for name, size in sizes.items()},
        get_storage_size=lambda one: one[0],
        filename_pattern=f"{stem}{{suffix}}.{ending}",
        max_shard_size=int(limit_bytes),
    )
    return made.filename_to_tensors or {single: []}


def part_names(single: str, process: int, count: int) -> list[str]:
    """Of files with what one process has of tensors that are split, as torch.distributed.checkpoint names them:
    `shard-00002-model-00001-of-00001.safetensors`."""
    stem, ending = single.rsplit(".", 1)
    return [f"shard-{process + 1:05}-{stem}-{n:05}-of-{count:05}.{ending}" for n in range(1, count + 1)]


def files_of(folder: Path, single: str) -> list[Path]:
    """The file of that name, or its shards in their order. That they are all there is the manifest's matter."""
    stem, ending = single.rsplit(".", 1)
    whole = folder / single
    return [whole] if whole.is_file() else sorted(folder.glob(f"{stem}-*-of-*.{ending}"))


def all_files_of(folder: Path, single: str) -> list[Path]:
    """These, and those with parts."""
    stem, ending = single.rsplit(".", 1)
    return [*files_of(folder, single), *sorted(folder.glob(f"shard-*-{stem}-*-of-*.{ending}"))]


def index_of(files: Mapping[str, Iterable[str]], total_bytes: int) -> dict[str, Any]:
    """What transformers reads beside shards: which file has which tensor. `files`: the tensors' names by file."""
    return {
        "metadata": {"total_size": total_bytes},
        "weight_map": {name: file for file, names in files.items() for name in names},
    }
