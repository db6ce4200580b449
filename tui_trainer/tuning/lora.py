"""Small matrices beside frozen weights (LoRA, arXiv:2106.09685), by peft; the adapter loads with plain peft.

Adapters are fp32, whatever the frozen weights are: an update below a 512th of a 16-bit weight is lost. Saved modules
are as the rest of the model, which takes their results; in 16 bits the optimiser has fp32 copies of them.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import TuningSection

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTER = "default"


class Lora:
    """See `tuning/contract.py` for what each part promises."""

    name = "lora"
    title = "LoRA"
    weights_file = "adapter_model.safetensors"

    def apply(self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool) -> Any:
        import torch
        from peft import LoraConfig, get_peft_model

        names = names_in(tuning.target_modules)
        saved = names_in(tuning.modules_to_save)
        # The adapters' random values depend on the seed alone, not on what was drawn while the model was made.
        torch.manual_seed(seed)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=tuning.r,
            lora_alpha=_whole(tuning.lora_alpha),  # type: ignore[arg-type]  # peft takes any number
            lora_dropout=tuning.lora_dropout,
            target_modules="all-linear" if names == ("all-linear",) else list(names),
            modules_to_save=list(saved) or None,
            use_rslora=tuning.use_rslora,
            use_dora=tuning.use_dora,
            # Head and embedding that were one weight stay one: otherwise a merge drops what one of them learnt.
            ensure_weight_tying=bool(saved) and bool(getattr(model.config, "tie_word_embeddings", False)),
        )
        with warnings.catch_warnings():
            # peft asks transformers by a name that is going to be dropped, and tells that GPT-2's layers lie crosswise.
            warnings.simplefilter("ignore")
            adapted: Any = get_peft_model(model, config)
        spared = _saved_modules(adapted)
        for parameter in adapted.parameters():
            if parameter.requires_grad and parameter not in spared and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        if autocast:
            _without_input_casts(adapted)
        return adapted

    def weights(self, model: Any) -> dict[str, Tensor]:
        """The adapter under peft's names. Where head and embedding are one weight, both names have it."""
        from peft.utils import get_peft_model_state_dict

        found: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
        return {name: tensor.detach() for name, tensor in found.items()}

    def describe(self, model: Any, folder: Path) -> None:
        model.peft_config[_ADAPTER].save_pretrained(folder)

    def save_model(self, model: Any, folder: Path) -> None:
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)


def _saved_modules(adapted: Any) -> set[Any]:
    from peft.utils import ModulesToSaveWrapper

    wrappers = (module for module in adapted.modules() if isinstance(module, ModulesToSaveWrapper))
    return {parameter for wrapper in wrappers for parameter in wrapper.parameters()}


def _without_input_casts(adapted: Any) -> None:
    """peft casts the input of each adapter to fp32, which autocast then undoes: a second copy of every input is kept.

    Without it the peak was 13 % lower (fake tensors, Llama shape of 1.2B); peft.helpers has this as a context manager.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in adapted.modules():
        if isinstance(module, BaseTunerLayer):
            setattr(module, "cast_input_dtype_enabled", False)  # noqa: B010  # set by each kind of layer, not declared


def _whole(number: float) -> float:
    """16.0 as 16: adapter_config.json is read by tools that want a whole number."""
    return int(number) if math.isfinite(number) and number == int(number) else number


METHOD = Lora()
