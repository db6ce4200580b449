"""What autograd keeps of a compiled layer: by torch's own partition of it into a forward and a backward pass, which
every backend of `torch.compile` takes. Part of `dry_run_child`; layers have no numbers there, nothing is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def kept_when_compiled(layer: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]]) -> int:
    """Bytes that are kept of a pass with these arguments, the first of which is kept by the layer that made it; with
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
