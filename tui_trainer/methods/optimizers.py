"""The optimizers, one row each: its names, libraries and state, and the function that builds it.

The choices of `training.optim`, the plan, the checklist and the run read the same row, so this module loads no torch. A
state that is not described here cannot be saved, and so is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from tui_trainer.errors import RunError
from tui_trainer.methods.learning_rates import ADAPTIVE_RATES, PLAIN_RATES, RatesOfSize

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class AdamSettings(Protocol):
    """Settings of `[training]` that functions which build optimizers read."""

    @property
    def adam_beta1(self) -> float: ...
    @property
    def adam_beta2(self) -> float: ...
    @property
    def adam_epsilon(self) -> float: ...


Build = Callable[[list[dict[str, Any]], float, AdamSettings], "Optimizer"]
Begin = Callable[[Any, "Tensor"], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSpec:
    """One optimizer, with what the plan, the checklist and the run need to know about it."""

    label: str
    """Name that is shown to users, such as `fused AdamW`."""
    help: str
    build: Build
    """Function that makes the optimizer from parameter groups, learning rate and `[training]`. Raises RunError."""
    modules: tuple[str, ...] = ()
    """Modules other than torch that are imported to build the optimizer."""
    aliases: tuple[str, ...] = ()
    """Names of the optimizer in other tools."""
    learning_rates: tuple[RatesOfSize, ...]
    learning_rate_reason: str = ""
    library: str = ""
    """Optional package that contains the optimizer; empty if none is needed."""
    needs_gpu: bool = False
    compiles: bool = False
    """Whether the update is compiled at first use: by triton on a GPU, by a C++ compiler on a CPU."""
    smaller: tuple[str, ...] = ()
    """Names of optimizers that learn about as well with a smaller state, the most similar first."""
    warning: str = ""
    """Reason to prefer another optimizer for transformers; empty if there is none."""
    cpu_note: str = ""

    state_bytes: float = 0.0
    """Bytes of state for each trained parameter."""
    hidden_state_bytes: float | None = None
    """Bytes of state per parameter of hidden matrices, if their update differs; such a model must train all weights."""
    factored_state: bool = False
    """Whether the state of a matrix is one fp32 number for each row and column. A vector has one for each parameter."""
    state_words: str = ""
    update_bytes: float = 0.0
    """Temporary bytes of an update on a GPU, for each trained parameter."""

    state_keys: frozenset[str]
    """All names that the state of a parameter may have."""
    needed_keys: frozenset[str] = frozenset()
    """Names that the state of a parameter must have."""
    hidden_keys: frozenset[str] = frozenset()
    """Names that the state of a hidden matrix must have instead."""
    shaped_keys: frozenset[str] = frozenset()
    """Names of tensors in the state that have the shape of the parameter."""
    number_keys: frozenset[str] = frozenset()
    """Names of plain Python numbers in the state."""
    host_keys: frozenset[str] = frozenset()
    """Names of tensors in the state that are on the host: an update reads their values without waiting for a device."""
    begin: Begin | None = None
    """Function that allocates a parameter's state, into which a saved one is copied; None if plain tensors suffice."""

    def restore_state_value(self, key: str, value: Tensor, parameter: Tensor) -> Any:
        """Return a saved value of the state in the form, and on the device, that the optimizer uses."""
        if key in self.number_keys:
            return value.item()
        return value.to("cpu" if key in self.host_keys else parameter.device)


def _adam(training: AdamSettings) -> dict[str, Any]:
    return {"betas": (training.adam_beta1, training.adam_beta2), "eps": training.adam_epsilon}


def _fused_adamw(groups: list[dict[str, Any]], lr: float, training: AdamSettings) -> Optimizer:
    import torch

    return torch.optim.AdamW(groups, lr=lr, **_adam(training), fused=True)


def _adamw(groups: list[dict[str, Any]], lr: float, training: AdamSettings) -> Optimizer:
    """Build AdamW with torch's own choice: `foreach` on a GPU, a loop over the weights on a CPU.

    `fused=False` would choose the loop everywhere."""
    import torch

    return torch.optim.AdamW(groups, lr=lr, **_adam(training))


def _adafactor(groups: list[dict[str, Any]], lr: float, _training: AdamSettings) -> Optimizer:
    """Build Adafactor without scaling updates by the weights, as in Hugging Face's Trainer, so that AdamW's rates suit.

    torch's Adafactor scales updates by the root mean square of the weights, at least 0.001, so that LoRA's B matrices,
    which begin at zero, hardly change. Measured on a small Llama, 80 steps at AdamW's rates, drop of the loss divided
    by AdamW's: 1.06 (all weights), 1.04 (LoRA) and 1.02 (from scratch); torch's Adafactor 0.09, 0.00 and 0.09."""
    from transformers import Adafactor

    return Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False)


def _sgd(groups: list[dict[str, Any]], lr: float, _training: AdamSettings) -> Optimizer:
    """Build SGD without momentum, because users choose SGD to have no state.

    The fused version does not support sharded weights: "aten._fused_sgd_.default does not have a sharding strategy"
    (torch 2.15)."""
    import torch
    from torch.distributed.tensor import DTensor

    is_split = any(isinstance(parameter, DTensor) for group in groups for parameter in group["params"])
    return torch.optim.SGD(groups, lr=lr, fused=not is_split)


