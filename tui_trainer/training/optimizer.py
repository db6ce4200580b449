"""Build the optimizer of a run, update weights with clipped gradients, and save its state without pickle."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import CheckpointError, RunError
from tui_trainer.hardware.out_of_memory import is_out_of_memory
from tui_trainer.methods.optimizers import ADAFACTOR, HIDDEN, OPTIMIZERS
from tui_trainer.models.counting import is_linear_layer
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.collectives import gather_tensor, place_like
from tui_trainer.training.first_gradients import FirstGradients
from tui_trainer.tuning.freeze_layers import head_paths
from tui_trainer.tuning.full import SplitTensor

SIXTEEN_BITS = (torch.bfloat16, torch.float16)
# Key of a parameter group: its learning rate as a multiple of the run's learning rate.
_LR_RATIO = "lr_ratio"
MASTER = "master"
"""Suffix of the names of fp32 copies in a checkpoint: `NAME.master`."""
EXACT_VALUES = "tui_trainer_exact_values"
"""Attribute of a 16-bit parameter with the fp32 weights from which it was rounded."""


def round_weights(model: Any, dtype: torch.dtype) -> None:
    """Round the fp32 weights of a model to the 16-bit `dtype`.

    The fp32 values of trained weights are kept until `RunOptimizer` takes them as its masters, so that masters start
    from exact values.
    """
    strict_names = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float32 and not set(strict_names) & set(name.split(".")):
            exact_values, parameter.data = parameter.data, parameter.data.to(dtype)
            if parameter.requires_grad:
                setattr(parameter, EXACT_VALUES, exact_values)
    model.config.dtype = dtype


class RunOptimizer:
    """Optimizer of a model's trainable weights. It keeps and updates an fp32 copy of each 16-bit weight, its master."""

    def __init__(
        self,
        model: nn.Module,
        training: TrainingSection,
        *,
        lr: float,
        loraplus_lr_ratio: float = 1.0,
        has_masters: bool = True,
    ) -> None:
        """Build the optimizer. `has_masters` is False for DeepSpeed, which makes its own fp32 copies."""
        self.name, self.spec = training.optim, OPTIMIZERS[training.optim]
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {
            name: nn.Parameter(p.__dict__.pop(EXACT_VALUES, p.detach().float()))
            for name, p in self._named.items()
            if has_masters and p.dtype in SIXTEEN_BITS
        }
        self.trained_by_name = {name: self.masters.get(name, p) for name, p in self._named.items()}
        self.first_gradients = FirstGradients(self.trained_by_name)
        self._hidden = hidden_matrices(model) if self.spec.hidden_keys else frozenset[str]()
        groups = _groups(self.trained_by_name, training.weight_decay, loraplus_lr_ratio, self._hidden)
        self.torch_optimizer = self.spec.build(groups, lr, training)

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        """Parameters that the optimizer updates, in a fixed order. Masters take the place of 16-bit weights."""
        return list(self.trained_by_name.values())

    def compile(self) -> None:
        """Make torchao compile its update, by a step with zero gradients and learning rate, which changes no weight.

        Raises RunError if the compiler fails.
        """
        for group in self.torch_optimizer.param_groups:
            group["lr"].fill_(0.0)
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        try:
            self.torch_optimizer.step()
        except Exception as error:  # the compiler raises whatever its parts raise
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            hint = f"training.optim = {ADAFACTOR} needs no compiler"
            raise RunError(f"the optimizer step of {self.name} could not be compiled: {reason}; {hint}") from error
        self.torch_optimizer.state.clear()
        self.torch_optimizer.zero_grad(set_to_none=True)

    def collect(self) -> None:
        """Move the gradients of 16-bit weights to their masters, adding them in fp32: 16-bit sums lose small gradients.

        Gradients are moved one by one, so that only one of them at a time exists twice.
        """
        for name, master in self.masters.items():
            weight = self._named[name]
            if weight.grad is not None:
                master.grad = weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
                weight.grad = None

    def discard_step(self) -> None:
        """Drop all gradients of an interrupted step."""
        for parameter in self._named.values():
            parameter.grad = None
        self.torch_optimizer.zero_grad(set_to_none=True)

    def apply(
        self, loss_sum: Tensor, *, lr: float, max_grad_norm: float, scaler: torch.amp.GradScaler | None = None
    ) -> Tensor:
        """Update the weights from the model's gradients, and return the gradient norm before clipping.

        With `max_grad_norm` 0 gradients are not clipped. If the loss or a gradient is not finite, no weight changes:
        fused optimizers skip the update on the device, others wait for the device once. If memory runs out, this raises
        the original error if no weight has changed, and RunError if some weights may have changed.
        """
        self.collect()
        if scaler:
            scaler.unscale_(self.torch_optimizer)
        self.first_gradients.record_gradients()
        grad_norm = _clip(self.trained_parameters, max_grad_norm)
        # Weights may be on the host and the loss on a GPU. The copy costs no wait: gradients are computed later.
        device, loss_sum = loss_sum.device, loss_sum.to(grad_norm.device)
        for group in self.torch_optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                # torchao takes the rate as a host tensor. A Python number would cause a compilation for each value.
                group["lr"].fill_(lr * group[_LR_RATIO])
            else:
                group["lr"] = lr * group[_LR_RATIO]
        self._step_whole(torch.isfinite(grad_norm) & torch.isfinite(loss_sum))
        if scaler:
            scaler.update()
        if self.masters:
            # Copying weights one by one would launch a kernel for each.
            weights = _local_tensors(self._named[name].data for name in self.masters)
            torch._foreach_copy_(weights, _local_tensors(master.data for master in self.masters.values()))
        self.torch_optimizer.zero_grad(set_to_none=True)
        return grad_norm.to(device, non_blocking=True)

    def _step_whole(self, is_finite: Tensor) -> None:
        """Make the update. After an out-of-memory error, raise RunError if some weights may have changed.

        The first update allocates the state, and each optimizer counts the step in a parameter's state before it
        changes the parameter. Counts of 0 in all states therefore mean that no weight has changed.
        """
        has_state = bool(self.torch_optimizer.state)
        try:
            self._step(is_finite)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            step_counts = [float(state.get("step", 0)) for state in self.torch_optimizer.state.values()]
            if has_state or any(step_counts) or "step" not in self.spec.needed_keys or self._hidden:
                raise RunError(self._half_done_message()) from None
            # The state is incomplete.
            self.torch_optimizer.state.clear()
            raise

    def _half_done_message(self) -> str:
        remedy = " or ".join([*(f'training.optim = "{name}"' for name in self.spec.smaller), 'tuning.method = "lora"'])
        return (
            f"out of memory in the {self.name} update: some weights may have changed and others not, so they are "
            f"not saved. The last checkpoint is kept; to use less memory, start a new run with {remedy}"
        )

    def _step(self, is_finite: Tensor) -> None:
        if self.torch_optimizer.defaults.get("fused"):
            # Fused optimizers read the two attributes that torch.amp sets, so the host does not wait for the device.
            self.torch_optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.torch_optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
            self.torch_optimizer.step()
        elif bool(is_finite):
            self.torch_optimizer.step()

    def tensors(self) -> Mapping[str, Tensor | SplitTensor]:
        """Return the optimizer state for a checkpoint: `NAME.exp_avg`, `NAME.step`, ..., and `NAME.master` for masters.

        safetensors refuses tensors that share memory, such as a table of bitsandbytes, so these are copied.
        """
        state = {f"{name}.{MASTER}": master.detach() for name, master in self.masters.items()}
        for name, parameter in self.trained_by_name.items():
            for key, value in _unwrap_quantized(self.torch_optimizer.state.get(parameter, {})).items():
                self._require_saveable(key)
                value = value.detach().contiguous() if isinstance(value, Tensor) else torch.tensor(value)
                state[f"{name}.{key}"] = value
        return unshare_memory(state)

    def _require_saveable(self, key: str) -> None:
        if key not in self.spec.state_keys:
            raise CheckpointError(f"the state of the optimizer {self.name} has an entry {key!r}, which cannot be saved")

    def load_shards(self, shards: Iterable[dict[str, Tensor]]) -> None:
        """Load state that `tensors` returned, split into shards. All tensors of a parameter must be in the same shard.

        Raises CheckpointError if the state of a parameter is missing or does not match.
        """
        names_without_master = dict.fromkeys(self.masters)
        for tensors in shards:
            state_by_name: dict[str, dict[str, Tensor]] = {}
            for full_name, value in tensors.items():
                name, _, key = full_name.rpartition(".")
                state_by_name.setdefault(name, {})[key] = value
            if odd_names := sorted(state_by_name.keys() - self._named.keys()):
                raise CheckpointError(f"the optimizer state contains unknown tensors, such as those of {odd_names[0]}")
            for name, state in state_by_name.items():
                names_without_master.pop(name, None)
                self._load_parameter(name, state)
        for name in names_without_master:
            self._load_master(name, None)

    def _load_parameter(self, name: str, state: dict[str, Tensor]) -> None:
        if name in self.masters:
            self._load_master(name, state.pop(MASTER, None))
        parameter = self.trained_by_name[name]
        self._require_whole(name, state, parameter.shape)
        if not state:
            return
        if self.spec.begin:
            self._copy_state(name, self.spec.begin(self.torch_optimizer, parameter), state)
        else:
            self.torch_optimizer.state[parameter] = {
                key: place_like(value, parameter)
                if isinstance(parameter, DTensor) and key in self.spec.shaped_keys
                else self.spec.restore_state_value(key, value, parameter)
                for key, value in state.items()
            }

    def _load_master(self, name: str, saved: Tensor | None) -> None:
        master = self.masters[name]
        master.data.copy_(place_like(master_of(name, saved, master.shape), master))

    def _require_whole(self, name: str, state: Mapping[str, Tensor], shape: torch.Size) -> None:
        # A parameter without gradients has no state. If all steps were skipped (fp16), no parameter has any.
        needed_keys = self.spec.hidden_keys if name in self._hidden else self.spec.needed_keys
        if state and (missing_keys := sorted(needed_keys - state.keys())):
            raise CheckpointError(f"the optimizer state of {name} lacks {', '.join(missing_keys)}")
        if any(value.shape != shape for key, value in state.items() if key in self.spec.shaped_keys):
            raise CheckpointError(f"the optimizer state of {name} has a different shape than the weight")

    def _copy_state(self, name: str, allocated: dict[str, Any], saved: dict[str, Tensor]) -> None:
        """Copy the saved state of one parameter into the state that the optimizer has `allocated` for it."""
        tensors = _unwrap_quantized(allocated)
        if keys := sorted(tensors.keys() ^ saved.keys()):
            raise CheckpointError(f"the optimizer state of {name} has missing or unexpected entries: {', '.join(keys)}")
        for key, value in saved.items():
            if key in self.spec.number_keys:
                allocated[key] = value.item()
            elif (tensors[key].shape, tensors[key].dtype) != (value.shape, value.dtype):
                needed, actual = (f"{x.dtype} of shape {list(x.shape)}" for x in (tensors[key], value))
                problem = f"does not match: {key} is {actual}, but should be {needed}"
                raise CheckpointError(f"the optimizer state of {name} {problem}")
            else:
                tensors[key].copy_(value)


