"""Models whose tensors have a shape and no numbers, however large: what they consist of, and what they would compute.

Loads torch and transformers: for the worker. No code that comes with a model is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tui_trainer.models.heads import CLASSIFYING, Head, auto_class

if TYPE_CHECKING:
    from torch import Tensor

# What could make transformers fetch or run code that a config names: the shape does not depend on it.
_UNTRUSTED = {"auto_map", "model_type", "trust_remote_code", "attn_implementation", "quantization_config"}


@contextmanager
def fake_tensors(head: Head) -> Iterator[None]:
    """All tensors that are made have no numbers, and nobody looks for any: transformers fills weights, looks for
    documents in positions, leaves layers out by chance, and asks whether a mask masks any. None does here. Products of
    experts are transformers' own, which keep the same: torch knows the shape of its own for bf16 only (2.11)."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import PreTrainedModel, masking_utils
    from transformers.integrations import moe

    draw = torch.rand
    never = partial(_nothing, answer=False)

    def rand(*size: Any, **more: Any) -> Any:
        return draw(*size, **more) if size != ([],) else 1.0

    changes: list[tuple[Any, str, Any]] = [
        (torch.nn.Module, "_apply", _convert),
        (torch, "rand", rand),
        (PreTrainedModel, "initialize_weights", _nothing),
        (masking_utils, "find_packed_sequence_indices", _nothing),
        (moe, "_can_use_grouped_mm", never),
    ]
    if head != "causal_lm":
        changes += [(masking_utils, f"_ignore_{kind}_mask_sdpa", never) for kind in ("causal", "bidirectional")]
    with ExitStack() as stack:
        for owner, name, value in changes:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def model_config(config: dict[str, Any], labels: int = 0) -> Any:
    """The config of transformers. Raises ValueError for an architecture that it does not know."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        raise ValueError("transformers does not know the architecture")
    fields = {name: value for name, value in config.items() if name not in _UNTRUSTED and not name.startswith("_")}
    made = AutoConfig.for_model(config["model_type"], **fields)
    if labels:
        made.num_labels = labels
    return made


def inputs_of(head: Head, rows: int, row_tokens: int, answer_tokens: int) -> dict[str, Tensor]:
    """What a forward pass takes, with a mask of the padding but for a causal head; for use within `fake_tensors`."""
    import torch

    inputs: dict[str, Any] = {"input_ids": torch.zeros(rows, row_tokens, dtype=torch.int64)}
    if head != "causal_lm":
        inputs["attention_mask"] = torch.ones(rows, row_tokens, dtype=torch.int64)
    if head == "seq2seq_lm":
        inputs["decoder_input_ids"] = torch.zeros(rows, max(answer_tokens, 1), dtype=torch.int64)
    # Keys and values are not kept for a next token.
    return inputs if head in CLASSIFYING else inputs | {"use_cache": False}


def empty_model(config: Any, head: Head, **more: Any) -> Any:
    """The model of a config, in training; for use within `fake_tensors`."""
    return auto_class(head).from_config(config, **more).train()


def _nothing(*given: Any, answer: Any = None, **more: Any) -> Any:
    return answer


def _convert(module: Any, change: Any, recurse: bool = True) -> Any:
    """What `Module.to` and its like do, for tensors without numbers: torch's own way exchanges their insides."""
    from torch import nn

    for part in module.modules() if recurse else (module,):
        for name, weight in part._parameters.items():
            if weight is not None and (changed := change(weight.detach())).dtype != weight.dtype:
                part._parameters[name] = nn.Parameter(changed, requires_grad=weight.requires_grad)
    return module