def _muon(groups: list[dict[str, Any]], lr: float, training: AdamSettings) -> Optimizer:
    """Build one optimizer that uses Muon for hidden matrices and AdamW for all other weights.

    Muon's updates are scaled to the size of AdamW's (root mean square 0.2), so that one learning rate and weight decay
    suit both. Sources: Keller Jordan, kellerjordan.github.io/posts/muon, 2024; Liu et al., "Muon is Scalable for LLM
    Training", arXiv:2502.16982, section 2.2."""
    import torch

    class Muon(torch.optim.Optimizer):
        def __init__(self) -> None:
            hidden_groups = [group for group in groups if group.get(HIDDEN)]
            other_groups = [group for group in groups if not group.get(HIDDEN)]
            # Both optimizers share one table of states.
            self.parts: list[torch.optim.Optimizer] = [
                torch.optim.Muon(hidden_groups, lr=lr, adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW(other_groups, lr=lr, **_adam(training), fused=True),
            ]
            super().__init__([group for part in self.parts for group in part.param_groups], {})
            for part in self.parts:
                part.state = self.state

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for part in self.parts:
                part.step()

    if not any(group.get(HIDDEN) and group["params"] for group in groups):
        raise RunError(f"{MUON} is for the weight matrices of layers, but none of them is trainable; use {DEFAULT}")
    return Muon()


def _by_library(module: str, class_name: str) -> Build:
    """Return a build function for an optimizer class of another library, which it imports when it is called."""

    def build(groups: list[dict[str, Any]], lr: float, training: AdamSettings) -> Optimizer:
        try:
            library_module = import_module(module)
        except ImportError as error:
            library = module.partition(".")[0]
            raise RunError(f"training.optim needs {library}, which cannot be loaded: {error}") from None
        optimizer: Optimizer = getattr(library_module, class_name)(groups, lr=lr, **_adam(training))
        return optimizer

    return build


def _begin_bitsandbytes(optimizer: Any, parameter: Tensor) -> dict[str, Any]:
    """Allocate the state of a parameter as the optimizer's first step does.

    Paged states are in memory that GPU and host share, which only bitsandbytes can allocate. Source:
    `Optimizer8bit.step` and `Optimizer2State.init_state` in bitsandbytes/optim/optimizer.py of 0.50."""
    for group_index, group in enumerate(optimizer.param_groups):
        for index, candidate in enumerate(group["params"]):
            if candidate is parameter:
                optimizer.init_state(group, parameter, group_index, index)
                state: dict[str, Any] = optimizer.state[parameter]
                return state
    raise ValueError("the parameter does not belong to this optimizer")


def _begin_torchao(optimizer: Any, parameter: Tensor) -> dict[str, Any]:
    """Allocate the state of a parameter as `_AdamBase.step` in torchao/optim/adam.py of 0.18 does."""
    import torch

    state: dict[str, Any] = optimizer.state[parameter]
    state["step"] = torch.tensor(0.0)
    for key, is_signed in (("exp_avg", True), ("exp_avg_sq", False)):
        state[key] = optimizer._new_buffer(parameter, is_signed)
    return state


OPTIMIZER_KEY = "training.optim"
DEFAULT, ADAFACTOR, MUON = "adamw_torch_fused", "adafactor", "muon"
HIDDEN = "is_hidden"
"""Key of a parameter group: whether it has hidden matrices (those inside layers)."""
_MOMENTS = frozenset({"exp_avg", "exp_avg_sq"})
_OF_TORCH = partial(
    OptimizerSpec,
    learning_rates=ADAPTIVE_RATES,
    state_bytes=8.0,
    state_words="two moments",
    state_keys=_MOMENTS | {"step"},
    needed_keys=_MOMENTS | {"step"},
    shaped_keys=_MOMENTS,
)
_OF_TORCHAO = partial(
    OptimizerSpec,
    modules=("torchao.optim",),
    learning_rates=ADAPTIVE_RATES,
    library="torchao",
    compiles=True,
    # Tensors with fewer than 4,096 numbers, or not divisible into blocks, have fp32 moments.
    state_keys=_MOMENTS | {"step"} | {f"{key}_{part}" for key in _MOMENTS for part in ("codes", "scale", "qmap")},
    needed_keys=frozenset({"step"}),
    shaped_keys=_MOMENTS,
    begin=_begin_torchao,
)
_OF_BITSANDBYTES = partial(
    OptimizerSpec,
    modules=("bitsandbytes.optim",),
    learning_rates=ADAPTIVE_RATES,
    library="bitsandbytes",
    needs_gpu=True,
    smaller=(ADAFACTOR,),
    state_keys=frozenset({"state1", "state2", "qmap1", "qmap2", "absmax1", "absmax2", "step"}),
    needed_keys=frozenset({"state1", "state2", "step"}),
    shaped_keys=frozenset({"state1", "state2"}),
    number_keys=frozenset({"step"}),
    begin=_begin_bitsandbytes,
)
# bitsandbytes 0.50 and torchao 0.18: two bytes per parameter, and two fp32 scales for each block of 256.
_IN_8_BITS = 2 + 2 * 4 / 256
# torchao 0.18: two halves of a byte per parameter, and two fp32 scales for each block of 128.
_IN_4_BITS = 1 + 2 * 4 / 128
OPTIMIZERS: dict[str, OptimizerSpec] = {
    DEFAULT: _OF_TORCH(
        label="fused AdamW",
        help="AdamW in one kernel, with two fp32 moments",
        build=_fused_adamw,
        aliases=("adamw", "adamw_hf", "adamw_apex_fused"),
        smaller=("adamw_8bit", "adamw_torch_8bit", ADAFACTOR),
        cpu_note="an update on a CPU took 7.7 ms fused, 21.5 ms in a loop, and 28.9 ms with foreach",
    ),
    "adamw_torch": _OF_TORCH(
        label="AdamW",
        help="AdamW that is not fused: one pass over the weights per operation",
        build=_adamw,
        smaller=(DEFAULT, "adamw_8bit", "adamw_torch_8bit", ADAFACTOR),
        warning="the fused version computes the same update in one pass over the weights",
        # torch 2.15, `_multi_tensor_adam` in torch/optim/adam.py: all roots of second moments exist at once.
        update_bytes=4.0,
        host_keys=frozenset({"step"}),
    ),
    ADAFACTOR: OptimizerSpec(
        label="Adafactor",
        help="its state has one number per row and column of a matrix instead of two per weight",
        build=_adafactor,
        modules=("transformers.optimization",),
        learning_rates=ADAPTIVE_RATES,
        learning_rate_reason="Adafactor uses AdamW's rates, because its steps are not scaled by the weights",
        factored_state=True,
        state_keys=frozenset({"step", "RMS", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"}),
        needed_keys=frozenset({"step", "RMS"}),
        number_keys=frozenset({"step"}),
    ),
    MUON: OptimizerSpec(
        label="Muon",
        help="for weight matrices of layers, with one moment; AdamW for embeddings, heads, norms, biases and experts",
        build=_muon,
        learning_rates=ADAPTIVE_RATES,
        learning_rate_reason="Muon uses AdamW's rates, because its steps are scaled to the same size",
        smaller=("adamw_8bit", "adamw_torch_8bit", ADAFACTOR),
        cpu_note="each step does 15 bf16 matrix products per weight matrix, which is slow on a CPU without bf16",
        state_bytes=8.0,
        hidden_state_bytes=4.0,
        state_words="one moment for hidden matrices, two for the rest",
        state_keys=_MOMENTS | {"step", "momentum_buffer"},
        needed_keys=_MOMENTS | {"step"},
        hidden_keys=frozenset({"momentum_buffer"}),
        shaped_keys=_MOMENTS | {"momentum_buffer"},
    ),
    "sgd": OptimizerSpec(
        label="SGD",
        help="no momentum and no optimizer state",
        build=_sgd,
        learning_rates=PLAIN_RATES,
        learning_rate_reason="an SGD step is as long as the clipped gradient, whatever the number of weights",
        # Transformers' gradients have heavy tails, for which one step size for all weights is too large or too small
        # (Zhang et al., "Why are Adaptive Methods Good for Attention Models?", arXiv:1912.03194).
        warning="one step size for all weights works poorly for attention layers",
        state_keys=frozenset({"momentum_buffer"}),
    ),
    "adamw_8bit": _OF_BITSANDBYTES(
        label="8-bit AdamW",
        help="AdamW with one byte per moment",
        build=_by_library("bitsandbytes.optim", "AdamW8bit"),
        state_bytes=_IN_8_BITS,
        aliases=("adamw_bnb_8bit",),
    ),
    "adamw_torch_8bit": _OF_TORCHAO(
        label="torchao's 8-bit AdamW",
        help="AdamW with one byte per moment, by torchao, with a compiled step",
        build=_by_library("torchao.optim", "AdamW8bit"),
        state_bytes=_IN_8_BITS,
        smaller=("adamw_torch_4bit", ADAFACTOR),
    ),
    "adamw_torch_4bit": _OF_TORCHAO(
        label="torchao's 4-bit AdamW",
        help="AdamW with half a byte per moment, by torchao, with a compiled step",
        build=_by_library("torchao.optim", "AdamW4bit"),
        state_bytes=_IN_4_BITS,
        smaller=(ADAFACTOR,),
    ),
    "paged_adamw_8bit": _OF_BITSANDBYTES(
        label="paged 8-bit AdamW",
        help="8-bit AdamW whose state moves to host memory when GPU memory is full",
        build=_by_library("bitsandbytes.optim", "PagedAdamW8bit"),
        state_bytes=_IN_8_BITS,
    ),
    "paged_adamw_32bit": _OF_BITSANDBYTES(
        label="paged AdamW",
        help="fp32 AdamW whose state moves to host memory when GPU memory is full",
        build=_by_library("bitsandbytes.optim", "PagedAdamW32bit"),
        state_bytes=8.0,
        aliases=("paged_adamw",),
    ),
}
