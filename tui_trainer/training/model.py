"""The model of a run, ready for its first step: built, checked, adapted, placed and, where asked, compiled."""

from typing import Any

import torch
from torch import nn

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models import unsloth
from tui_trainer.tasks import find_task
from tui_trainer.training.job import Job, Tell
from tui_trainer.tuning import find_method


def build_model(job: Job, tokenizer: Any, device: torch.device, tell: Tell, rank: int = 0) -> Any:
    """The model before its first step, in training mode. Raises ConfigError when it cannot be what the plan says.

    Weights are the same in each process of a run, what is drawn afterwards is not (`rank`).
    """
    plan = job.plan
    config = plan.config
    torch.manual_seed(config.training.seed)
    dtype = getattr(torch, plan.weights_dtype.value)

    hint = "they learn from your data: normal for a task that the model was not made for"
    model = find_task(config.task.type).build_model(
        config, job.data, tokenizer, dtype, device, lambda words: tell("new weights", words, hint)
    )
    refuse_poisoned(model, config.model.model_name_or_path)
    if unsloth.is_asked(config):
        # With its own way to checkpoint activations.
        adapted: Any = unsloth.adapt(model, config) if config.tuning.has_adapter else model
    else:
        adapted = find_method(config.tuning.method).apply(
            model, config.tuning, seed=config.training.seed, autocast=plan.precision.value != "fp32"
        )
        if config.training.gradient_checkpointing:
            checkpoint_activations(adapted)
    adapted.to(device)
    adapted.train()
    # What is drawn from here on (dropout) depends on the seed alone, not on how the model was made.
    torch.manual_seed(config.training.seed + rank)
    return adapted


def refuse_poisoned(model: nn.Module, name: str) -> None:
    """Raises ConfigError with the tensor that holds a number which is not finite."""
    for tensor_name, tensor in model.named_parameters():
        if not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            message = f"{tensor_name} holds {count:,} numbers that are not finite"
            hint = "the file with the weights is damaged, or the model was spoilt in training: take another copy"
            raise ConfigError(Problem(message=message, where=name, key="model.model_name_or_path", hint=hint))


def checkpoint_activations(model: Any) -> None:
    """Keep the layers' inputs only. transformers 5.2x renames the switch, and will drop the old name. Raises
    ConfigError for a model that has none (ALBERT, MPNet)."""
    switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        switch({"use_reentrant": False})
    except ValueError:
        message = f"{model.config.model_type} keeps the activations of all layers: it cannot compute them again"
        raise ConfigError(
            Problem(message=message, key="training.gradient_checkpointing", hint="set it to false")
        ) from None
