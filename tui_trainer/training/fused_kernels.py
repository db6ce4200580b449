"""Use library kernels for attention, norms, gated MLPs, rotary embeddings and the loss. Each kernel is compared with
the model's own operations, used if the results agree, and removed after the run.

Of Liger's losses only the kernel for the logits of a chunk is used (`losses/fused_cross_entropy.py`). Its fused loss is
a forward pass of the whole model that computes the head for every position and returns no logits. The loss here
computes only positions with a label (`losses/next_token.py`, `losses/chunked_head.py`).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tui_trainer.losses.fused_cross_entropy import find_kernel
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning.fused_kernels import LIBRARY, Kernels
from tui_trainer.runs.events import ATTENTION_CHANGED
from tui_trainer.training.compiled import Trainable
from tui_trainer.training.fused_lora import FusedAdapters
from tui_trainer.training.job import ReportProblem
from tui_trainer.training.probes import reason_against
from tui_trainer.training.process import reason_to_fall_back

_ABSENT = object()
Change = tuple[Any, str, Any]
"""(module, class or namespace; name of an attribute; value of the attribute before the change)."""
_changes: list[Change] = []
"""Changes that kernel libraries have made in this process, oldest first."""


def _undo(down_to: int = 0) -> None:
    while len(_changes) > down_to:
        owner, name, old_value = _changes.pop()
        if isinstance(owner, nn.Module):
            # A module overrides setattr for parameters and submodules.
            vars(owner).pop(name, None) if old_value is _ABSENT else vars(owner).update({name: old_value})
        elif old_value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, old_value)


@contextmanager
def removing_kernels() -> Iterator[None]:
    """Return a context that removes, at its end, the functions that kernel libraries have put into transformers."""
    try:
        yield
    finally:
        _undo()


def check_attention(run: Trainable, requested: str, batch: MicroBatch, report: ReportProblem) -> None:
    """Keep the requested attention kernel if it can be loaded and agrees with torch's on padded rows of the data.

    Otherwise the model gets torch's kernel, or its own operations if torch has none. `probes.py` checks later whether
    the kernel separates packed documents.
    """
    model = run.model
    default_attention = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
    model.set_attn_implementation(default_attention)

    def switch() -> None:
        model.set_attn_implementation(requested)
        if model.config._attn_implementation == default_attention:
            raise LookupError(f"transformers does not support {requested} for this model")

    if reason := reason_against(run, batch, switch):
        model.set_attn_implementation(default_attention)
        hint = 'set model.attn_implementation = "auto" to skip the attempt'
        report(ATTENTION_CHANGED, f"{requested} is not used: {reason}", f"{default_attention} is used instead; {hint}")


def use_kernels(run: Trainable, kernels: Kernels, batch: MicroBatch, report: ReportProblem) -> Kernels:
    """Switch on `kernels` if they agree with the model's own operations, else report why. Return the kernels in use."""
    if kernels == "none":
        return kernels
    if run.device.type != "cuda":
        report("kernels not used", f"{LIBRARY} runs only on GPUs", "the model's own operations give the same results")
        return "none"
    change_count, counts = len(_changes), [0]

    def switch() -> None:
        counts[0] = _switch_on(run.model)

    if reason := reason_against(run, batch, switch):
        _undo(change_count)
        torch.cuda.empty_cache()
        hint = 'the model\'s own operations are used; set model.kernels = "none" to skip the attempt'
        report("kernels not used", f"{LIBRARY} is not used: {reason}", hint)
        return "none"
    fuses_loss = _fuse_loss(run, report)
    message = f"{LIBRARY} computes {counts[0]} norms and MLPs of the model{' and its loss' if fuses_loss else ''}"
    report("kernels", message, "logits and gradients are the same within rounding")
    return kernels


def _fuse_loss(run: Trainable, report: ReportProblem) -> bool:
    """Compute the losses of chunks by Liger's kernel if it agrees with torch's loss. Return whether it is used."""
    if not isinstance(run.loss, NextTokenLoss) or not run.loss.chunk_tokens:
        return False
    try:
        reason = run.loss.use_kernel(find_kernel(), run.device, run.mixed_precision.dtype)
    except Exception as error:  # a compiler raises whatever its parts raise
        reason = reason_to_fall_back(error)
    if reason:
        torch.cuda.empty_cache()
        message = f"{LIBRARY} does not compute the loss: {reason}"
        report("loss not fused", message, "torch computes the loss instead, which takes more memory than planned")
    return not reason


def fuse_adapters(adapters: FusedAdapters, report: ReportProblem) -> None:
    """Fuse LoRA layers with their adapters if the results agree with peft's; otherwise report the reason."""
    if not adapters.switch_on():
        return
    try:
        reason = adapters.describe_difference()
    except Exception as error:  # libraries raise whatever their parts raise
        reason = reason_to_fall_back(error)
    if reason:
        adapters.switch_off()
        message = f"adapters are computed separately from their layers: {reason}"
        report("adapters apart", message, "the run is slower, with the same results")


def _switch_on(model: Any) -> int:
    """Apply Liger's kernels, and return the number of changed layers. Raises LookupError if no layer was changed."""
    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    owners = [*base_model.modules(), *_namespaces(base_model)]
    old_namespaces = [dict(vars(owner)) for owner in owners]
    try:
        from transformers.integrations.liger import apply_liger_kernel

        apply_liger_kernel(base_model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    finally:
        changes = [
            (owner, name, old_names.get(name, _ABSENT))
            for owner, old_names in zip(owners, old_namespaces, strict=True)
            for name in vars(owner).keys() | old_names.keys()
            if vars(owner).get(name, _ABSENT) is not old_names.get(name, _ABSENT)
        ]
        _changes.extend(changes)
    replaced_modules = [owner for owner, name, _ in changes if name == "forward" and isinstance(owner, nn.Module)]
    if not replaced_modules:
        raise LookupError(f"{LIBRARY} has no kernel for this model")
    return len(replaced_modules)


def _namespaces(model: Any) -> list[Any]:
    """Return the Python modules that define the model and its layers, and the classes in these modules."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    model_type = model.config.model_type
    names.add(f"transformers.models.{model_type}.modeling_{model_type}")
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules and ".modeling_" in name]
    classes = (member for module in modules for member in vars(module).values() if isinstance(member, type))
    return [*modules, *(member for member in dict.fromkeys(classes) if member.__module__ in names)]
