"""The precision of matmuls: autocast, and the loss scale that fp16 needs.

Trained 16-bit weights always have an fp32 copy (`training/optimizer.py`): an update below a 512th of a bf16 weight
would be lost.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tui_trainer.errors import CheckpointError
from tui_trainer.planning.training_setup import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# fp16 starts with a scale that is too high, and halves it until nothing overflows. Those steps are skipped.
FIRST_SCALE = 65536.0
_ROTARY = re.compile(r"Rotary\w*Embedding")


def keep_rotary_exact(model: nn.Module) -> None:
    """Compute rotary angles in full fp32, also while other products of the run use TF32.

    transformers before 5.24 computes the angles as a product of positions and frequencies. TF32 holds integers exactly
    only up to 2,048, so later positions would get the angles of others. Source: huggingface/transformers issue 48428.
    """
    before: list[str] = []

    def begin(_module: nn.Module, _args: Any) -> None:
        before.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        torch.set_float32_matmul_precision(before.pop())

    for module in model.modules():
        if _ROTARY.search(type(module).__name__):
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(end, always_call=True)


class MixedPrecision:
    """The precision of one run on one device. With fp16 the loss is scaled, so that small gradients are not 0."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._device_type = device.type
        self.dtype = DTYPES[precision]
        self.scaler = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE) if precision == "fp16" else None

    @property
    def is_coarse(self) -> bool:
        """Whether matmuls are computed in 16 bits."""
        return self.dtype != torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of every forward pass: training, evaluation and text samples."""
        return torch.autocast(self._device_type, dtype=self.dtype) if self.is_coarse else nullcontext()

    def backward(self, loss: Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def give_up_step(self) -> None:
        """Make a new scaler with the same scale, because torch's remembers which gradients it has unscaled."""
        if self.scaler is not None:
            before, self.scaler = self.scaler, torch.amp.GradScaler(self._device_type, init_scale=FIRST_SCALE)
            self.scaler.load_state_dict(before.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Return the loss scale and its number of steps without overflow, for a resumed run."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        return {
            "loss_scale": torch.tensor(state["scale"], dtype=torch.float64),
            "loss_scale_steps": torch.tensor(state["_growth_tracker"]),
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load what `tensors` returned. Raises CheckpointError if fp16 finds no loss scale."""
        if self.scaler is None:
            return
        if "loss_scale" not in tensors:
            raise CheckpointError("the checkpoint has no loss scale, which fp16 needs")
        state = self.scaler.state_dict()
        state["scale"], state["_growth_tracker"] = float(tensors["loss_scale"]), int(tensors["loss_scale_steps"])
        self.scaler.load_state_dict(state)
