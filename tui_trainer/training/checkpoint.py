"""What a checkpoint holds, and how it goes back: trained weights, optimizer, random state, position. No pickle.

Tensors go to the host one file of bounded size after the other and come back one by one: the machine needs no room for
all of them. Several processes with parts of a model write together, and the first makes a checkpoint of it.

The folder also has the configuration (of the model, or of the adapter) and the tokenizer, so transformers or peft load
it as it is: weights are whole in their files. The optimizer's state may be in parts (`checkpoint_tensors.py`).
"""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tui_trainer.errors import CheckpointError
from tui_trainer.models.files import shards
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import plan_bytes
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import PLAN, POSITION, CheckpointFolder
from tui_trainer.training.checkpoint_tensors import SavedTensors, TensorWriter, divided
from tui_trainer.training.components import Components
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.position import Position
from tui_trainer.training.random_state import random_tensors, restore_random
from tui_trainer.training.ranks import ALONE, sendable
from tui_trainer.training.sharded_tensors import fill

OPTIMIZER, RANDOM = "optimizer.safetensors", "rng_state.safetensors"


def save_checkpoint(
    checkpoints: Path,
    components: Components,
    position: Position,
    plan: Plan,
    *,
    random: dict[str, Tensor] | None = None,
) -> CheckpointFolder:
    """Write a checkpoint of this moment. Raises OSError or SafetensorError; then nothing is left behind.

    Of a model that is split all processes call this: each writes its part, the first the rest, and what comes of it,
    or goes wrong in one of them, does so in all. `plan`: as the run follows it now. `random`: the state of the
    generators of all processes.
    """
    ranks = components.ranks if components.together.splits_state else ALONE
    folder = ranks.by_first(partial(checkpoint_folder.begin, checkpoints, position.step))
    out = TensorWriter(folder, ranks)
    try:
        _save_weights(components, out)
        whole, parts = divided(components.optimizer.tensors())
        out.write_whole(whole, OPTIMIZER)
        out.write_parts(parts, OPTIMIZER)
        if ranks.is_first:
            out.attempt(partial(_save_rest, components, position, plan, folder, random or random_tensors()))
        described: dict[str, Any] = {}
        out.attempt(lambda: described.update(checkpoint_folder.describe(folder, out.files)))
        for error, found in ranks.gathered((sendable(out.error), described)):
            if error:
                raise error
            described |= found
        return ranks.by_first(partial(checkpoint_folder.commit, folder, position.step, described))
    except BaseException:
        if ranks.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _save_rest(components: Components, position: Position, plan: Plan, folder: Path, random: dict[str, Tensor]) -> None:
    save_file(random | components.mixed_precision.tensors(), folder / RANDOM)
    (folder / POSITION).write_text(json.dumps(position.to_json(), indent=1))
    (folder / PLAN).write_bytes(plan_bytes(plan))
    components.method.describe(components.model, folder)
    save_tokenizer(components.tokenizer, folder)


def _save_weights(components: Components, out: TensorWriter) -> None:
    """Whole, so that transformers and peft load them. Split ones are gathered for it, as in a forward pass."""
    method = components.method
    weights = components.weights()
    files = out.write_whole(weights, method.weights_file, in_one_file=not method.index_file, metadata={"format": "pt"})
    if len(files) > 1 and out.is_first:
        index = json.dumps(shards.index_of(files, sum(tensor.nbytes for tensor in weights.values())), indent=1)
        out.attempt(lambda: (out.folder / method.index_file).write_text(index))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Raises OSError."""
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower when a disk is full
        raise OSError(f"the tokenizer cannot be written: {error}") from error


def load_checkpoint(checkpoint: CheckpointFolder, components: Components) -> Position:
    """Put a checkpoint back, to the bit; each process reads what it needs. Raises CheckpointError when it is not of
    this model."""
    load_weights(checkpoint.path, components)
    with SavedTensors(shards.all_files_of(checkpoint.path, OPTIMIZER)) as saved:
        components.optimizer.load_shards(_optimizer_state(saved, components.optimizer))
    random = load_file(checkpoint.path / RANDOM)
    restore_random(random, components.ranks.number)
    components.mixed_precision.load_tensors(random)
    position = Position.from_json(json.loads((checkpoint.path / POSITION).read_bytes()))
    if position.step != checkpoint.step:
        raise CheckpointError(f"{checkpoint.path.name} holds the position of step {position.step}")
    return position


def _optimizer_state(saved: SavedTensors, optimizer: RunOptimizer) -> Iterator[dict[str, Tensor]]:
    """Of one parameter after the other."""
    for parameter, names in groupby(sorted(saved.names, key=_parameter_of), key=_parameter_of):
        yield {name: saved.like(name, optimizer.trained_by_name.get(parameter)) for name in names}


def _parameter_of(name: str) -> str:
    return name.rpartition(".")[0]


def load_weights(folder: Path, components: Components) -> None:
    """Copy the weights of a checkpoint into the model. Raises CheckpointError when names or shapes differ."""
    weights = components.weights()
    with SavedTensors(shards.all_files_of(folder, components.method.weights_file)) as saved:
        # In one order: all processes fill what is split together.
        for name in sorted(saved.names & weights.keys()):
            if saved.shape(name) != weights[name].shape:
                raise CheckpointError(f"{folder.name}: {name} has another shape than in this model")
            fill(weights[name], saved.like(name, weights[name]))
        odd = saved.names ^ weights.keys()
    if odd:
        raise CheckpointError(
            f"{folder.name} does not have the weights of this model: {min(odd)} and {len(odd) - 1} more differ"
        )
    components.together.weights_were_loaded()
