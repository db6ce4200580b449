"""What a checkpoint holds, and how it goes back: trained weights, optimiser, random state, position. No pickle.

The folder also has the configuration (of the model, or of the adapter) and the tokenizer, so transformers or peft load
it as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tui_trainer.errors import CheckpointError
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.learner import Learner
from tui_trainer.training.optimiser import apart
from tui_trainer.training.position import Position

OPTIMISER, RANDOM, POSITION = "optimiser.safetensors", "random.safetensors", "position.json"


def save_checkpoint(checkpoints: Path, learner: Learner, position: Position) -> CheckpointFolder:
    """Write a checkpoint of this moment. Raises OSError or SafetensorError; then nothing is left behind."""
    folder = checkpoint_folder.begin(checkpoints, position.step)
    method = learner.method
    try:
        weights = {name: tensor.contiguous() for name, tensor in method.weights(learner.model).items()}
        save_file(apart(weights), folder / method.weights_file, metadata={"format": "pt"})
        save_file(learner.updater.tensors(), folder / OPTIMISER)
        save_file(random_tensors() | learner.numbers.tensors(), folder / RANDOM)
        (folder / POSITION).write_text(json.dumps(position.to_json(), indent=1))
        method.describe(learner.model, folder)
        _save_tokenizer(learner.tokenizer, folder)
        return checkpoint_folder.commit(folder, position.step)
    except BaseException:
        checkpoint_folder.abandon(folder)
        raise


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower when a disk is full
        raise OSError(f"the tokenizer cannot be written: {error}") from error


def load_checkpoint(checkpoint: CheckpointFolder, learner: Learner) -> Position:
    """Put a checkpoint back, to the bit. Raises CheckpointError when it is not of this model."""
    load_weights(checkpoint.path, learner)
    learner.updater.load_tensors(load_file(checkpoint.path / OPTIMISER))
    random = load_file(checkpoint.path / RANDOM)
    _restore_random(random)
    learner.numbers.load_tensors(random)
    position = Position.from_json(json.loads((checkpoint.path / POSITION).read_bytes()))
    if position.step != checkpoint.step:
        raise CheckpointError(f"{checkpoint.path.name} holds the position of step {position.step}")
    return position


def load_weights(folder: Path, learner: Learner) -> None:
    """Copy the weights of a checkpoint into the model. Raises CheckpointError when names or shapes differ."""
    saved, wanted = load_file(folder / learner.method.weights_file), learner.method.weights(learner.model)
    if saved.keys() != wanted.keys():
        odd = sorted(saved.keys() ^ wanted.keys())
        raise CheckpointError(
            f"{folder.name} does not have the weights of this model: {odd[0]} and {len(odd) - 1} more differ"
        )
    for name, tensor in wanted.items():
        if saved[name].shape != tensor.shape:
            raise CheckpointError(f"{folder.name}: {name} has another shape than in this model")
        tensor.copy_(saved[name])


def random_tensors() -> dict[str, Tensor]:
    """The state of torch's generators, which dropout draws from. Everything else draws from generators of its own."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def _restore_random(tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors["cuda"])
