"""What a checkpoint holds, and how it goes back: trained weights, optimizer, random state, position. No pickle.

Tensors go to the host and back one file of bounded size after the other: the machine needs no room for all of them.

The folder also has the configuration (of the model, or of the adapter) and the tokenizer, so transformers or peft load
it as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tui_trainer.errors import CheckpointError
from tui_trainer.models.files import shards
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.components import Components
from tui_trainer.training.optimizer import apart
from tui_trainer.training.position import Position
from tui_trainer.training.random_state import random_tensors, restore_random
from tui_trainer.training.sharded_tensors import InParts, fill, whole
from tui_trainer.training.zero import Zero

OPTIMIZER, RANDOM, POSITION = "optimizer.safetensors", "rng_state.safetensors", "position.json"


def save_checkpoint(
    checkpoints: Path, components: Components, position: Position, *, random: dict[str, Tensor] | None = None
) -> CheckpointFolder:
    """Write a checkpoint of this moment. Raises OSError or SafetensorError; then nothing is left behind.

    `random`: the state of the generators of all processes, where several train together.
    """
    folder = checkpoint_folder.begin(checkpoints, position.step)
    method = components.method
    try:
        files = _Files(folder, defers_errors=components.saves_together)
        _save_weights(components, files)
        _save_shards(components.optimizer.tensors(), files, OPTIMIZER, by_parameter=True)
        files.raise_error()
        save_file((random or random_tensors()) | components.mixed_precision.tensors(), folder / RANDOM)
        (folder / POSITION).write_text(json.dumps(position.to_json(), indent=1))
        method.describe(components.model, folder)
        _save_tokenizer(components.tokenizer, folder)
        return checkpoint_folder.commit(folder, position.step)
    except BaseException:
        checkpoint_folder.abandon(folder)
        raise


def take_part_in_save(components: Components) -> None:
    """Of a run whose state is split: give the process that writes what it has not."""
    nowhere = _Files(None)
    _save_weights(components, nowhere)
    _save_shards(components.optimizer.tensors(), nowhere, OPTIMIZER, by_parameter=True)


class _Files:
    """Where tensors are written. Without a folder they are only gathered; `defers_errors`: so they are after an error,
    as the other processes would wait for this one."""

    def __init__(self, folder: Path | None, *, defers_errors: bool = False) -> None:
        self.folder, self._defers_errors = folder, defers_errors
        self._error: Exception | None = None

    def write(self, tensors: dict[str, Tensor], name: str, metadata: dict[str, str] | None) -> None:
        if self.folder is None or self._error:
            return
        try:
            save_file(tensors, self.folder / name, metadata=metadata)
        except Exception as error:  # of the disk, or of safetensors
            if not self._defers_errors:
                raise
            self._error = error

    def raise_error(self) -> None:
        if self._error:
            raise self._error


def _save_weights(components: Components, out: _Files) -> None:
    method = components.method
    weights = components.weights()
    limit = shards.SHARD_BYTES if method.index_file else math.inf
    files = _save_shards(weights, out, method.weights_file, limit_bytes=limit, metadata={"format": "pt"})
    if len(files) > 1 and out.folder:
        index = shards.index_of(files, sum(tensor.nbytes for tensor in weights.values()))
        (out.folder / method.index_file).write_text(json.dumps(index, indent=1))


def _save_shards(
    tensors: Mapping[str, Tensor | InParts],
    out: _Files,
    single: str,
    *,
    by_parameter: bool = False,
    limit_bytes: float | None = None,
    metadata: dict[str, str] | None = None,
) -> dict[str, list[str]]:
    """Write tensors into one file or several, each copied to the host alone. Returns the names in each file.

    `by_parameter`: those whose names differ in their last part only are in one file.
    """
    limit_bytes = shards.SHARD_BYTES if limit_bytes is None else limit_bytes
    split = shards.split(_groups(tensors, by_parameter), limit_bytes)
    files = dict(zip(shards.file_names(single, len(split)), split, strict=True))
    for file, names in files.items():
        out.write(_on_host(tensors, names), file, metadata)
    return files


def _groups(tensors: Mapping[str, Tensor | InParts], by_parameter: bool) -> Iterator[tuple[list[str], int]]:
    ordered = sorted(tensors, key=_parameter_of) if by_parameter else list(tensors)
    for _, group in groupby(ordered, key=_parameter_of if by_parameter else None):
        names = list(group)
        yield names, sum(tensors[name].nbytes for name in names)


def _parameter_of(name: str) -> str:
    return name.rpartition(".")[0]


def _on_host(tensors: Mapping[str, Tensor | InParts], names: Iterable[str]) -> dict[str, Tensor]:
    return apart({name: whole(tensors[name]).cpu().contiguous() for name in names})


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower when a disk is full
        raise OSError(f"the tokenizer cannot be written: {error}") from error


def load_checkpoint(checkpoint: CheckpointFolder, components: Components) -> Position:
    """Put a checkpoint back, to the bit. Raises CheckpointError when it is not of this model."""
    load_weights(checkpoint.path, components)
    components.optimizer.load_shards(map(load_file, shards.files_of(checkpoint.path, OPTIMIZER)))
    random = load_file(checkpoint.path / RANDOM)
    restore_random(random, components.ranks.number)
    components.mixed_precision.load_tensors(random)
    position = Position.from_json(json.loads((checkpoint.path / POSITION).read_bytes()))
    if position.step != checkpoint.step:
        raise CheckpointError(f"{checkpoint.path.name} holds the position of step {position.step}")
    return position


def load_weights(folder: Path, components: Components) -> None:
    """Copy the weights of a checkpoint into the model. Raises CheckpointError when names or shapes differ."""
    weights = components.weights()
    odd = set(weights)
    for path in shards.files_of(folder, components.method.weights_file):
        saved = load_file(path)
        odd ^= saved.keys()
        # In one order: all processes fill what is split together.
        for name in sorted(saved.keys() & weights.keys()):
            if saved[name].shape != weights[name].shape:
                raise CheckpointError(f"{folder.name}: {name} has another shape than in this model")
            fill(weights[name], saved[name])
    if odd:
        raise CheckpointError(
            f"{folder.name} does not have the weights of this model: {min(odd)} and {len(odd) - 1} more differ"
        )
    if isinstance(components.replicas, Zero):
        components.replicas.weights_were_loaded()
