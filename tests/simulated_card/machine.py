"""A machine with one simulated card: what the product and its libraries ask of the driver, of torch and of CUDA."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import varlen
from torch.utils import _foreach_utils

from tests.simulated_card import card as cards
from tests.simulated_card.autocast import autocast_of_cuda
from tests.simulated_card.bitsandbytes_stand_in import VERSION, bitsandbytes_stand_in
from tests.simulated_card.card import CUDA, Card, CardTensor
from tests.simulated_card.kernels import KERNELS
from tests.simulated_card.liger_stand_in import VERSION as LIGER
from tests.simulated_card.liger_stand_in import liger_stand_in
from tests.simulated_card.torchao_stand_in import VERSION as TORCHAO
from tests.simulated_card.torchao_stand_in import torchao_stand_in
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.recorder import Recorder
from tui_trainer.training.session import Session
from tui_trainer.units import GIB

UUID = "GPU-51a7ed00-0000-0000-0000-000000000000"
H200 = Gpu(
    index=0, name="NVIDIA H200", uuid=UUID, capability=(9, 0), memory_bytes=141 * GIB, memory_free_bytes=140 * GIB,
    processes=(),
)  # fmt: skip


class Event:
    """A mark in the card's queue, which can be read once the host has waited for it."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._seconds, self._waits, self._sent = 0.0, -1, 0

    def record(self, stream: Any = None) -> None:
        self._seconds, self._waits, self._sent = perf_counter(), len(cards.now().waits), cards.now().sent

    def synchronize(self) -> None:
        cards.now().wait("synchronize an event")
        cards.now().arrive(self._sent)

    def wait(self, stream: Any = None) -> None:
        """Another queue waits: what was asked for is done."""

    def elapsed_time(self, end: Event) -> float:
        if self._waits < 0 or end._waits < 0:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if len(cards.now().waits) == end._waits:
            raise RuntimeError("CUDA error: device not ready")
        return (end._seconds - self._seconds) * 1000


class Queue:
    """A stream of the card, which computes at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CUDA

    def wait_stream(self, stream: Any) -> None:
        """What was asked for is done."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


def hardware_with(gpu: Gpu) -> Hardware:
    here = probe()
    return replace(
        here, gpus=(gpu,), driver=Driver(version="580.65.06", cuda=(13, 2)), torch_cuda=(13, 0), nvidia_pci_devices=1,
        # More threads than cores would only wait for each other.
        usable_cores=1, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB,
        libraries={**here.libraries, "bitsandbytes": VERSION, "liger-kernel": LIGER, "torchao": TORCHAO, "triton": "3"},
    )  # fmt: skip


def _cuda(card: Card, gpu: Gpu) -> dict[str, Any]:
    """Return the functions that replace those of `torch.cuda`."""

    def reset_peak(*_: Any) -> None:
        card.peak_bytes = card.allocated_bytes

    def seed(number: int) -> None:
        card.generator.manual_seed(number)

    properties = SimpleNamespace(
        name=gpu.name, uuid=UUID.removeprefix("GPU-"), total_memory=gpu.memory_bytes, major=gpu.capability[0],
        minor=gpu.capability[1], multi_processor_count=132,
    )  # fmt: skip
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_current_stream_capturing": lambda: False,
        "set_device": lambda device: None,
        "get_device_capability": lambda *_: gpu.capability,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: gpu.name,
        "is_bf16_supported": lambda *_, **__: gpu.capability >= (8, 0),
        "mem_get_info": lambda *_: (gpu.memory_free_bytes, gpu.memory_bytes),
        "memory_allocated": lambda *_: card.allocated_bytes,
        "memory_reserved": lambda *_: card.allocated_bytes,
        "max_memory_allocated": lambda *_: card.peak_bytes,
        "reset_peak_memory_stats": reset_peak,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: card.wait("synchronize"),
        "Event": Event,
        "Stream": Queue,
        "current_stream": lambda *_: Queue(),
        "stream": lambda _: nullcontext(),
        "manual_seed": seed,
        "manual_seed_all": seed,
        "get_rng_state": lambda *_: card.generator.get_state(),
        "set_rng_state": lambda state, *_: card.generator.set_state(state) and None,
    }


