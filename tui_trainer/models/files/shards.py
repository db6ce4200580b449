"""Tensors in files of bounded size: what is written is copied to the host first, one file at a time.

Names and index are those of transformers, which loads `model-00001-of-00003.safetensors` as it does a single file.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tui_trainer.units import GIB

SHARD_BYTES = 2 * GIB
"""Of one file. Tensors that stay together and are larger have a file of their own."""


def split(groups: Iterable[tuple[list[str], int]], limit_bytes: float) -> list[list[str]]:
    """Names by file, in their order. A group, `(names, bytes)`, is never divided."""
    files: list[list[str]] = [[]]
    filled = 0
    for names, count in groups:
        if files[-1] and filled + count > limit_bytes:
            files.append([])
            filled = 0
        files[-1] += names
        filled += count
    return files


def file_names(single: str, count: int) -> list[str]:
    """`model.safetensors`, or `model-00001-of-00002.safetensors` and so on."""
    stem, ending = single.rsplit(".", 1)
    return [single] if count == 1 else [f"{stem}-{n:05}-of-{count:05}.{ending}" for n in range(1, count + 1)]


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
