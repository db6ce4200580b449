"""The optimizer of a model whose training DeepSpeed splits: its state by parameter, as every run saves it.

DeepSpeed puts weights that train, in fp32, one behind the other into flat tensors, of which each process has a piece
and the state of that piece. Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19.8.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tui_trainer.config.sections import TrainingSection
from tui_trainer.training.optimizer import MASTER, SIXTEEN_BITS, RunOptimizer, master_of
from tui_trainer.training.sharded_tensors import InParts


@dataclass(frozen=True, slots=True)
class _Piece:
    """What this process has of a parameter: `count` numbers from `start` on, which are at `place` in `flat`."""

    flat: Tensor
    place: int
    start: int
    count: int

    def of(self, flat: Tensor) -> Tensor:
        """Of the weights, or of a state that lies as they do."""
        return flat.narrow(0, self.place, self.count)


class ZeroOptimizer(RunOptimizer):
    """As `RunOptimizer`, once `Zero` has given it the engine that makes the steps."""

    def __init__(self, model: nn.Module, training: TrainingSection, *, lr: float) -> None:
        super().__init__(model, training, lr=lr, has_masters=False)
        # A part has neither the shape nor, before it is gathered, any numbers of the whole.
        self._shapes = {name: parameter.shape for name, parameter in self._named.items()}

    def belongs_to(self, engine: Any, device: torch.device) -> None:
        """From now on the engine clips, updates and keeps the state. `device`: where whole tensors are gathered."""
        self._engine, self._device = engine, device
        zero = engine.optimizer
        self._piece_of: Callable[[nn.Parameter], _Piece]
        if engine.zero_optimization_stage() == 3:
            self._piece_of = partial(_piece_of_stage_3, zero, dist.get_rank())
        else:
            groups = {id(p): number for number, group in enumerate(zero.bit16_groups) for p in group}
            self._piece_of = partial(_piece_of_stage_2, zero, groups)

    def apply(
        self, loss_sum: Tensor, *, lr: float, max_grad_norm: float, scaler: torch.amp.GradScaler | None = None
    ) -> Tensor:
        """As in one process; the norm to clip to was given to the engine. A gradient that is not finite changes no
        weight, and one of a loss that is not finite is not finite (`Zero.backward`)."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        norm = math.inf if self._engine.optimizer.overflow else self._engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=loss_sum.device)

    def give_up_step(self) -> None:
        """The process ends with it: the others wait for what it does not send."""

    def tensors(self) -> Mapping[str, Tensor | InParts]:
        """As in one process. What is split is gathered when it is written, by all processes together."""
        found: dict[str, Tensor | InParts] = {}
        for name, parameter in self._named.items():
            if parameter.dtype in SIXTEEN_BITS:
                found[f"{name}.{MASTER}"] = self._split(name, parameter, "")
            for key, value in self._state_of(parameter).items():
                self._require_saveable(key)
                is_split = key in self.spec.shaped_keys
                found[f"{name}.{key}"] = self._split(name, parameter, key) if is_split else torch.as_tensor(value)
        return found

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        found: dict[str, Any] = self.torch.state.get(self._piece_of(parameter).flat, {})
        return found

    def _split(self, name: str, parameter: nn.Parameter, key: str) -> InParts:
        return InParts(self._shapes[name], torch.float32, partial(self._gathered, name, parameter, key))

    def _gathered(self, name: str, parameter: nn.Parameter, key: str) -> Tensor:
        """The whole of a state, or of the fp32 weights (no key), in each process."""
        piece, shape = self._piece_of(parameter), self._shapes[name]
        whole = torch.zeros(shape.numel(), dtype=torch.float32, device=self._device)
        mine = piece.of(self._state_of(parameter)[key] if key else piece.flat.detach())
        whole.narrow(0, piece.start, piece.count).copy_(mine)
        dist.all_reduce(whole)
        return whole.view(shape)

    def _load_parameter(self, name: str, state: dict[str, Tensor]) -> None:
        parameter, piece = self._named[name], self._piece_of(self._named[name])
        master = state.pop(MASTER, None)
        if parameter.dtype in SIXTEEN_BITS:
            self._take(piece, piece.flat, master_of(name, master, self._shapes[name]))
        self._require_whole(name, state, self._shapes[name])
        for key, value in state.items():
            begun = self.torch.state[piece.flat]
            if key not in self.spec.shaped_keys:
                # A flat tensor counts its steps once; a parameter that had no gradient has none of its own.
                kept = begun.setdefault(key, torch.zeros_like(value, device=piece.flat.device))
                torch.maximum(kept, value.to(kept.device), out=kept)
            else:
                self._take(piece, begun.setdefault(key, torch.zeros_like(piece.flat)), value)

    def _take(self, piece: _Piece, flat: Tensor, whole: Tensor) -> None:
        piece.of(flat.detach()).copy_(whole.flatten().narrow(0, piece.start, piece.count))


def _piece_of_stage_2(zero: Any, groups: dict[int, int], parameter: nn.Parameter) -> _Piece:
    """Of a group one behind the other; a process may have nothing of a parameter."""
    flat = zero.single_partition_of_fp32_groups[groups[id(parameter)]]
    mapping: Any = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return _Piece(flat, 0, 0, 0)
    mine, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
    return _Piece(flat, mine.start, whole.start, mine.numel)


def _piece_of_stage_3(zero: Any, rank: int, parameter: Any) -> _Piece:
    """An equal part of each parameter; those of the last processes may be filled up."""
    group, place, numbers = zero.grad_position[zero.get_param_id(parameter)]
    start = min(rank * numbers, parameter.ds_numel)
    return _Piece(zero.fp32_partitioned_groups_flat[group], place, start, min(numbers, parameter.ds_numel - start))
