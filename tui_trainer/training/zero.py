"""Train one model in several processes with DeepSpeed. ZeRO 2 shards gradients and optimizer state, ZeRO 3 also the
weights. Either may keep its shards on the host (`distributed.cpu_offload`).

DeepSpeed gathers, sums, clips and updates. Losses, steps and checkpoints are the same as in runs without DeepSpeed.

Source: deepspeed/runtime/engine.py and zero/ of DeepSpeed 0.19.8.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import RunError
from tui_trainer.losses.named_losses import LossSum
from tui_trainer.planning.memory.zero import BUCKET_NUMBERS
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.processes import INSTALL_DEEPSPEED, ZERO_STAGES
from tui_trainer.training.clock import Communication
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.optimizer import MASTER, SIXTEEN_BITS, RunOptimizer, master_of
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.process import replaced
from tui_trainer.training.replicas import LossModule
from tui_trainer.tuning.full import Method, SplitTensor

# The optimizer of DeepSpeed. Checkpoints have its state for each parameter, as in runs without DeepSpeed.
#
# DeepSpeed concatenates trained weights in fp32 to flat tensors. Each process has a piece of each flat tensor, and the
# optimizer state of that piece. Source: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19.8.


@dataclass(frozen=True, slots=True)
class _GradientPiece:
    """This process's piece of a parameter: its `count` elements from index `start` on, at `offset` of `flat`."""

    flat: Tensor
    offset: int
    start: int
    count: int

    def of(self, flat: Tensor) -> Tensor:
        """Return this piece as a view of `flat`: flat weights, or optimizer state with the same layout."""
        return flat.narrow(0, self.offset, self.count)


class ZeroOptimizer(RunOptimizer):
    """A `RunOptimizer` whose updates are made by DeepSpeed's engine.

    The engine is built from this optimizer, so `Zero` passes it afterwards (`attach_engine`), before the first use.
    """

    def __init__(self, model: nn.Module, training: TrainingSection, *, lr: float) -> None:
        super().__init__(model, training, lr=lr, has_masters=False)
        # The shapes are kept because a sharded parameter does not have the shape of the whole one.
        self._shapes = {name: parameter.shape for name, parameter in self._named.items()}

    def attach_engine(self, engine: Any, device: torch.device) -> None:
        """Let the engine clip gradients, update weights and keep the state. Whole tensors are gathered on `device`."""
        self._engine, self._device = engine, device
        zero_optimizer = engine.optimizer
        self._piece_of: Callable[[nn.Parameter], _GradientPiece]
        if engine.zero_optimization_stage() == 3:
            self._piece_of = partial(_piece_of_stage_3, zero_optimizer, dist.get_rank())
        else:
            group_numbers = {id(p): number for number, group in enumerate(zero_optimizer.bit16_groups) for p in group}
            self._piece_of = partial(_piece_of_stage_2, zero_optimizer, group_numbers)

    def apply(
        self, loss_sum: Tensor, *, lr: float, max_grad_norm: float, scaler: torch.amp.GradScaler | None = None
    ) -> Tensor:
        """Update the weights, and return the gradient norm. The engine clips to `gradient_clipping` of its settings.

        If a gradient is not finite, no weight changes. `Zero.backward` makes gradients not finite if the loss is not.
        """
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        norm = math.inf if self._engine.optimizer.overflow else self._engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=loss_sum.device)

    def discard_step(self) -> None:
        """Do nothing: an interrupted step ends the process, because other processes wait for its gradients."""

    def tensors(self) -> Mapping[str, Tensor | SplitTensor]:
        """Return the state with the names of `RunOptimizer`. Sharded tensors are gathered when they are written."""
        state: dict[str, Tensor | SplitTensor] = {}
        for name, parameter in self._named.items():
            if parameter.dtype in SIXTEEN_BITS:
                state[f"{name}.{MASTER}"] = self._split(name, parameter, "")
            for key, value in self._state_of(parameter).items():
                self._require_saveable(key)
                is_split = key in self.spec.shaped_keys
                state[f"{name}.{key}"] = self._split(name, parameter, key) if is_split else torch.as_tensor(value)
        return state

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = self.torch_optimizer.state.get(self._piece_of(parameter).flat, {})
        return state

    def _split(self, name: str, parameter: nn.Parameter, key: str) -> SplitTensor:
        return SplitTensor(self._shapes[name], torch.float32, partial(self._gathered, name, parameter, key))

    def _gathered(self, name: str, parameter: nn.Parameter, key: str) -> Tensor:
        """Return, in every process, the whole state tensor `key` of a parameter; its fp32 weights if `key` is empty."""
        piece, shape = self._piece_of(parameter), self._shapes[name]
        whole_tensor = torch.zeros(shape.numel(), dtype=torch.float32, device=self._device)
        values = piece.of(self._state_of(parameter)[key] if key else piece.flat.detach())
        whole_tensor.narrow(0, piece.start, piece.count).copy_(values)
        dist.all_reduce(whole_tensor)
        return whole_tensor.view(shape)

    def _load_parameter(self, name: str, state: dict[str, Tensor]) -> None:
        parameter, piece = self._named[name], self._piece_of(self._named[name])
        master = state.pop(MASTER, None)
        if parameter.dtype in SIXTEEN_BITS:
            self._take(piece, piece.flat, master_of(name, master, self._shapes[name]))
        self._require_whole(name, state, self._shapes[name])
        for key, value in state.items():
            piece_state = self.torch_optimizer.state[piece.flat]
            if key not in self.spec.shaped_keys:
                # A flat tensor has one step count, but parameters without gradients were saved with lower counts.
                steps = piece_state.setdefault(key, torch.zeros_like(value, device=piece.flat.device))
                torch.maximum(steps, value.to(steps.device), out=steps)
            else:
                self._take(piece, piece_state.setdefault(key, torch.zeros_like(piece.flat)), value)

    def _take(self, piece: _GradientPiece, flat: Tensor, whole: Tensor) -> None:
        piece.of(flat.detach()).copy_(whole.flatten().narrow(0, piece.start, piece.count))