_tensor_to, _tensor_data = Tensor.to, Tensor.data


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`x.to(y)` asks y for its device inside torch, and `x.to("cuda")` asks the driver which card that is."""
    if args and isinstance(args[0], CardTensor):
        args = (CUDA, args[0].dtype, *args[1:])
    if args and isinstance(args[0], (str, torch.device)):
        args = (_numbered(args[0]), *args[1:])
    if kwargs.get("device") is not None:
        kwargs["device"] = _numbered(kwargs["device"])
    return _tensor_to(tensor, *args, **kwargs)


def _numbered(device: Any) -> torch.device:
    return CUDA if torch.device(device).type == "cuda" else torch.device(device)


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """Modules move so: a parameter stays the object that it is, and lies elsewhere."""
    if isinstance(tensor, CardTensor) and not isinstance(value, CardTensor):
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(value, tensor.requires_grad))
        return
    _tensor_data.__set__(tensor, value)
    if isinstance(tensor, CardTensor) != isinstance(value, CardTensor):
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        tensor.__class__ = CardTensor
        if is_parameter:
            tensor._is_param = True


def _pin_memory(tensor: Tensor, *_: Any) -> Tensor:
    pinned = tensor.clone()
    setattr(pinned, cards._PINNED, True)
    return pinned


def _made_from(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` puts numbers on the device without asking any mode."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            return make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(CUDA)

    return made


def _by_device(tensorlists: Any, with_indices: bool = False) -> Any:
    """torch groups tensors by their device inside torch, where those of the card are on the CPU."""
    on_card = any(isinstance(x, CardTensor) for some in tensorlists for x in some)
    found = torch._C._group_tensors_by_device_and_dtype(tensorlists, with_indices)
    for group, _ in found.values():
        kinds = {x.device for some in group for x in some if x is not None and x.dim()}
        assert len(kinds) < 2, f"tensors of one group are on {kinds}"
    return {(CUDA if on_card else device, dtype): group for (device, dtype), group in found.items()}


_PHASES = (
    (Session, "__init__", "start"),
    (Session, "take_step", "micro-batches"),
    (RunOptimizer, "apply", "update"),
    (Recorder, "flush", "log"),
    (Session, "evaluate", "evaluation"),
    (Session, "sample", "sample"),
    (Session, "save", "checkpoint"),
    (Session, "write_final_model", "final model"),
)


def _during(phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with cards.now().during(phase):
            return method(*args, **kwargs)

    return call


@contextmanager
def simulated_card() -> Iterator[Card]:
    """This process has one card, until the block ends."""
    card = Card()
    card.kernels.update(KERNELS)
    hardware = hardware_with(H200)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(patch.multiple(torch.cuda, **_cuda(card, H200)))
        enter(patch.multiple(Tensor, to=_to, type_as=lambda x, y: x.to(y), pin_memory=_pin_memory))
        enter(patch.object(Tensor, "is_pinned", lambda x, *_: getattr(x, cards._PINNED, False)))
        enter(patch.object(Tensor, "data", property(_tensor_data.__get__, _set_data)))
        enter(patch.object(_foreach_utils, "_group_tensors_by_device_and_dtype", _by_device))
        enter(patch.object(import_module("torch.nn.utils.clip_grad"), "_group_tensors_by_device_and_dtype", _by_device))
        enter(patch.object(import_module("torch.optim.optimizer"), "_group_tensors_by_device_and_dtype", _by_device))
        # torch 2.11 never takes cuDNN for attention by lengths, and does not ask for its version.
        if hasattr(varlen, "_cudnn_version_and_major_capability"):
            enter(patch.object(varlen, "_cudnn_version_and_major_capability", lambda _: (92400, H200.capability[0])))
            enter(patch.object(varlen, "_should_use_cudnn", lambda _: H200.capability[0] in (9, 10)))
        # Weights go to the card in the thread that loads them.
        enter(patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"))
        # A list of torch's, which is made at its first use and holds the functions that are replaced here.
        import_module("torch.utils._device")._device_constructors()
        enter(patch.multiple(torch, tensor=_made_from(torch.tensor), as_tensor=_made_from(torch.as_tensor)))
        stream = SimpleNamespace(is_capturing=lambda: False)
        enter(patch.object(torch.accelerator, "current_stream", lambda *_: stream))
        for owner, name, phase in _PHASES:
            enter(patch.object(owner, name, _during(phase, getattr(owner, name))))
        for module in ("launching.open_run", "launching.prepare", "hardware.probe"):
            enter(patch(f"tui_trainer.{module}.probe", lambda: hardware))
        enter(patch("tui_trainer.hardware.nvml.session", lambda **_: None))
        for stand_in in (bitsandbytes_stand_in, liger_stand_in, torchao_stand_in):
            enter(stand_in())
        enter(autocast_of_cuda())
        cards._cards.append(card)
        try:
            with card:
                yield card
        finally:
            cards._cards.remove(card)
