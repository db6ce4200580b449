"""What every tuning method offers, and the one by which all weights of the model are trainable.

Files here are light to import: torch and peft only inside functions.
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
class InParts:
    """A tensor of a checkpoint that is in parts in memory, by what is asked of it before it is put together."""

    shape: torch.Size
    dtype: torch.dtype
    gather: Callable[[], Tensor]
    """The whole, in every process."""
    fill: Callable[[Tensor], None] | None = None
    """With a whole that every process has."""

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


class Method:
    """One way to choose what is trained, and to keep it. As it is here, all weights are trained, but for
    those of towers."""

    name = "full"
    weights_file = "model.safetensors"
    """What a checkpoint calls the file with the trained weights: the name under which libraries look for it."""
    index_file = "model.safetensors.index.json"
    """What they look for instead where the weights are in several files; empty where they read one only."""

    def apply(
        self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool, token_ids: Sequence[int] = ()
    ) -> Any:
        """The model to train: what is trainable requires a gradient, and nothing else does. Raises ConfigError.

        `autocast`: whether matmuls will be computed in 16 bits, whatever the weights are kept in.
        """
        freeze_towers(model)
        return model

    def weights(self, model: Any) -> dict[str, Tensor]:
        """The weights that a run changes, by their names in the file: the model's own, not copies. Here parameters and
        saved buffers; a weight that two places share appears once."""
        shared_once = {name: parameter.detach() for name, parameter in model.named_parameters()}
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return shared_once | {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}

    def saved(self, model: Any) -> dict[str, Tensor | InParts]:
        """The same as a checkpoint has them."""
        return dict(self.weights(model))

    def describe(self, model: Any, folder: Path) -> None:
        """Write what libraries need beside the weights to load them."""
        model.config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)

    def save_model(self, model: Any, folder: Path) -> None:
        """The final weights in the form that plain transformers or peft load."""
        model.save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)


METHOD = Method()
