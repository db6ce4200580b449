"""CUDA's autocast for the tensors of a simulated card: torch's own asks each tensor for its device inside torch, where
they are on the CPU.

Which operations are cast is asked of torch; to what, it does not tell: what is not in the lists below goes to fp32.
Source of the lists: `aten/src/ATen/autocast_mode.h` and its page in the documentation, "Autocast Op Reference".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.simulated_card.card import CardTensor

_KEY = "AutocastCUDA"
_SIXTEEN_BITS = frozenset(
    "_convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input prelu addmm addmv addr matmul einsum mm mv linalg_vecdot "
    "linalg_multi_dot linear addbmm baddbmm bmm chain_matmul scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention".split()
)
_WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
)


@contextmanager
def autocast_of_cuda() -> Iterator[None]:
    library = torch.library.Library("aten", "IMPL")  # for the time of this block
    with warnings.catch_warnings():
        # torch warns that its own kernels are replaced, which is what this is for.
        warnings.simplefilter("ignore")
        for full_name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
            name, _, overload = full_name.removeprefix("aten::").partition(".")
            packet = getattr(torch.ops.aten, name, None)
            if full_name.startswith("aten::") and packet is not None:
                dotted = f"{name}.{overload}" if overload else name
                library.impl(dotted, _kernel(dotted, getattr(packet, overload or "default")), _KEY)
    try:
        yield
    finally:
        library._destroy()


def _kernel(name: str, func: Any) -> Callable[..., Any]:
    def cast(*args: Any, **kwargs: Any) -> Any:
        dtype = _dtype(name, args)
        args = tuple(_cast(x, dtype) for x in args)
        kwargs = {key: _cast(x, dtype) for key, x in kwargs.items()}
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
            return func(*args, **kwargs)

    return cast


def _dtype(name: str, args: Any) -> torch.dtype:
    if name in _SIXTEEN_BITS:
        return torch.get_autocast_dtype("cuda")
    given = {x.dtype for x in args if _is_cast(x)}
    return given.pop() if name in _WIDEST and len(given) == 1 else torch.float32


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, (list, tuple)):
        return [_cast(part, dtype) for part in x]
    return x.to(dtype) if _is_cast(x) else x


def _is_cast(x: Any) -> bool:
    return isinstance(x, CardTensor) and x.is_floating_point() and x.dtype != torch.float64
