"""Set the precision of matmuls by autocast, and scale the loss for fp16.

Trained 16-bit weights always have an fp32 copy (`training/optimizer.py`), because a bf16 weight would lose an update
smaller than a 512th of the weight.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tui_trainer.errors import CheckpointError
from tui_trainer.planning.training_setup import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# fp16 starts with a loss scale that is too high, and halves it until nothing overflows. Overflowing steps are skipped.
FIRST_SCALE = 65536.0
_ROTARY = re.compile(r"Rotary\w*Embedding")


def keep_rotary_exact(model: nn.Module) -> None:
    """Make the model compute rotary angles in full fp32, even if other matmuls of the run use TF32.

    transformers before 5.24 computes the angles as a product of positions and frequencies. TF32 is exact for integers
    only up to 2,048, so later positions would get wrong angles. Source: huggingface/transformers issue 48428.
    """
    old_precisions: list[str] = []

    def begin(_module: nn.Module, _args: Any) -> None:
        old_precisions.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")

    def end(_module: nn.Module, _args: Any, _output: Any) -> None:
        torch.set_float32_matmul_precision(old_precisions.pop())

    for module in model.modules():
        if _ROTARY.search(type(module).__name__):
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(end, always_call=True)


class MixedPrecision:
    """Precision of a run on one device. With fp16 the loss is scaled, so that small gradients do not become 0."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._device_type = device.type
        self.dtype = DTYPES[precision]
        self.scaler = torch.amp.GradScaler(device.type, init_scale=FIRST_SCALE) if precision == "fp16" else None

    @property
    def is_coarse(self) -> bool:
        """Whether matmuls are computed in 16 bits."""
        return self.dtype != torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes in training, evaluation and text samples."""
        return torch.autocast(self._device_type, dtype=self.dtype) if self.is_coarse else nullcontext()

    def backward(self, loss: Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def discard_step(self) -> None:
        """Replace the loss scaler after an interrupted step, because torch's remembers which gradients are unscaled."""
        if self.scaler is not None:
            old_scaler, self.scaler = self.scaler, torch.amp.GradScaler(self._device_type, init_scale=FIRST_SCALE)
            self.scaler.load_state_dict(old_scaler.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """Return the loss scale and the number of steps since the last overflow, for a checkpoint."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        scale = torch.tensor(state["scale"], dtype=torch.float64)
        return {"loss_scale": scale, "loss_scale_steps": torch.tensor(state["_growth_tracker"])}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the tensors that `tensors` returned. Raises CheckpointError if an fp16 run finds no loss scale."""
        if self.scaler is None:
            return
        if "loss_scale" not in tensors:
            raise CheckpointError("the checkpoint has no loss scale, which fp16 needs")
        state = self.scaler.state_dict()
        state["scale"], state["_growth_tracker"] = float(tensors["loss_scale"]), int(tensors["loss_scale_steps"])
        self.scaler.load_state_dict(state)
