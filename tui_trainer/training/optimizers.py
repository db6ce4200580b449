"""Which optimisers there are: how each is built, and what its state is made of.

A state that is not described here is refused before a run starts: it could not be saved, and so not be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import RunError

Build = Callable[[list[dict[str, Any]], float, TrainingSection], Optimizer]
Begin = Callable[[Optimizer, Tensor], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimiserKind:
    """`state_keys` are all names in a parameter's state; `needed_keys` must be there, `shaped_keys` have its shape.

    `number_keys` are plain Python numbers. `skips_on_device`: a fused kernel that takes `found_inf`. `begin` makes the
    state of a parameter before its first step, for optimisers that keep it in memory of their own: a saved state is
    copied into it.
    """

    name: str
    build: Build
    state_keys: frozenset[str]
    needed_keys: frozenset[str] = frozenset()
    shaped_keys: frozenset[str] = frozenset()
    number_keys: frozenset[str] = frozenset()
    skips_on_device: bool = False
    begin: Begin | None = None

    def placed(self, key: str, value: Tensor, parameter: Tensor) -> Any:
        """A saved value as the optimiser keeps it."""
        if key in self.number_keys:
            return value.item()
        return value.to(parameter.device)


def _fused_adamw(groups: list[dict[str, Any]], lr: float, training: TrainingSection) -> Optimizer:
    """Measured on a CPU: 7.7 ms fused, 21.5 ms as a loop, 28.9 ms foreach."""
    return torch.optim.AdamW(groups, lr=lr, **_adam_settings(training), fused=True)


def _adafactor(groups: list[dict[str, Any]], lr: float, _training: TrainingSection) -> Optimizer:
    """Without the scaling of steps by the weights, as Hugging Face's Trainer has it: AdamW's learning rates hold.

    torch's own always scales by their root mean square, at least 0.001: LoRA's second matrices, which begin at zero,
    then go a thousandth of the way. Measured on a small Llama, 80 steps at AdamW's rates, drop of the loss against
    AdamW's: 1.06 (all weights), 1.04 (LoRA) and 1.02 (from scratch); torch's 0.09, 0.00 and 0.09.
    """
    from transformers import Adafactor

    return Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False)


def _sgd(groups: list[dict[str, Any]], lr: float, _training: TrainingSection) -> Optimizer:
    """Without momentum: that it keeps no state is what it is taken for."""
    return torch.optim.SGD(groups, lr=lr, fused=True)


def _bitsandbytes(class_name: str) -> Build:
    def build(groups: list[dict[str, Any]], lr: float, training: TrainingSection) -> Optimizer:
        try:
            import bitsandbytes.optim as bnb
        except ImportError as error:
            raise RunError(f"training.optim needs bitsandbytes, which cannot be loaded: {error}") from None
        optimiser: Optimizer = getattr(bnb, class_name)(groups, lr=lr, **_adam_settings(training))
        return optimiser

    return build


def _begin_bitsandbytes(optimiser: Any, parameter: Tensor) -> dict[str, Any]:
    """What the first step would do. Paged states lie in memory that the GPU and the host share, and that only
    bitsandbytes gives out: as tensors of torch they would take the card's own. Source: `Optimizer8bit.step` and
    `Optimizer2State.init_state` in bitsandbytes/optim/optimizer.py of 0.50.
    """
    for group_index, group in enumerate(optimiser.param_groups):
        for index, other in enumerate(group["params"]):
            if other is parameter:
                optimiser.init_state(group, parameter, group_index, index)
                state: dict[str, Any] = optimiser.state[parameter]
                return state
    raise ValueError("the parameter is not one of this optimiser")


def _adam_settings(training: TrainingSection) -> dict[str, Any]:
    return {"betas": (training.adam_beta1, training.adam_beta2), "eps": training.adam_epsilon}


_ADAM_STATE = frozenset({"exp_avg", "exp_avg_sq", "step"})
_BNB_STATE = frozenset({"state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2", "step"})


def _of_bitsandbytes(name: str, class_name: str) -> OptimiserKind:
    return OptimiserKind(
        name=name,
        build=_bitsandbytes(class_name),
        state_keys=_BNB_STATE,
        needed_keys=frozenset({"state1", "state2", "step"}),
        shaped_keys=frozenset({"state1", "state2"}),
        number_keys=frozenset({"step"}),
        begin=_begin_bitsandbytes,
    )


OPTIMISERS: dict[str, OptimiserKind] = {
    kind.name: kind
    for kind in (
        OptimiserKind(
            name="adamw_torch_fused",
            build=_fused_adamw,
            state_keys=_ADAM_STATE,
            needed_keys=_ADAM_STATE,
            shaped_keys=_ADAM_STATE - {"step"},
            skips_on_device=True,
        ),
        OptimiserKind(
            name="adafactor",
            build=_adafactor,
            state_keys=frozenset({"step", "RMS", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"}),
            needed_keys=frozenset({"step", "RMS"}),
            number_keys=frozenset({"step"}),
        ),
        OptimiserKind(name="sgd", build=_sgd, state_keys=frozenset({"momentum_buffer"}), skips_on_device=True),
        _of_bitsandbytes("adamw_8bit", "AdamW8bit"),
        _of_bitsandbytes("paged_adamw_8bit", "PagedAdamW8bit"),
        _of_bitsandbytes("paged_adamw_32bit", "PagedAdamW32bit"),
    )
}