def _piece_of_stage_2(zero: Any, groups: dict[int, int], parameter: nn.Parameter) -> _GradientPiece:
    """Return this process's piece of a parameter in ZeRO 2, which concatenates parameters. It may be empty."""
    flat = zero.single_partition_of_fp32_groups[groups[id(parameter)]]
    mapping: Any = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return _GradientPiece(flat, 0, 0, 0)
    fp32_address, weight_address = mapping.hp_fragment_address, mapping.lp_fragment_address
    return _GradientPiece(flat, fp32_address.start, weight_address.start, fp32_address.numel)


def _piece_of_stage_3(zero: Any, rank: int, parameter: Any) -> _GradientPiece:
    """Return this process's piece of a parameter in ZeRO 3, which splits each parameter equally and pads the end."""
    group, offset, partition_size = zero.grad_position[zero.get_param_id(parameter)]
    start = min(rank * partition_size, parameter.ds_numel)
    count = min(partition_size, parameter.ds_numel - start)
    return _GradientPiece(zero.fp32_partitioned_groups_flat[group], offset, start, count)


class Zero(Collectives):
    splits_state = needs_equal_passes = averages_gradients = True

    def __init__(
        self,
        device: torch.device,
        model: Any,
        loss: LossSum,
        optimizer: ZeroOptimizer,
        plan: Plan,
        layers: Sequence[nn.Module],
        communication: Communication,
    ) -> None:
        """Give the model to DeepSpeed. With ZeRO 3 it gathers `layers` one after the other.

        A model on the host is then moved to the device parameter by parameter. Raises RunError without DeepSpeed.
        """
        deepspeed = _deepspeed()
        self._model, self.communication = model, communication
        self._stage = ZERO_STAGES[plan.strategy.value]
        self.splits_weights = self._stage == 3
        module = LossModule(model, loss)
        settings = _settings(plan, model, layers, self._stage, device)
        # DeepSpeed uses the GPU with the number LOCAL_RANK, but a run may use GPUs in another order.
        with replaced(os.environ, LOCAL_RANK=str(device.index or 0)):
            if self._stage == 3:
                for buffer in model.buffers():
                    buffer.data = buffer.data.to(device)
                # This must precede the engine, which would move the whole model to the device.
                deepspeed.zero.Init(module=module, config_dict_or_path=settings)
                self._gathered = deepspeed.zero.GatheredParameters
            self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer.torch_optimizer, config=settings)
        self.forward: LossSum = self._engine
        optimizer.attach_engine(self._engine, device)
        if self._stage == 3:
            self._keep_head_whole()

    def gradient_context(self, is_last: bool) -> AbstractContextManager[object]:
        self._engine.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss: Tensor, mixed_precision: MixedPrecision) -> None:
        """Compute gradients. If the loss is not finite, neither are they, so that no process makes the update."""
        self._engine.backward(loss * (1.0 + 0.0 * loss.detach()), scale_wrt_gas=False)

    @contextmanager
    def evaluation_context(self) -> Iterator[None]:
        """Return a context for passes without a backward pass. Sharded weights are gathered when they are used."""
        if not self.splits_weights:
            with torch.inference_mode():
                yield
            return
        # `no_grad`, because training could not use tensors that are gathered in inference mode.
        with torch.no_grad():
            try:
                self._gather_what_is_read(True)
                yield
            finally:
                self._gather_what_is_read(False)

    def weights(self, method: Method, model: Any) -> dict[str, Tensor | SplitTensor]:
        if not self.splits_weights:
            return super().weights(method, model)
        # Each placeholder has the shape of the whole parameter, and an address that identifies it under any name.
        shards = [(parameter, parameter.data) for parameter in model.parameters()]
        parameter_by_address: dict[int, Any] = {}
        try:
            for parameter, data in shards:
                parameter.data = data.new_empty(()).expand(parameter.ds_shape)
                parameter_by_address[parameter.data_ptr()] = parameter
            weights = method.weights(model)
        finally:
            for parameter, data in shards:
                parameter.data = data
        return {
            name: SplitTensor(p.ds_shape, p.dtype, partial(self.whole, p), partial(self._fill, p))
            if (p := parameter_by_address.get(tensor.data_ptr())) is not None
            else tensor
            for name, tensor in weights.items()
        }

    def update_copies(self) -> None:
        """Copy the model's weights into the engine's fp32 weights."""
        self._engine.optimizer.refresh_fp32_params()
        if self.splits_weights:
            self._gather_persistent()

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """Return a copy of the whole parameter, in every process."""
        if not self.splits_weights:
            return parameter.detach().clone()
        with self._gathered([parameter]):
            return parameter.detach().clone()

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the model, and free its memory."""
        self._engine.destroy()

    def _fill(self, parameter: nn.Parameter, value: Tensor) -> None:
        with self._gathered([parameter], modifier_rank=0):
            parameter.data.copy_(value)

    def _keep_head_whole(self) -> None:
        """Keep the head whole in each process, because a loss in chunks reads its weight without calling it."""
        head = self._model.get_output_embeddings()
        persistent = self._engine.optimizer.persistent_parameters
        for parameter in head.parameters() if head is not None else ():
            if not parameter.ds_persist:
                parameter.ds_persist = True
                persistent.append(parameter)
        self._gather_persistent()

    def _gather_persistent(self) -> None:
        persistent = self._engine.optimizer.persistent_parameters
        if persistent:
            persistent[0].all_gather(persistent)

    def _gather_what_is_read(self, is_gathered: bool) -> None:
        """Set whether sharded weights are gathered when a layer reads them from another layer."""
        from deepspeed.runtime.zero.parameter_offload import ensure_zero_ordered_dict

        for module in self._model.modules():
            ensure_zero_ordered_dict(module)
            module._parameters._in_forward = is_gathered


def _deepspeed() -> Any:
    try:
        import deepspeed
        from deepspeed import ops
    except ImportError as error:
        problem = f"distributed.strategy needs DeepSpeed, which cannot be loaded: {error}"
        raise RunError(f"{problem}; {INSTALL_DEEPSPEED}") from None
    # DeepSpeed would compile code for sums on a CPU. Other runs use gloo for these sums.
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _settings(
    plan: Plan, model: nn.Module, layers: Sequence[nn.Module], stage: int, device: torch.device
) -> dict[str, Any]:
    """Return DeepSpeed's settings. A step has 1 pass here, because `Zero.gradient_context` marks the last pass."""
    parameters = list(model.parameters())
    trained_count = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    layer_numbers = max((sum(p.numel() for p in layer.parameters()) for layer in layers), default=0)
    zero_settings: dict[str, Any] = {
        "stage": stage,
        # The whole bucket is allocated, even for few gradients. Its size must be even.
        "reduce_bucket_size": min(BUCKET_NUMBERS, trained_count + trained_count % 2),
        "allgather_bucket_size": BUCKET_NUMBERS,
    }
    if stage == 3:
        zero_settings |= {
            # The next layer is gathered while one computes. No layer is kept from the forward to the backward pass.
            "stage3_prefetch_bucket_size": layer_numbers,
            "stage3_max_reuse_distance": 0,
            # Norms and biases stay whole.
            "stage3_param_persistence_threshold": max((p.numel() for p in parameters if p.ndim < 2), default=0),
            # This setting would replace a function of torch for the whole process.
            "memory_efficient_linear": False,
        }
    if plan.cpu_offload.value:
        host_offload = {"device": "cpu", "pin_memory": device.type == "cuda"}
        zero_settings |= {"offload_optimizer": host_offload} | ({"offload_param": host_offload} if stage == 3 else {})
    is_16_bits = any(parameter.dtype in SIXTEEN_BITS and parameter.requires_grad for parameter in parameters)
    return {
        "train_micro_batch_size_per_gpu": plan.per_device_train_batch_size.value,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": plan.config.training.max_grad_norm,
        "zero_optimization": zero_settings,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": is_16_bits, "check_grad_overflow": True},
        # Gradients are summed in fp32, also those of 16-bit weights.
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }
