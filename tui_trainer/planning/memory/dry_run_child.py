"""Counts what layers compute and keep, without computing it: in the worker.

The model is built with 1 and with 3 layers on tensors that have a shape and no numbers, and its forward pass counted
with two rows and with three: the difference of the differences is what one layer needs for one row, without weights,
their casts and what the ends of the model keep. The layers of a decoder behind an encoder are counted in the same way,
and added as many times as the model has them.

Where layers differ (attention and recurrence in turns, experts from some layer on), or a config cannot be cut, the
whole model is built instead, and what one row needs is shared out among its layers: its ends with them, but for logits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tui_trainer.config.fields import is_pattern
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.models.counting import decoder_layers, empty_model, fake_tensors, inputs_of, model_config
from tui_trainer.models.heads import ENCODER_DECODER, Head
from tui_trainer.models.towers import language_config

if TYPE_CHECKING:
    from torch import Tensor, nn

# One row is no measure: torch copies what attention multiplies only where there are several.
_FEW, _MANY, _ROWS = 1, 3, (2, 3)
_WHOLE = (0, 0)
Bytes = dict[str, float]
Lengths = list[tuple[int, int]]


def answer(question: dict[str, Any], _: Any) -> list[Bytes]:
    """For each pair of `lengths`, tokens of a row and of its answer, bytes of one row in all layers: `kept` by
    autograd, `made` by the forward pass, `wide` of what is made in fp32 and not kept, `evaluated`, made in an
    evaluation, and `largest_kept` and `largest_made` of the largest layer."""
    config, setup = question["config"], question["setup"]
    lengths = [(row, answer) for row, answer in question["lengths"]]
    with suppress(Exception):  # a config may refuse another number of layers in any way
        # An expression may be about the numbers of layers.
        by_number = any(map(is_pattern, setup["lora_targets"]))
        if not by_number and _layers_are_alike(json.dumps(config), setup["head"]):
            found = _by_depth(config, setup, lengths)
            # On a CPU what compiled layers do not keep keeps its place.
            if setup["compiled"] and setup["device"] != "cpu":
                with suppress(Exception):  # what torch cannot trace is reckoned as it is uncompiled
                    kept = _kept_compiled(config, setup, lengths)
                    found = [each | of_layer for each, of_layer in zip(found, kept, strict=True)]
            return found
    layers = language_config(model_config(config)).num_hidden_layers
    found = _of_one_row(config, setup, _WHOLE, lengths)
    return [each | {f"largest_{name}": each[name] / layers for name in ("kept", "made")} for each in found]


@cache
def _layers_are_alike(config: str, head: Head) -> bool:
    """Whether all layers of each half of the model are made of the same modules, in the same sizes. The first may have
    more or less, as T5's distances and ModernBERT's missing norm."""
    from torch import nn

    with fake_tensors(head):
        model = empty_model(model_config(json.loads(config)), head)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = {id(part) for module in lists for layer in module for part in layer.modules()}

    def kind(layer: Any) -> list[Any]:
        weights = [(name, tuple(weight.shape)) for name, weight in layer.named_parameters()]
        return [*((name, type(part)) for name, part in layer.named_modules()), *weights]

    kinds = ([kind(layer) for layer in module] for module in lists if id(module) not in inside)
    return all(one == found[-1] for found in kinds for one in found[1:])


def _by_depth(config: dict[str, Any], setup: dict[str, Any], lengths: Lengths) -> list[Bytes]:
    made = language_config(model_config(config))
    few = _of_one_row(config, setup, (_FEW, _FEW), lengths)
    each = _per_layer(few, _of_one_row(config, setup, (_MANY, _FEW), lengths))
    behind = [dict.fromkeys(layer, 0.0) for layer in each]
    if setup["head"] == ENCODER_DECODER:
        behind = _per_layer(few, _of_one_row(config, setup, (_FEW, _MANY), lengths))
    return [
        {name: made.num_hidden_layers * found + decoder_layers(made) * decoding[name] for name, found in layer.items()}
        | {f"largest_{name}": max(layer[name], decoding[name]) for name in ("kept", "made")}
        for layer, decoding in zip(each, behind, strict=True)
    ]


def _per_layer(few: list[Bytes], many: list[Bytes]) -> list[Bytes]:
    pairs = zip(few, many, strict=True)
    return [{name: (more[name] - less[name]) / (_MANY - _FEW) for name in less} for less, more in pairs]


def _of_one_row(
    config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int], lengths: Lengths
) -> list[Bytes]:
    found = []
    with fake_tensors(setup["head"]), _kernels_of(setup):
        model = _model(config, setup, layers)
        if output := model.get_output_embeddings():
            # Logits are reckoned apart.
            output.register_forward_pre_hook(lambda module, given: (given[0][:, :1],))
        for pair in lengths:
            few, many = (_forward(model, setup, rows, pair) for rows in _ROWS)
            found.append({name: many[name] - few[name] for name in few})
    return found


def _kept_compiled(config: dict[str, Any], setup: dict[str, Any], lengths: Lengths) -> list[Bytes]:
    """What is kept of a row where layers are compiled."""
    import torch
    from torch import nn

    found, layers = [], language_config(model_config(config)).num_hidden_layers
    given: list[Any] = []
    with fake_tensors(setup["head"]), torch.autocast("cpu", torch.bfloat16, enabled=setup["precision"] != "fp32"):
        model = _model(config, setup, (_MANY, _MANY)).train()
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == _MANY)
        layer = next(lists)[_FEW]
        layer.register_forward_pre_hook(lambda _, *arguments: given.append(arguments), with_kwargs=True)
        for row_tokens, answer_tokens in lengths:
            kept = []
            for rows in _ROWS:
                given.clear()
                model(**inputs_of(setup["head"], rows, row_tokens, answer_tokens))
                kept.append(_kept_when_compiled(layer, given[0]))
            of_layer = float(kept[1] - kept[0])
            found.append({"kept": layers * of_layer, "largest_kept": of_layer})
    return found


def _kept_when_compiled(layer: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """What autograd keeps of a compiled layer, by torch's own partition of it into a forward and a backward pass, which
    every backend of `torch.compile` takes; nothing is compiled.

    Bytes of a pass with these arguments, the first of which is kept by the layer that made it; with
    weights as they are laid out for the backward pass. Raises whatever torch does where it cannot trace the layer."""
    import torch
    from torch._functorch.aot_autograd import aot_export_joint_simple
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.utils._pytree import tree_flatten, tree_unflatten

    names, weights = zip(*layer.named_parameters(), strict=True)
    leaves, tree = tree_flatten(given)
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    tensors[0].requires_grad_()
    autocast = torch.is_autocast_enabled("cpu")

    def run(*everything: Tensor) -> tuple[Tensor]:
        left = iter(everything[len(names) :])
        arguments, named = tree_unflatten(
            [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], tree
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            own = dict(zip(names, everything, strict=False))
            result = torch.func.functional_call(layer, own, arguments, named)
        return (result[0] if isinstance(result, tuple) else result,)

    both: Any = aot_export_joint_simple(
        run, (*weights, *tensors), trace_joint=True, decompositions=select_decomp_table()
    )
    forward, _ = min_cut_rematerialization_partition(both, [*weights, *tensors], num_fwd_outputs=1)
    nodes = list(forward.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    results = next(node for node in nodes if node.op == "output").args[0][1:]
    # Weights are there anyway, and what all layers take is kept once for all of them.
    others = {*inputs[: len(names)], *inputs[len(names) + 1 :]}
    kept = [node.meta["val"] for node in results if node not in others and hasattr(node.meta.get("val"), "numel")]
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in kept}.values())


def _forward(model: Any, setup: dict[str, Any], rows: int, lengths: tuple[int, int]) -> Bytes:
    """Of a pass of training and one of evaluation."""
    import torch

    inputs = inputs_of(setup["head"], rows, *lengths)
    if setup["packed"] and setup["device"] == "cpu":
        # The mask that transformers makes of the positions of documents.
        inputs["attention_mask"] = torch.ones(rows, 1, lengths[0], lengths[0], dtype=torch.bool)
        inputs["position_ids"] = torch.arange(lengths[0]).expand(rows, -1)
    made, evaluated = _made_counter(), _made_counter()
    kept: dict[int, Any] = {}
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=setup["precision"] != "fp32")
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, made, autocast:
        results = model.train()(**inputs)
    del results
    with torch.no_grad(), evaluated, autocast:
        model.eval()(**inputs)
    wide = sum(storage.nbytes() for key, storage in kept.items() if key in made.wide)
    return {
        "kept": sum(storage.nbytes() for storage in kept.values()),
        "made": made.bytes,
        "wide": sum(made.wide.values()) - wide,
        "evaluated": evaluated.bytes,
    }


def _model(config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int]) -> Any:
    import torch

    from tui_trainer.config.sections import TuningSection
    from tui_trainer.tuning import find_method

    cut = model_config(config)
    if layers != _WHOLE:
        _cut(language_config(cut), layers)
    attention = {"attn_implementation": "eager"} if setup["eager_attention"] else {}
    model = empty_model(cut, setup["head"], dtype=getattr(torch, setup["weights"]), **attention)
    parameters = setup.get("lora_parameters", ())
    tuning = TuningSection(
        # What layers compute beside weights in 4 bits is LoRA's.
        method="lora" if TUNING_METHODS[setup["method"]].in_four_bits else setup["method"],
        r=max(setup["lora_rank"], 1),
        lora_dropout=0.1 if setup["lora_dropout"] else 0.0,
        use_dora=setup.get("use_dora", False),
        target_modules=",".join(setup["lora_targets"]) or ("" if parameters else "all-linear"),
        target_parameters=",".join(parameters),
    )
    return find_method(tuning.method).apply(model, tuning, seed=0, autocast=setup["precision"] != "fp32")


def _cut(config: Any, layers: tuple[int, int]) -> None:
    config.num_hidden_layers = layers[0]
    for name in ("num_decoder_layers", "decoder_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, layers[1])
    # Some derive them from the number of layers, and take no others.
    with suppress(AttributeError):
        if kinds := list(getattr(config, "layer_types", None) or ()):
            config.layer_types = (kinds * layers[0])[: layers[0]]


@contextmanager
def _kernels_of(setup: dict[str, Any]) -> Iterator[None]:
    """On a card dropout keeps a mask of one byte, on a CPU one as wide as the numbers; and its fused attention drops
    scores by drawing them again, and has a gradient of its mask, for which a CPU computes step by step. With
    `math_attention` a card does so as well, and with `repeats_keys` transformers copies keys and values."""
    if setup["device"] == "cpu":
        yield
        return
    import torch
    from torch.nn import functional
    from transformers.integrations import sdpa_attention

    class Dropout(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
            return torch.empty_like(x)

    class CardAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
            rows, heads, tokens, _ = query.shape
            # Laid out as the product behind it takes it.
            found = query.new_empty((rows, tokens, heads, value.shape[-1])).transpose(1, 2)
            sums = query.new_empty((rows, heads, tokens), dtype=torch.float32)
            ctx.save_for_backward(query, key, value, mask, found, sums)
            return found

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return Dropout.apply(x) if training and p else x

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *_: Any, **more: Any) -> Any:
        given = (query, key, value)
        if torch.is_autocast_enabled("cpu"):
            given = (query.to(torch.bfloat16), key.to(torch.bfloat16), value.to(torch.bfloat16))
        if setup.get("math_attention"):
            return torch.ops.aten._scaled_dot_product_attention_math(*given, attn_mask, **more)[0]
        return CardAttention.apply(*given, attn_mask)

    with ExitStack() as stack:
        stack.enter_context(patch.object(functional, "dropout", dropout))
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attention))
        if setup.get("repeats_keys") and hasattr(sdpa_attention, "use_gqa_in_sdpa"):
            stack.enter_context(patch.object(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False))
        yield


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
            def storages(tree: Any) -> list[tuple[Any, Any]]:
                tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
                return [(tensor, tensor.untyped_storage()) for tensor in tensors]

            before = {storage._cdata for _, storage in storages((args, kwargs))}
            results = function(*args, **(kwargs or {}))
            for tensor, storage in storages(results):
                if storage._cdata not in before:
                    self.bytes += storage.nbytes()
                    if tensor.dtype == torch.float32:
                        self.wide[storage._cdata] = storage.nbytes()
                        self._held.append(storage)
            return results

    return Made()
