"""`python -m tui_trainer.planning.memory.dry_run_child`: counts what a layer computes and keeps, without computing it.

Reads a config, a setup and the length of rows from standard input. The model is built with 2 and with 4 layers on
tensors that have a shape and no numbers, and its forward pass counted with one row and with two: the difference of the
differences is what one layer needs for one row, without weights, their casts and what the ends of the model keep. The
layers of a decoder behind an encoder are counted in the same way, and added as many times as the model has them.

Where layers differ (attention and recurrence in turns, experts from some layer on), or a config cannot be cut, the
whole model is built instead, and what one row needs is shared out among its layers: its ends with them, but for logits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tui_trainer.models.child import answer_question
from tui_trainer.tuning_methods import TUNING_METHODS

if TYPE_CHECKING:
    from torch import Tensor

_FEW, _MANY, _ROWS = 2, 4, (1, 2)
_WHOLE = (0, 0)
_CACHING = ("causal_lm", "seq2seq_lm")  # models that would keep keys and values for the next token
Bytes = dict[str, int]


def count(config: dict[str, Any], setup: dict[str, Any], row_tokens: int) -> Bytes:
    """`kept` and `made`: bytes of one token in one layer; `wide`: of what is made and not kept, what is in fp32."""
    try:
        if _layers_are_alike(config, setup):
            return _by_depth(config, setup, row_tokens)
    except Exception:  # a config may refuse another number of layers in any way
        pass
    found = _of_one_row(config, setup, _WHOLE, row_tokens)
    return {name: round(each / _layer_count(config, setup) / row_tokens) for name, each in found.items()}


def _layer_count(config: dict[str, Any], setup: dict[str, Any]) -> int:
    """Those of the encoder, where there is one."""
    from tui_trainer.models.config_fields import ConfigFields

    return ConfigFields(config).number("num_hidden_layers")


def _layers_are_alike(config: dict[str, Any], setup: dict[str, Any]) -> bool:
    """Whether all layers of each half of the model are made of the same modules, in the same sizes. The first may have
    more or less, as T5's distances and ModernBERT's missing norm."""
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), _without_questions_to_numbers(setup):
        model = _model(config, {**setup, "method": "full"}, _WHOLE)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = {id(part) for module in lists for layer in module for part in layer.modules()}
    kinds = ([_signature(layer) for layer in module] for module in lists if id(module) not in inside)
    return all(kind == found[-1] for found in kinds for kind in found[1:])


def _signature(layer: Any) -> list[tuple[Any, ...]]:
    weights = [(name, tuple(weight.shape)) for name, weight in layer.named_parameters()]
    return [*((name, type(part)) for name, part in layer.named_modules()), *weights]


def _by_depth(config: dict[str, Any], setup: dict[str, Any], row_tokens: int) -> Bytes:
    from tui_trainer.models.shape import shape_of

    few = _of_one_row(config, setup, (_FEW, _FEW), row_tokens)
    found = _per_layer(few, _of_one_row(config, setup, (_MANY, _FEW), row_tokens))
    if setup["head"] == "seq2seq_lm":
        behind = _per_layer(few, _of_one_row(config, setup, (_FEW, _MANY), row_tokens))
        shape = shape_of(config, head="seq2seq_lm")
        share = shape.decoder_layers / shape.layers
        found = {name: each + share * behind[name] for name, each in found.items()}
    return {name: round(each / row_tokens) for name, each in found.items()}


def _per_layer(few: Bytes, many: Bytes) -> dict[str, float]:
    return {name: (many[name] - few[name]) / (_MANY - _FEW) for name in few}


def _of_one_row(config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int], row_tokens: int) -> Bytes:
    one, two = (_forward(config, setup, layers, rows, row_tokens) for rows in _ROWS)
    return {name: two[name] - one[name] for name in one}


def _forward(
    config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int], rows: int, row_tokens: int
) -> Bytes:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import masking_utils

    torch.nn.Module._apply = _convert  # type: ignore[method-assign]
    # It would look for documents in positions that have no numbers, and then build a mask to be safe.
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    with FakeTensorMode(allow_non_fake_inputs=True), _without_questions_to_numbers(setup):
        model = _model(config, setup, layers)
        if output := model.get_output_embeddings():
            # Logits are reckoned apart.
            output.register_forward_pre_hook(lambda module, given: (given[0][:, :1],))
        inputs = _inputs(setup, rows, row_tokens)
        made = _made_counter()
        kept: dict[int, Any] = {}
        weights = {_storage(weight)._cdata for weight in model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            storage = _storage(tensor)
            if storage._cdata not in weights:
                kept[storage._cdata] = storage  # held, so that no other takes its place
            return tensor

        sixteen_bits = setup["precision"] != "fp32"
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            made,
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=sixteen_bits),
        ):
            results = model(**inputs, **({"use_cache": False} if setup["head"] in _CACHING else {}))
        del results
    wide = sum(storage.nbytes() for key, storage in kept.items() if key in made.wide)
    found = {"kept": sum(storage.nbytes() for storage in kept.values()), "made": made.bytes}
    return found | {"wide": sum(made.wide.values()) - wide}


@contextmanager
def _without_questions_to_numbers(setup: dict[str, Any]) -> Iterator[None]:
    """What transformers would have to look at numbers for: first weights, whether a mask of padding masks any, and
    whether a layer is left out by chance: none is."""
    import torch
    from transformers import PreTrainedModel, masking_utils

    draw = torch.rand
    swaps: list[tuple[Any, str]] = [(PreTrainedModel, "initialize_weights")]
    if setup["head"] != "causal_lm":
        swaps += [(masking_utils, f"_ignore_{kind}_mask_sdpa") for kind in ("causal", "bidirectional")]
    before = [(owner, name, getattr(owner, name)) for owner, name in swaps if hasattr(owner, name)]
    try:
        for owner, name, _ in before:
            setattr(owner, name, lambda *given, **more: False)
        torch.rand = lambda *size, **more: draw(*size, **more) if size != ([],) else 1.0  # type: ignore[assignment]
        yield
    finally:
        torch.rand = draw
        for owner, name, value in before:
            setattr(owner, name, value)


def _model(config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int]) -> Any:
    import torch
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from tui_trainer.config.sections import TuningSection
    from tui_trainer.models.heads import auto_class
    from tui_trainer.tuning import find_method

    name = str(config.get("model_type"))
    if name not in CONFIG_MAPPING:
        sys.exit("transformers does not know the architecture")
    fields = {key: value for key, value in config.items() if key not in ("auto_map", "model_type")}
    cut: Any = AutoConfig.for_model(name, **fields)
    if layers != _WHOLE:
        _cut(cut, layers)
    attention = {"attn_implementation": "eager"} if setup["eager_attention"] else {}
    dtype = getattr(torch, setup["weights"])
    model: Any = auto_class(setup["head"]).from_config(cut, dtype=dtype, **attention)
    if setup["device"] == "cuda" and model.config._attn_implementation == "sdpa":
        for name in ("attention_probs_dropout_prob", "attention_dropout"):
            if hasattr(cut, name):
                setattr(cut, name, 0.0)
        model = auto_class(setup["head"]).from_config(cut, dtype=dtype, **attention)
    tuning = TuningSection(
        # What layers compute beside weights in 4 bits is LoRA's.
        method="lora" if TUNING_METHODS[setup["method"]].in_four_bits else setup["method"],
        r=max(setup["lora_rank"], 1),
        lora_dropout=0.1 if setup["lora_dropout"] else 0.0,
        target_modules=",".join(setup["lora_targets"]) or "all-linear",
    )
    method = find_method(tuning.method)
    return method.apply(model, tuning, seed=0, autocast=setup["precision"] != "fp32").train()


def _cut(config: Any, layers: tuple[int, int]) -> None:
    config.num_hidden_layers = layers[0]
    for name in ("num_decoder_layers", "decoder_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, layers[1])
    # Some derive them from the number of layers, and take no others.
    with suppress(AttributeError):
        if kinds := list(getattr(config, "layer_types", None) or ()):
            config.layer_types = (kinds * layers[0])[: layers[0]]


def _convert(module: Any, change: Any, recurse: bool = True) -> Any:
    """What `Module.to` and its like do, for tensors without numbers: torch's own way exchanges their insides."""
    from torch import nn

    for part in module.modules() if recurse else (module,):
        for name, weight in part._parameters.items():
            if weight is not None and (changed := change(weight.detach())).dtype != weight.dtype:
                part._parameters[name] = nn.Parameter(changed, requires_grad=weight.requires_grad)
    return module


