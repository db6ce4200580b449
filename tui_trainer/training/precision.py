"""What matmuls are computed in: autocast, and the loss scale that fp16 needs.

Weights that train are never 16 bits without an fp32 copy (`training/optimizer.py`): an update below a 512th of a bf16
weight would be lost.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from tui_trainer.errors import CheckpointError
from tui_trainer.planning.training_setup import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# fp16 begins with a scale that is far too high, and halves it until nothing overflows: that many steps learn nothing.
FIRST_SCALE = 65536.0


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
        """Around every forward pass: training, evaluation and text samples."""
        return torch.autocast(self._device_type, dtype=self.dtype) if self.is_coarse else nullcontext()

    def backward(self, loss: Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def give_up_step(self) -> None:
        """The next step begins anew: torch's scaler remembers which gradients it has unscaled."""
        if self.scaler is not None:
            before, self.scaler = self.scaler, torch.amp.GradScaler(self._device_type, init_scale=FIRST_SCALE)
            self.scaler.load_state_dict(before.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs: the loss scale and how long it held."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        return {
            "loss_scale": torch.tensor(state["scale"], dtype=torch.float64),
            "loss_scale_steps": torch.tensor(state["_growth_tracker"]),
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave. Raises CheckpointError when it is not there."""
        if self.scaler is None:
            return
        if "loss_scale" not in tensors:
            raise CheckpointError("the checkpoint has no loss scale, which fp16 needs")
        state = self.scaler.state_dict()
        state["scale"], state["_growth_tracker"] = float(tensors["loss_scale"]), int(tensors["loss_scale_steps"])
        self.scaler.load_state_dict(state)
