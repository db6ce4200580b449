"""Count the bytes that layers compute and save, without computing numbers. This module runs in the worker.

The model is built with 1 and with 3 layers on tensors that have a shape and no numbers, and the bytes of its forward
pass are counted with two rows and with three. The difference of the differences is what one layer needs for one row,
without weights, their casts and the ends of the model. The layers of an encoder-decoder's decoder are counted in the
same way, and multiplied by their number.

If layers differ (attention and recurrence alternate, or experts begin at some layer), or a config cannot be cut, the
whole model is built, and the bytes of one row are divided by the number of layers. They include the ends of the model
except the logits.
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
from tui_trainer.models.counting import decoder_layers, empty_model, fake_tensors, make_inputs, model_config
from tui_trainer.models.heads import ENCODER_DECODER, Head
from tui_trainer.models.towers import language_config

if TYPE_CHECKING:
    from torch import Tensor, nn

# A single row would mislead: torch copies the inputs of attention's matmuls only if there are several.
_FEW, _MANY, _ROWS = 1, 3, (2, 3)
_WHOLE = (0, 0)
Bytes = dict[str, float]
Lengths = list[tuple[int, int]]


def answer(question: dict[str, Any], _: Any) -> list[Bytes]:
    """Return the bytes of one row in all layers, for each pair of `lengths` (tokens of a row and of its answer).

    The keys are `kept`: saved by autograd; `made`: allocated by the forward pass; `wide`: allocated in fp32 and not
    saved; `evaluated`: allocated by an evaluation; `largest_kept` and `largest_made`: of the largest layer."""
    config, setup = question["config"], question["setup"]
    lengths = [(row_tokens, answer_tokens) for row_tokens, answer_tokens in question["lengths"]]
    with suppress(Exception):  # a config may refuse another number of layers in any way
        # A regular expression may select layers by their number.
        are_numbered = any(map(is_pattern, setup["lora_targets"]))
        if not are_numbered and _layers_are_alike(json.dumps(config), setup["head"]):
            counts = _by_depth(config, setup, lengths)
            # On a CPU glibc keeps the blocks of tensors that compiled layers do not save.
            if setup["compiled"] and setup["device"] != "cpu":
                with suppress(Exception):  # a layer that torch cannot trace counts as uncompiled
                    compiled_counts = _compiled_row_bytes(config, setup, lengths)
                    counts = [count | layer_count for count, layer_count in zip(counts, compiled_counts, strict=True)]
            return counts
    layer_number = language_config(model_config(config)).num_hidden_layers
    counts = _row_bytes(config, setup, _WHOLE, lengths)
    return [count | {f"largest_{name}": count[name] / layer_number for name in ("kept", "made")} for count in counts]


@cache
def _layers_are_alike(config: str, head: Head) -> bool:
    """Return whether all layers of each half have the same modules and sizes. The first may differ, as T5's does, which
    has the table of distances, and ModernBERT's, which lacks a norm."""
    from torch import nn

    with fake_tensors(head):
        model = empty_model(model_config(json.loads(config)), head)
    layer_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    nested_ids = {id(part) for module in layer_lists for layer in module for part in layer.modules()}

    def description(layer: Any) -> list[Any]:
        weights = [(name, tuple(weight.shape)) for name, weight in layer.named_parameters()]
        return [*((name, type(part)) for name, part in layer.named_modules()), *weights]

    descriptions = ([description(layer) for layer in module] for module in layer_lists if id(module) not in nested_ids)
    return all(layer_kind == layer_kinds[-1] for layer_kinds in descriptions for layer_kind in layer_kinds[1:])


def _by_depth(config: dict[str, Any], setup: dict[str, Any], lengths: Lengths) -> list[Bytes]:
    text = language_config(model_config(config))
    shallow_bytes = _row_bytes(config, setup, (_FEW, _FEW), lengths)
    layer_bytes = _per_layer(shallow_bytes, _row_bytes(config, setup, (_MANY, _FEW), lengths))
    decoder_bytes = [dict.fromkeys(layer, 0.0) for layer in layer_bytes]
    if setup["head"] == ENCODER_DECODER:
        decoder_bytes = _per_layer(shallow_bytes, _row_bytes(config, setup, (_FEW, _MANY), lengths))
    return [
        {name: text.num_hidden_layers * size + decoder_layers(text) * per_decoder[name] for name, size in layer.items()}
        | {f"largest_{name}": max(layer[name], per_decoder[name]) for name in ("kept", "made")}
        for layer, per_decoder in zip(layer_bytes, decoder_bytes, strict=True)
    ]


def _per_layer(few_layers: list[Bytes], many: list[Bytes]) -> list[Bytes]:
    byte_pairs = zip(few_layers, many, strict=True)
    return [{name: (more[name] - smaller[name]) / (_MANY - _FEW) for name in smaller} for smaller, more in byte_pairs]


def _row_bytes(config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int], lengths: Lengths) -> list[Bytes]:
    counts = []
    with fake_tensors(setup["head"]), _gpu_kernels(setup):
        model = _model(config, setup, layers)
        if output_layer := model.get_output_embeddings():
            # Other parts of the plan count the logits.
            output_layer.register_forward_pre_hook(lambda module, inputs: (inputs[0][:, :1],))
        for length_pair in lengths:
            fewer_rows, more_rows = (_forward(model, setup, rows, length_pair) for rows in _ROWS)
            counts.append({name: more_rows[name] - fewer_rows[name] for name in fewer_rows})
    return counts


def _compiled_row_bytes(config: dict[str, Any], setup: dict[str, Any], lengths: Lengths) -> list[Bytes]:
    """Return the bytes that autograd saves for one row if layers are compiled: in all layers, and in a single one."""
    import torch
    from torch import nn

    counts, layer_total = [], language_config(model_config(config)).num_hidden_layers
    layer_inputs: list[Any] = []
    with fake_tensors(setup["head"]), torch.autocast("cpu", torch.bfloat16, enabled=setup["precision"] != "fp32"):
        model = _model(config, setup, (_MANY, _MANY)).train()
        stacks = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == _MANY)
        layer = next(stacks)[_FEW]
        layer.register_forward_pre_hook(lambda _, *arguments: layer_inputs.append(arguments), with_kwargs=True)
        for row_tokens, answer_tokens in lengths:
            saved_bytes = []
            for rows in _ROWS:
                layer_inputs.clear()
                model(**make_inputs(setup["head"], rows, row_tokens, answer_tokens))
                saved_bytes.append(_saved_when_compiled(layer, layer_inputs[0]))
            layer_bytes = float(saved_bytes[1] - saved_bytes[0])
            counts.append({"kept": layer_total * layer_bytes, "largest_kept": layer_bytes})
    return counts


def _saved_when_compiled(layer: nn.Module, layer_input: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """Return the bytes that autograd saves of one pass through a compiled layer.

    torch's own partition into a forward and a backward pass decides them, as in every backend of `torch.compile`;
    nothing is compiled. The hidden states that enter the layer count if they are saved, and so do copies of weights in
    another layout. Raises torch's own error if torch cannot trace the layer."""
    import torch
    from torch._functorch.aot_autograd import aot_export_joint_simple
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch.utils._pytree import tree_flatten, tree_unflatten

    names, weights = zip(*layer.named_parameters(), strict=True)
    input_leaves, input_tree = tree_flatten(layer_input)
    tensors = [leaf.detach() for leaf in input_leaves if isinstance(leaf, torch.Tensor)]
    tensors[0].requires_grad_()
    uses_autocast = torch.is_autocast_enabled("cpu")

    def run(*flat_inputs: Tensor) -> tuple[Tensor]:
        remaining_inputs = iter(flat_inputs[len(names) :])
        arguments, keyword_arguments = tree_unflatten(
            [next(remaining_inputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in input_leaves], input_tree
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=uses_autocast):
            weights_by_name = dict(zip(names, flat_inputs, strict=False))
            result = torch.func.functional_call(layer, weights_by_name, arguments, keyword_arguments)
        return (result[0] if isinstance(result, tuple) else result,)

    table = select_decomp_table()
    joint_graph: Any = aot_export_joint_simple(run, (*weights, *tensors), trace_joint=True, decompositions=table)
    forward, _ = min_cut_rematerialization_partition(joint_graph, [*weights, *tensors], num_fwd_outputs=1)
    nodes = list(forward.graph.nodes)
    input_nodes = [node for node in nodes if node.op == "placeholder"]
    results = next(node for node in nodes if node.op == "output").args[0][1:]
    # The weights exist anyway, and inputs that all layers share are saved once for all of them.
    excluded = {*input_nodes[: len(names)], *input_nodes[len(names) + 1 :]}
    saved = [node.meta["val"] for node in results if node not in excluded and hasattr(node.meta.get("val"), "numel")]
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}.values())


