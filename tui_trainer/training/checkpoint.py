"""What a checkpoint holds, and how it goes back: weights, optimiser, random state, position. No pickle.

The folder also has the model's configuration and tokenizer, so transformers loads it as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tui_trainer.errors import CheckpointError
from tui_trainer.training import checkpoint_folder
from tui_trainer.training.checkpoint_folder import CheckpointFolder
from tui_trainer.training.optimiser import load_optimiser_tensors, optimiser_tensors
from tui_trainer.training.position import Position

WEIGHTS, OPTIMISER, RANDOM, POSITION = (
    "model.safetensors",
    "optimiser.safetensors",
    "random.safetensors",
    "position.json",
)


def save_checkpoint(
    checkpoints: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimiser: Optimizer,
    position: Position,
) -> CheckpointFolder:
    """Write a checkpoint of this moment. Raises OSError or SafetensorError; then nothing is left behind."""
    folder = checkpoint_folder.begin(checkpoints, position.step)
    try:
        save_file(model_tensors(model), folder / WEIGHTS, metadata={"format": "pt"})
        save_file(optimiser_tensors(optimiser, model), folder / OPTIMISER)
        save_file(random_tensors(), folder / RANDOM)
        (folder / POSITION).write_text(json.dumps(position.to_json(), indent=1))
        model.config.save_pretrained(folder)
        _save_tokenizer(tokenizer, folder)
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


def load_checkpoint(checkpoint: CheckpointFolder, model: PreTrainedModel, optimiser: Optimizer) -> Position:
    """Put a checkpoint back, to the bit. Raises CheckpointError when it is not of this model."""
    load_weights(checkpoint.path, model)
    load_optimiser_tensors(optimiser, model, load_file(checkpoint.path / OPTIMISER))
    torch.set_rng_state(load_file(checkpoint.path / RANDOM)["cpu"])
    position = Position.from_json(json.loads((checkpoint.path / POSITION).read_bytes()))
    if position.step != checkpoint.step:
        raise CheckpointError(f"{checkpoint.path.name} holds the position of step {position.step}")
    return position


def load_weights(folder: Path, model: nn.Module) -> None:
    """Copy the weights of a checkpoint into the model. Raises CheckpointError when names or shapes differ."""
    saved, wanted = load_file(folder / WEIGHTS), _named_tensors(model)
    if saved.keys() != wanted.keys():
        odd = sorted(saved.keys() ^ wanted.keys())
        raise CheckpointError(
            f"{folder.name} does not have the weights of this model: {odd[0]} and {len(odd) - 1} more differ"
        )
    for name, tensor in wanted.items():
        if saved[name].shape != tensor.shape:
            raise CheckpointError(f"{folder.name}: {name} has another shape than in this model")
        tensor.copy_(saved[name])


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Weights and saved buffers by name, as safetensors wants them; a weight that two places share appears once."""
    return {name: tensor.contiguous() for name, tensor in _named_tensors(model).items()}


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    shared_once = {name: parameter.detach() for name, parameter in model.named_parameters()}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}
    return shared_once | buffers


def random_tensors() -> dict[str, Tensor]:
    """The state of torch's generator, which dropout draws from. Everything else draws from generators of its own."""
    return {"cpu": torch.get_rng_state()}
