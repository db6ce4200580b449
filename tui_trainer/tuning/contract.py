"""What every tuning method offers. Files here are light to import: torch and peft only inside functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tui_trainer.config.sections import TuningSection

if TYPE_CHECKING:
    from torch import Tensor


class Method(Protocol):
    """One way to choose what is trained, and to keep it."""

    name: str
    weights_file: str
    """What a checkpoint calls the file with the trained weights: the name under which libraries look for it."""
    index_file: str
    """What they look for instead where the weights are in several files; empty where they read one only."""

    def apply(self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool) -> Any:
        """The model to train: what is trainable requires a gradient, and nothing else does. Raises ConfigError.

        `autocast`: whether matmuls will be computed in 16 bits, whatever the weights are kept in.
        """

    def weights(self, model: Any) -> dict[str, Tensor]:
        """The weights that a run changes, by their names in the file. They are the model's own, not copies."""

    def describe(self, model: Any, folder: Path) -> None:
        """Write what libraries need beside the weights to load them."""

    def save_model(self, model: Any, folder: Path) -> None:
        """The final weights in the form that plain transformers or peft load."""