def _forward(model: Any, setup: dict[str, Any], rows: int, lengths: tuple[int, int]) -> Bytes:
    """Return the bytes that one forward pass of training and one of evaluation allocate and save."""
    import torch

    inputs = make_inputs(setup["head"], rows, *lengths)
    if setup["packed"] and setup["device"] == "cpu":
        # transformers builds this mask from the positions of documents.
        inputs["attention_mask"] = torch.ones(rows, 1, lengths[0], lengths[0], dtype=torch.bool)
        inputs["position_ids"] = torch.arange(lengths[0]).expand(rows, -1)
    training_counter, evaluation_counter = _allocation_counter(), _allocation_counter()
    saved_storages: dict[int, Any] = {}
    weight_storages = {weight.untyped_storage()._cdata for weight in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weight_storages:
            saved_storages[storage._cdata] = storage  # held so that no other storage gets its address
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=setup["precision"] != "fp32")
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, training_counter, autocast:
        results = model.train()(**inputs)
    del results
    with torch.no_grad(), evaluation_counter, autocast:
        model.eval()(**inputs)
    saved_wide_bytes = sum(storage.nbytes() for key, storage in saved_storages.items() if key in training_counter.wide)
    return {
        "kept": sum(storage.nbytes() for storage in saved_storages.values()),
        "made": training_counter.bytes,
        "wide": sum(training_counter.wide.values()) - saved_wide_bytes,
        "evaluated": evaluation_counter.bytes,
    }


def _model(config: dict[str, Any], setup: dict[str, Any], layers: tuple[int, int]) -> Any:
    import torch

    from tui_trainer.config.sections import TuningSection
    from tui_trainer.tuning import find_method

    cut_config = model_config(config)
    if layers != _WHOLE:
        _cut(language_config(cut_config), layers)
    attention_option = {"attn_implementation": "eager"} if setup["eager_attention"] else {}
    model = empty_model(cut_config, setup["head"], dtype=getattr(torch, setup["weights"]), **attention_option)
    tensor_names = setup.get("lora_parameters", ())
    tuning = TuningSection(
        # Layers with 4-bit weights compute and save the same as with LoRA.
        method="lora" if TUNING_METHODS[setup["method"]].in_four_bits else setup["method"],
        r=max(setup["lora_rank"], 1),
        lora_dropout=0.1 if setup["lora_dropout"] else 0.0,
        use_dora=setup.get("use_dora", False),
        target_modules=",".join(setup["lora_targets"]) or ("" if tensor_names else "all-linear"),
        target_parameters=",".join(tensor_names),
    )
    return find_method(tuning.method).apply(model, tuning, seed=0, autocast=setup["precision"] != "fp32")


def _cut(config: Any, layers: tuple[int, int]) -> None:
    config.num_hidden_layers = layers[0]
    for name in ("num_decoder_layers", "decoder_layers"):
        if getattr(config, name, None) is not None:
            setattr(config, name, layers[1])
    # Some configs derive the kinds from the number of layers and refuse to have them set.
    with suppress(AttributeError):
        if layer_types := list(getattr(config, "layer_types", None) or ()):
            config.layer_types = (layer_types * layers[0])[: layers[0]]


@contextmanager
def _gpu_kernels(setup: dict[str, Any]) -> Iterator[None]:
    """Replace dropout and attention by functions that save what a GPU's kernels save: dropout one byte for each number,
    and fused attention no scores. With `math_attention` a GPU computes attention step by step, as a CPU does
    for dropout or a mask with a gradient. With `repeats_keys` transformers copies keys and values."""
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
            # The layout is the one that the following matmul takes.
            result = query.new_empty((rows, tokens, heads, value.shape[-1])).transpose(1, 2)
            row_sums = query.new_empty((rows, heads, tokens), dtype=torch.float32)
            ctx.save_for_backward(query, key, value, mask, result, row_sums)
            return result

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return Dropout.apply(x) if training and p else x

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *_: Any, **more: Any) -> Any:
        inputs = (query, key, value)
        if torch.is_autocast_enabled("cpu"):
            inputs = (query.to(torch.bfloat16), key.to(torch.bfloat16), value.to(torch.bfloat16))
        if setup.get("math_attention"):
            return torch.ops.aten._scaled_dot_product_attention_math(*inputs, attn_mask, **more)[0]
        return CardAttention.apply(*inputs, attn_mask)

    with ExitStack() as stack:
        stack.enter_context(patch.object(functional, "dropout", dropout))
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attention))
        if setup.get("repeats_keys") and hasattr(sdpa_attention, "use_gqa_in_sdpa"):
            stack.enter_context(patch.object(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False))
        yield


def _allocation_counter() -> Any:
    """Return a torch mode that counts the bytes of all new storages in `bytes`, and of fp32 ones in `wide`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class AllocationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.bytes = 0
            self.wide: dict[int, int] = {}
            self._held: list[Any] = []  # so that no other storage gets their address

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def storages(tree: Any) -> list[tuple[Any, Any]]:
                tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
                return [(tensor, tensor.untyped_storage()) for tensor in tensors]

            storages_before = {storage._cdata for _, storage in storages((args, kwargs))}
            results = function(*args, **(kwargs or {}))
            for tensor, storage in storages(results):
                if storage._cdata not in storages_before:
                    self.bytes += storage.nbytes()
                    if tensor.dtype == torch.float32:
                        self.wide[storage._cdata] = storage.nbytes()
                        self._held.append(storage)
            return results

    return AllocationCounter()
