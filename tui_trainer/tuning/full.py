"""All weights of the model are trainable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import TuningSection
from tui_trainer.models.files import shards

if TYPE_CHECKING:
    from torch import Tensor


class Full:
    """See `tuning/contract.py` for what each part promises."""

    name = "full"
    weights_file = "model.safetensors"
    index_file = "model.safetensors.index.json"

    def apply(self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool) -> Any:
        return model

    def weights(self, model: Any) -> dict[str, Tensor]:
        """Parameters and saved buffers; a weight that two places share appears once."""
        shared_once = {name: parameter.detach() for name, parameter in model.named_parameters()}
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return shared_once | {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}

    def describe(self, model: Any, folder: Path) -> None:
        model.config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)

    def save_model(self, model: Any, folder: Path) -> None:
        model.save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)


METHOD = Full()
