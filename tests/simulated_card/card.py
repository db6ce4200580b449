"""A CUDA card for machines without one: its tensors lie in the machine's memory and say `cuda:0`.

torch's own fake tensors have no numbers, and without a GPU no backward pass: autograd asks the driver for a stream. A
tensor of this card has its numbers, so the loop, the probe, evaluation, text samples and checkpoints are the product's
own to the last line; what is computed is computed by the CPU's kernels. In return the card looks at each operation:

* tensors on two devices: refused as CUDA refuses them;
* dtypes that a CUDA kernel refuses and the CPU's takes: refused too;
* the host waits for the device (`.item()`, `nonzero`, a mask as an index, a copy back): recorded, with its line;
* a copy back into pinned memory that nobody waits for is there once an event behind it was waited for, and not before;
* autocast, which asks for the device inside torch, casts by CUDA's lists (`autocast.py`);
* random numbers come from a generator of the card's own, as on a GPU;
* memory: the bytes of all storages that are alive;
* in torch's deterministic mode: operations that have no deterministic form on CUDA, and matmuls where cuBLAS began
  without its setting, which it reads once in a process, are refused.

What it cannot show: what CUDA's kernels compute, how fast they are, and how the allocator divides its memory.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
# One tensor of the machine's memory beside those of the card is no mistake there.
_MIXES_DEVICES = {
    aten._to_copy.default, aten.copy_.default, aten.index.Tensor, aten.index_put_.default, aten.index_put.default,
    aten._index_put_impl_.default,
}  # fmt: skip
_WAITS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default, aten.is_nonzero.default,
    aten.repeat_interleave.Tensor, aten.bincount.default, aten.linalg_solve_ex.default,
}  # fmt: skip
_INDEXES = {
    aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default,
}  # fmt: skip
# The CPU's kernels take fp32 weights beside 16-bit inputs, CUDA's do not.
_ONE_DTYPE = {aten.native_layer_norm.default, aten.native_group_norm.default, aten._fused_rms_norm.default}
# Source: `torch.use_deterministic_algorithms`, what throws on CUDA.
_NO_DETERMINISTIC_FORM = {
    aten.histc.default, aten.median.dim, aten.kthvalue.default, aten.put.default, aten.put_.default,
    aten.nll_loss2d_forward.default, aten.scatter_reduce.two, aten.scatter_reduce_.two, aten.bincount.default,
    aten._ctc_loss_backward.default, aten._embedding_bag_dense_backward.default,
    aten.upsample_linear1d_backward.default, aten.reflection_pad1d_backward.default,
}  # fmt: skip
_MATMULS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.addmm.dtype, aten.baddbmm.default}
_WORKSPACE, _WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
_PINNED = "_lies_in_pinned_memory"


@dataclass(frozen=True)
class Wait:
    """The host waited for the card: in which part of the run, by what, in which function of the product, at which line
    of it (and of a library below it)."""

    phase: str
    what: str
    function: str
    line: str


@dataclass
class Cublas:
    """The workspace that cuBLAS began with; None: this process has not used it yet."""

    workspace: str | None = None


cublas = Cublas()


class CardTensor(Tensor):
    """A tensor that says it is on the card. Its storage is real, and no operation reaches CUDA."""

    @staticmethod
    def __new__(cls, data: Tensor) -> CardTensor:
        return Tensor._make_subclass(cls, data, False, device_for_backend_keys=CUDA)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In threads of libraries, and wherever the mode is set aside.
        return now().compute(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        copy, kwargs = kwargs.get("copy", False), {k: v for k, v in kwargs.items() if k != "copy"}
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "cpu":
            # Without a wait the numbers would not be there yet.
            found = _to_host(self, f"copy to the host{' that nobody waits for' if non_blocking else ''}")
            return found if dtype is None else found.to(dtype)
        dtype = dtype or self.dtype
        if dtype == self.dtype and not copy:
            return self
        return aten._to_copy.default(self, dtype=dtype)

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def tolist(self) -> Any:
        return _to_host(self.detach(), "tolist").tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def pin_memory(self, *_: Any) -> Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def is_pinned(self, *_: Any) -> bool:
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.detach().clone().requires_grad_(self.requires_grad)
            copied.__dict__.update(self.__dict__)
            memo[id(self)] = copied
        return memo[id(self)]

    def __repr__(self, **_: Any) -> str:
        return f"CardTensor({plain(self)!r}, device='cuda:0')"


def plain(tensor: Any) -> Any:
    """The same memory as an ordinary tensor of the CPU."""
    if not isinstance(tensor, CardTensor):
        return tensor
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    with torch._C._DisableTorchDispatch():
        return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage(), tensor.storage_offset(), size, stride)


class _ToHost(torch.autograd.Function):
    """Gradients of what was copied to the host go back to the card."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return plain(tensor).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to(CUDA)