def _inputs(setup: dict[str, Any], rows: int, row_tokens: int) -> dict[str, Tensor]:
    """With packed documents, the mask that transformers makes of their positions on a CPU; with another head than a
    causal one, that of the padding."""
    import torch

    inputs = {"input_ids": torch.zeros(rows, row_tokens, dtype=torch.int64)}
    if setup["packed"]:
        inputs["attention_mask"] = torch.ones(rows, 1, row_tokens, row_tokens, dtype=torch.bool)
        inputs["position_ids"] = torch.arange(row_tokens).expand(rows, -1)
    if setup["head"] != "causal_lm":
        inputs["attention_mask"] = torch.ones(rows, row_tokens, dtype=torch.int64)
    if setup["head"] == "seq2seq_lm":
        answer = max(setup["target_tokens"], 1)
        inputs["decoder_input_ids"] = torch.zeros(rows, answer, dtype=torch.int64)
    return inputs


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()


def _made_counter() -> Any:
    """A mode that counts the bytes of all new results in `bytes`, and those in fp32 by storage in `wide`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.bytes = 0
            self.wide: dict[int, int] = {}
            self._held: list[Any] = []  # so that no other takes its place

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = {_storage(x)._cdata for x in tree_leaves((args, kwargs)) if hasattr(x, "untyped_storage")}
            results = function(*args, **(kwargs or {}))
            for result in tree_leaves(results):
                if hasattr(result, "untyped_storage") and _storage(result)._cdata not in before:
                    self.bytes += _storage(result).nbytes()
                    if result.dtype == torch.float32:
                        self.wide[_storage(result)._cdata] = _storage(result).nbytes()
                        self._held.append(_storage(result))
            return results

    return Made()


if __name__ == "__main__":
    answer_question(lambda question: count(**question))
