"""The interface of tuning methods, and the method that trains all weights.

Files of this room import torch and peft only inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import TuningSection
from tui_trainer.models.files import shards
from tui_trainer.models.towers import freeze_towers

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """A tensor of a checkpoint that is split in memory, with functions that join its parts and fill them."""

    shape: torch.Size
    dtype: torch.dtype
    gather: Callable[[], Tensor]
    """Function that returns the whole tensor, in every process."""
    fill: Callable[[Tensor], None] | None = None
    """Function that copies a whole tensor, which every process passes, into the parts."""

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class Method:
    """A way to choose which weights train and to save them. This class trains all weights except those of towers."""

    name = "full"
    weights_file = "model.safetensors"
    """Name of the file with the trained weights in a checkpoint. Libraries look for this name."""
    index_file = "model.safetensors.index.json"
    """Name of the index file for weights in several files; empty if libraries read only one file."""

    def apply(
        self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool, token_ids: Sequence[int] = ()
    ) -> Any:
        """Return the model to train, in which exactly the trainable weights require a gradient. Raises ConfigError.

        `autocast` says whether matmuls will use 16 bits, independent of the dtype of the weights.
        """
        freeze_towers(model)
        return model

    def weights(self, model: Any) -> dict[str, Tensor]:
        """Return the weights that a run changes (not copies), keyed by their names in the weights file.

        For this class they are all parameters and saved buffers. A weight with two names has one entry.
        """
        tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
        parameter_names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return tensors | {name: tensor for name, tensor in model.state_dict().items() if name not in parameter_names}

    def checkpoint_tensors(self, model: Any) -> dict[str, Tensor | SplitTensor]:
        """Return the tensors that a checkpoint saves for these weights, keyed by name."""
        return dict(self.weights(model))

    def describe(self, model: Any, folder: Path) -> None:
        """Write the configuration files that libraries need to load the weights."""
        model.config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)

    def save_model(self, model: Any, folder: Path) -> None:
        """Write the final weights, so that plain transformers or peft can load them."""
        model.save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)


METHOD = Method()