def master_of(name: str, saved: Tensor | None, shape: torch.Size) -> Tensor:
    """Return `saved`, the fp32 copy of a weight. Raises CheckpointError if it is missing or has another shape."""
    if saved is None or saved.shape != shape:
        raise CheckpointError(f"the optimizer state has no fp32 copy of {name}")
    return saved


def _unwrap_quantized(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state in which torchao's quantized tensors are split into plain ones, for example `exp_avg_codes`."""
    tensors: dict[str, Any] = {}
    for key, value in state.items():
        if is_traceable_wrapper_subclass(value) and not isinstance(value, DTensor):
            part_names, _ = value.__tensor_flatten__()
            tensors |= {f"{key}_{part}": getattr(value, part) for part in part_names}
        else:
            tensors[key] = value
    return tensors


def _local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this process's part of each tensor."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def hidden_matrices(model: Any) -> frozenset[str]:
    """Return the names of the weight matrices of linear layers, except embeddings, head and classifier.

    Experts in one tensor and routers are also excluded. Source: Keller Jordan, kellerjordan.github.io/posts/muon.
    """
    output_layer: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    modules: dict[str, Any] = dict(model.named_modules())
    edges: list[Any] = [part for part in modules.values() if part is output_layer or isinstance(part, nn.Embedding)]
    heads = tuple(f"{path}." for path in head_paths(model)) if hasattr(model, "config") else ()
    end_ids = {id(weight) for part in edges for weight in part.parameters()}
    product_names = {id(part.weight): f"{path}.weight" for path, part in modules.items() if is_linear_layer(part)}
    names = {id(weight): name for name, weight in model.named_parameters()}
    inside_ids = (i for i, name in product_names.items() if i not in end_ids and not name.startswith(heads or ("\n",)))
    return frozenset(names[i] for i in inside_ids)


def _groups(
    parameters: Mapping[str, Tensor], weight_decay: float, loraplus_lr_ratio: float, hidden: frozenset[str]
) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups. Weight decay applies to matrices only.

    Weights in `hidden` get their own groups. LoRA's B matrices learn faster by the ratio of LoRA+ (arXiv:2402.12354).
    """

    ratios = {name: loraplus_lr_ratio if ".lora_B." in name else 1.0 for name in parameters}
    return [
        {
            "params": [
                p
                for name, p in parameters.items()
                if (p.ndim >= 2) is has_decay and ratios[name] == ratio and (name in hidden) is is_hidden
            ],
            "weight_decay": weight_decay if has_decay else 0.0,
            _LR_RATIO: ratio,
            **({HIDDEN: True} if is_hidden else {}),
        }
        for is_hidden in ((True, False) if hidden else (False,))
        for ratio in dict.fromkeys((1.0, loraplus_lr_ratio))
        for has_decay in (True, False)
    ]


def _clip(parameters: Sequence[Tensor], max_grad_norm: float) -> Tensor:
    """Clip gradients to `max_grad_norm` (0 does not clip), and return their norm before clipping."""
    norm = gather_tensor(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if max_grad_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    return norm


def unshare_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors for safetensors, which refuses shared memory: a tensor that shares memory is copied."""
    separate_tensors: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        address = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).data_ptr()
        # The address 0 is that of an empty part of a sharded tensor.
        separate_tensors[name] = tensor.clone() if address and address in addresses else tensor
        addresses.add(address)
    return separate_tensors