def _to_host(tensor: CardTensor, what: str) -> Tensor:
    now().wait(what)
    copy: Tensor = _ToHost.apply(tensor)
    now().copied_to_host(copy)
    return copy


class Card(TorchDispatchMode):
    """What has happened on the card, and what is on it."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = "outside"
        self.waits: list[Wait] = []
        self.pageable_copies: list[Wait] = []
        """Copies to the card that the host stands by for: from memory that is not pinned, or blocking."""
        self.casts: list[tuple[str, torch.Size]] = []
        """Kernels that only change the dtype: the part of the run, and the shape."""
        self.on_their_way: list[tuple[Tensor, Tensor]] = []
        """Copies into pinned memory that were not waited for yet: where to, and what."""
        self.arrived = self.pinned_bytes = self.pinned_peak_bytes = 0
        self.generator = torch.Generator()
        self.kernels: dict[Any, Callable[..., Any]] = {}
        """What kernels without a form for the CPU compute."""
        self.computed: dict[Any, int] = {}
        self.tf32_products = 0
        """How often each of those was called."""
        self.allocated_bytes = self.peak_bytes = 0
        self.copied_bytes = self.copied_peak_bytes = 0
        """Of copies on the host that are alive, as a checkpoint makes them; and the most that there were."""
        self._alive: set[int] = set()
        self._copies: set[int] = set()

    # What is computed -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.compute(func, args, kwargs or {})

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        if _is_composite(func):
            # Without autograd, as in inference mode, torch hands them on whole.
            with self:
                return func.decompose(*args, **kwargs)
        if kwargs.get("pin_memory"):
            return self._pinned(func(*args, **{name: x for name, x in kwargs.items() if name != "pin_memory"}))
        is_copy = func is aten.copy_.default
        if is_copy and _is_pinned(args[0]) and isinstance(args[1], CardTensor) and args[2:] == (True,):
            self.on_their_way.append((args[0], plain(args[1]).clone()))
            return args[0]
        given = _Given()
        # A view of an ordinary tensor is an ordinary one, also in inference mode.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            plain_args = [given.plain(x) for x in args]
            plain_kwargs = {name: given.plain(x) for name, x in kwargs.items()}
            device = kwargs.get("device")
            to_card = device is not None and torch.device(device).type == "cuda"
            if to_card:
                plain_kwargs["device"] = torch.device("cpu")
            elif not given.on_card:
                if is_copy and _is_pinned(args[1]) and not _is_pinned(args[0]):
                    self.copied_to_host(args[0])
                return func(*args, **kwargs)
            self._check(func, args, kwargs, given.on_card, given.on_host, to_card)
            if func is aten._to_copy.default and kwargs.get("dtype", args[0].dtype) != args[0].dtype:
                self.casts.append((self.phase, args[0].shape))
            if torch.Tag.nondeterministic_seeded in func.tags:
                plain_kwargs = self._drawn(func, plain_kwargs)
            if kernel := self.kernels.get(func):
                self.computed[func] = self.computed.get(func, 0) + 1
            return self._on_card((kernel or func)(*plain_args, **plain_kwargs), given.outer)

    def _on_card(self, found: Any, outer: dict[int, Tensor]) -> Any:
        """Results as tensors of the card; those that were changed in place are the ones that were given."""
        if isinstance(found, Tensor):
            return outer[id(found)] if id(found) in outer else self.put(found)
        return type(found)(self._on_card(x, outer) for x in found) if isinstance(found, (list, tuple)) else found

    def put(self, tensor: Tensor) -> CardTensor:
        """The tensor as one of the card."""
        storage = tensor.untyped_storage()
        key, count = storage._cdata, storage.nbytes()
        if key not in self._alive:
            self._alive.add(key)
            self.allocated_bytes += count
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
            weakref.finalize(storage, self._free, key, count).atexit = False
        return CardTensor(tensor)

    def _free(self, key: int, count: int) -> None:
        self._alive.discard(key)
        self.allocated_bytes -= count

    def copied_to_host(self, copy: Tensor) -> None:
        storage = copy.untyped_storage()
        key, count = storage._cdata, storage.nbytes()
        if key not in self._copies:
            self._copies.add(key)
            self.copied_bytes += count
            self.copied_peak_bytes = max(self.copied_peak_bytes, self.copied_bytes)
            weakref.finalize(storage, self._free_copy, key, count).atexit = False

    def _free_copy(self, key: int, count: int) -> None:
        self._copies.discard(key)
        self.copied_bytes -= count

    def _pinned(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        setattr(tensor, _PINNED, True)
        self.pinned_bytes += storage.nbytes()
        self.pinned_peak_bytes = max(self.pinned_peak_bytes, self.pinned_bytes)
        weakref.finalize(storage, self._unpinned, storage.nbytes()).atexit = False
        return tensor

    def _unpinned(self, count: int) -> None:
        self.pinned_bytes -= count

    @property
    def sent(self) -> int:
        """Copies into pinned memory until now."""
        return self.arrived + len(self.on_their_way)

    def arrive(self, until: int) -> None:
        """The first so many of them are there."""
        while self.arrived < until:
            place, value = self.on_their_way.pop(0)
            place.copy_(value)
            self.arrived += 1

    def _drawn(self, func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        takes = any(argument.name == "generator" for argument in func._schema.arguments)
        return {**kwargs, "generator": self.generator} if takes and kwargs.get("generator") is None else kwargs

    # What a card would refuse, or wait for ----------------------------------------------------------------------------

    def _check(self, func: Any, args: Any, kwargs: Any, on_card: list[Any], on_host: list[Any], to_card: bool) -> None:
        if func not in _MIXES_DEVICES and on_card and any(x.dim() for x in on_host):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({func})"
            )
        if func in _ONE_DTYPE and len({x.dtype for x in on_card}) > 1:
            raise RuntimeError(f"expected scalar type {on_card[0].dtype} but found {on_card[-1].dtype} ({func})")
        if func in _MATMULS:
            cublas.workspace = os.environ.get(_WORKSPACE, "") if cublas.workspace is None else cublas.workspace
            self.tf32_products += torch.get_float32_matmul_precision() != "highest"
        if torch.are_deterministic_algorithms_enabled():
            self._check_determinism(func)
        if func in _WAITS or (func in _INDEXES and _has_mask(args[1])):
            self.wait(str(func))
        elif func is aten.copy_.default:
            if not isinstance(args[0], CardTensor):
                self.wait("copy to the host")
            elif on_host and args[1].dim():
                self._copied(args[1], non_blocking=len(args) > 2 and bool(args[2]))
        elif func is aten._to_copy.default and to_card and on_host:
            self._copied(on_host[0], non_blocking=bool(kwargs.get("non_blocking")))

    @staticmethod
    def _check_determinism(func: Any) -> None:
        if func in _NO_DETERMINISTIC_FORM:
            raise RuntimeError(f"{func} does not have a deterministic implementation")
        if func in _MATMULS and cublas.workspace not in _WORKSPACES:
            what = f"cuBLAS began with the workspace {cublas.workspace!r}"
            raise RuntimeError(f"Deterministic behavior was enabled, but {what}, which is not deterministic ({func})")

    def _copied(self, source: Tensor, *, non_blocking: bool) -> None:
        if not (non_blocking and getattr(source, _PINNED, False)):
            self.pageable_copies.append(_here(self.phase, "copy to the card"))

    def wait(self, what: str) -> None:
        self.waits.append(_here(self.phase, what))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before


class _Given:
    """The arguments of an operation: which tensors are where, and which ordinary one stands for which."""

    def __init__(self) -> None:
        self.on_card: list[CardTensor] = []
        self.on_host: list[Tensor] = []
        self.outer: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []

    def plain(self, x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [self.plain(part) for part in x]
        if not isinstance(x, Tensor):
            return x
        (self.on_card if isinstance(x, CardTensor) else self.on_host).append(x)
        made = plain(x)
        self.outer[id(made)] = x
        self._kept.append(made)
        return made


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _is_pinned(tensor: Any) -> bool:
    """It, or what it is a view of."""
    return any(getattr(x, _PINNED, False) for x in (tensor, getattr(tensor, "_base", None)))


def _has_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)


def _here(phase: str, what: str) -> Wait:
    """At the innermost line of the product, and the library's below it where it is one of those that waits."""
    frame, library, line = sys._getframe(2), "", ""
    while frame:
        path, function = frame.f_code.co_filename, frame.f_code.co_name
        if "/tui_trainer/" in path:
            file = path.rpartition("/tui_trainer/")[2]
            line = line or f"{file}:{frame.f_lineno}{f' ({library})' if library else ''}"
            if not function.startswith("<"):
                return Wait(phase, what, f"{file} {function}", line)
        elif not library and "/site-packages/" in path and "/site-packages/torch/" not in path:
            library = f"{path.rpartition('/site-packages/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return Wait(phase, what, library or "a test", library)


_cards: list[Card] = []


def now() -> Card:
    """The card of this process."""
    return _cards[-1]
