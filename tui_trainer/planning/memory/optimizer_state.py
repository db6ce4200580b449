"""What each optimizer keeps beside the weights that train, in bytes: in memory, and in a checkpoint the same."""

from collections.abc import Iterator

from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import adapted, lora_parameters
from tui_trainer.optimizers import OPTIMIZERS
from tui_trainer.planning.training_setup import TrainingSetup

_FLOAT = 4


def state_bytes(shape: ModelShape, setup: TrainingSetup, trained: int) -> int:
    """Of `trained` parameters."""
    optimizer = OPTIMIZERS[setup.optim]
    if not optimizer.factored_state:
        return int(optimizer.state_bytes * trained)
    tensors = _adapters(shape, setup, trained) if setup.has_adapter else _weights(shape)
    return _FLOAT * sum(count * (rows + columns) for rows, columns, count in tensors)


def _weights(shape: ModelShape) -> Iterator[tuple[int, int, int]]:
    """(rows, columns, how many) of all weights; a vector has no columns. A head that is the embedding counts once."""
    for linear in shape.linears:
        if not (linear.is_head and shape.tied_embeddings):
            yield linear.outputs, linear.inputs, linear.count
        if linear.has_bias:
            yield linear.outputs, 0, linear.count
    for part in shape.parts:
        # Of a table that is known by its size alone, rows are as wide as the layers.
        rows = part.rows or (part.parameters_each // shape.hidden_size if part.is_embedding else 0)
        yield (rows, part.parameters_each // rows, part.count) if rows else (part.parameters_each, 0, part.count)


def _adapters(shape: ModelShape, setup: TrainingSetup, trained: int) -> Iterator[tuple[int, int, int]]:
    """Two matrices for each adapted layer; what else trains are modules that are saved, as wide as the layers."""
    for linear in adapted(shape, setup.lora_targets):
        yield setup.lora_rank, linear.inputs, linear.count
        yield linear.outputs, setup.lora_rank, linear.count
    if rest := trained - lora_parameters(shape, setup.lora_targets, setup.lora_rank):
        yield max(rest, 0) // shape.hidden_size, shape.hidden_size, 1
