"""Kernels of libraries for attention, norms, gated MLPs and rotary embeddings: tried, used where they compute the same,
taken back after the run.

Liger's fused cross entropy is not taken. It is a forward pass of the whole model that computes the head for every place
and gives no logits; the loss here computes it for places with a label only, in chunks where the plan says so
(`losses/next_token.py`, `losses/chunked_head.py`), which saves the same memory and, on answers in conversations, more
time. Of the hub's kernels neither loss nor linear layers are taken: LoRA's and those in 4 bits are none of theirs.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.planning.fused_kernels import LIBRARIES, Kernels
from tui_trainer.training.compiled import Trainable
from tui_trainer.training.job import Tell
from tui_trainer.training.process import replaced
from tui_trainer.training.rounding_probe import reason_against

_HUB_LAYERS = ("RMSNorm", "SwiGLUMLP", "GeGLUMLP")
_ABSENT = object()
Change = tuple[Any, str, Any]
"""A module, class or namespace, the name in it, and what was there before."""
_changes: list[Change] = []
"""What libraries have changed in this process."""


def _undo(down_to: int = 0) -> None:
    while len(_changes) > down_to:
        owner, name, before = _changes.pop()
        if isinstance(owner, nn.Module):
            # Not by setattr, which takes a module's own names (parameters, hooks) apart.
            vars(owner).pop(name, None) if before is _ABSENT else vars(owner).update({name: before})
        elif before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def taken_back() -> Iterator[None]:
    """Libraries put their functions into the modules of transformers: the next run of this process finds none there."""
    try:
        yield
    finally:
        _undo()


def check_attention(run: Trainable, batch: MicroBatch, tell: Tell) -> None:
    """Back to torch's kernel, or the model's own operations where it has none for it, where the library's differs with
    the data's own padded rows. Whether it keeps packed documents apart is asked later, by `leak_probe.py`."""
    model = run.model
    requested = str(model.config._attn_implementation)
    own = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
    model.set_attn_implementation(own)
    if reason := reason_against(run, batch, lambda: model.set_attn_implementation(requested)):
        model.set_attn_implementation(own)
        hint = 'model.attn_implementation = "auto" takes it from the start'
        tell("attention changed", f"{requested} is not used: {reason}", f"{own} is used instead; {hint}")


def use_kernels(run: Trainable, kernels: Kernels, batch: MicroBatch, tell: Tell) -> Kernels:
    """Those that are used from now on: `kernels` where they compute the same as the model's own operations, else none,
    which is told with the reason."""
    if kernels == "none":
        return kernels
    if run.device.type != "cuda":
        tell("kernels not used", f"{LIBRARIES[kernels]} is for GPUs", "the model's own operations compute the same")
        return "none"
    before, counts = len(_changes), [0]

    def switch() -> None:
        counts[0] = _switch_on(run.model, kernels)

    if reason := reason_against(run, batch, switch):
        _undo(before)
        torch.cuda.empty_cache()
        hint = 'the model\'s own operations are used; model.kernels = "none" does not try'
        tell("kernels not used", f"{LIBRARIES[kernels]} is not used: {reason}", hint)
        return "none"
    message = f"{LIBRARIES[kernels]} computes {counts[0]} norms and MLPs of the model"
    tell("kernels", message, "logits and gradients are the same within rounding")
    return kernels


def _switch_on(model: Any, kernels: Kernels) -> int:
    """Layers that compute otherwise now. Raises LookupError where there are none."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    owners = [*base.modules(), *_namespaces(base)]
    before = [dict(vars(owner)) for owner in owners]
    try:
        if kernels == "liger":
            from transformers.integrations.liger import apply_liger_kernel

            apply_liger_kernel(base, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        else:
            _from_hub(base)
    finally:
        changes = [
            (owner, name, old.get(name, _ABSENT))
            for owner, old in zip(owners, before, strict=True)
            for name in vars(owner).keys() | old.keys()
            if vars(owner).get(name, _ABSENT) is not old.get(name, _ABSENT)
        ]
        _changes.extend(changes)
    replaced = [owner for owner, name, _ in changes if name == "forward" and isinstance(owner, nn.Module)]
    if not replaced:
        raise LookupError(_NOTHING[kernels])
    return len(replaced)


_NOTHING: dict[Kernels, str] = {
    "liger": "it has no kernel for this model",
    "hub": "no kernel for this model is in the cache, and none is fetched without being asked: "
    "hf download kernels-community/liger-kernels",
}


def _namespaces(model: Any) -> list[Any]:
    """The modules of transformers that the model, or the code that came with it, is made from, with their classes."""
    names = {cls.__module__ for module in model.modules() for cls in type(module).__mro__}
    kind = model.config.model_type
    names.add(f"transformers.models.{kind}.modeling_{kind}")
    found = [sys.modules[name] for name in sorted(names) if name in sys.modules and ".modeling_" in name]
    classes = (x for module in found for x in vars(module).values() if isinstance(x, type))
    return [*found, *(x for x in dict.fromkeys(classes) if x.__module__ in names)]


def _from_hub(model: Any) -> None:
    import kernels
    from huggingface_hub import constants
    from transformers.integrations.hub_kernels import get_kernel_mapping_transformers

    known = get_kernel_mapping_transformers()
    mapping = {name: known[name] for name in _HUB_LAYERS if name in known}
    fallback = getattr(kernels, "KernelizeFallback", None)
    # transformers would put them on anew with each change between training and evaluation, and go to the hub for it:
    # the same ones serve both.
    with replaced(vars(constants), HF_HUB_OFFLINE=True), kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(
            model, device="cuda", mode=kernels.Mode.TRAINING, use_fallback=fallback.ALL if fallback else True
        )
