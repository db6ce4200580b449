"""What a switch costs or gains: whole steps of the program with it and without, by turns in one process.

    python tests/benchmarks/switches.py [--only adapters ...] [--pairs 7] [--shape small] [--device cpu]

Prints for each switch the median ratio of steps a second, that of the peaks of memory (on a CPU: of the tensors of a
step, beside what lies there before it), and by how much the gradient of a weight differs at most, of its norm. Both
begin with the same weights and take the same batches; the gradients are those of the first step.

    adapters      a LoRA layer and its adapter as one function, beside peft's modules (`tuning.fused_adapters`)
    chunks        head and loss in chunks, beside cross entropy of all logits (`training.loss_chunk_tokens`)
    one pass      in chunks whose gradient is made with the loss, beside such whose logits are computed again
"""

from __future__ import annotations

import argparse
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import speed
import torch
from llamas import SHAPES, make
from speed import Setup, components_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.training.components import Components
from tui_trainer.units import MIB

CHUNK = 512


def again(loss: Any) -> None:
    """Each chunk's logits are computed once more in the backward pass, as where labels have weights of their own."""

    def in_chunks(hidden_Nh: Tensor, labels_N: Tensor, smoothing: float) -> Tensor:
        how = HeadLoss(chunk_tokens=loss.chunk_tokens, label_smoothing=smoothing, transform=loss._transform)
        return how.by_label(hidden_Nh, loss._head.weight, labels_N).sum()

    loss._in_chunks = in_chunks


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Settings of both, of the one that is switched on and of the other, and what else the other does to its loss."""

    method: str
    both: Mapping[str, Any] = field(default_factory=dict)
    on: Mapping[str, Any] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Any], None] = lambda loss: None


_CHUNKED = {"training.loss_chunk_tokens": CHUNK}
SWITCHES = {
    "adapters": Switch(method="lora", on={"tuning.fused_adapters": "true"}, off={"tuning.fused_adapters": "false"}),
    "chunks": Switch(method="full", on=_CHUNKED, off={"training.loss_chunk_tokens": 0}),
    "one pass": Switch(method="full", both=_CHUNKED, change=again),
}


class Alive(TorchDispatchMode):
    """The bytes of tensors that are made within and alive, and the most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in given | self._known:
                self._known.add(storage._cdata)
                self.bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.bytes)
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes()).atexit = False
        return found

    def _free(self, key: int, count: int) -> None:
        self._known.discard(key)
        self.bytes -= count


class Contender:
    def __init__(self, components: Components) -> None:
        self.components, self.step = components, 0

    def take(self) -> None:
        self.step += 1
        self.components.take_step(self.step, lambda: self.components.window(self.step))

    def gradients(self) -> dict[str, Tensor]:
        """Of the first step's batch, without taking it."""
        model: Any = self.components.model
        for batch in self.components.window(1):
            with self.components.mixed_precision.autocast():
                self.components.loss(batch).backward()
        found = {name: x.grad.double() for name, x in model.named_parameters() if x.grad is not None}
        model.zero_grad(set_to_none=True)
        return found

    def peak_bytes(self) -> int:
        """Of one step."""
        if self.components.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.take()
            return torch.cuda.max_memory_allocated() - before
        with Alive() as alive:
            self.take()
        return alive.peak_bytes

    def seconds(self, steps: int) -> float:
        started = perf_counter()
        for _ in range(steps):
            self.take()
        if self.components.device.type == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - started


def largest_difference(one: Contender, other: Contender) -> float:
    theirs = other.gradients()
    mine = one.gradients()
    assert mine.keys() == theirs.keys() != set()
    norms = {name: float(x.norm()) for name, x in theirs.items()}
    return max(float((mine[name] - x).norm()) / norms[name] for name, x in theirs.items() if norms[name])


def measure(switch: Switch, setup: Callable[[Mapping[str, Any]], Setup], pairs: int, steps: int) -> None:
    with ExitStack() as stack:
        told: list[str] = []
        on, off = (
            Contender(stack.enter_context(components_of(setup({**switch.both, **settings}), told)))
            for settings in (switch.on, switch.off)
        )
        switch.change(off.components.loss)
        for side in (on, off):
            draw = torch.Generator().manual_seed(1)
            for name, weight in side.components.model.named_parameters():
                if "lora_B" in name:  # zeros, which would hide the gradients of the other factor
                    weight.data.copy_(torch.randn(weight.shape, generator=draw) / 50)
        difference = largest_difference(on, off)
        for side in (on, off):
            side.seconds(steps)
        peaks = [side.peak_bytes() for side in (on, off)]
        ratios = []
        for pair in range(pairs):
            # By turns also within a pair: what the machine does besides hits both.
            seconds = {side: side.seconds(steps) for side in ((on, off) if pair % 2 else (off, on))}
            ratios.append(seconds[off] / seconds[on])
        low, _, high = quantiles(ratios, n=4)
        print(f"  steps a second, with it / without: median {median(ratios):.3f} of {pairs} pairs of {steps} steps, "
              f"middle half {low:.3f} to {high:.3f}  (0.98 sought)")  # fmt: skip
        print(f"  peak memory, with it / without: {peaks[0] / peaks[1]:.3f}  (at most 1.02 sought), "
              f"{peaks[0] / MIB:.1f} and {peaks[1] / MIB:.1f} MiB")  # fmt: skip
        print(f"  largest difference of a gradient: {difference:.1e} of its norm")
        for words in told:
            print(f"  told: {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SWITCHES, default=list(SWITCHES))
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=speed.STEPS_A_TURN, help="of each turn")
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model, documents = make(place, chosen.shape)
        for name in chosen.only:
            switch = SWITCHES[name]

            def setup(settings: Mapping[str, Any], switch: Switch = switch) -> Setup:
                return Setup(llama=SHAPES[chosen.shape], model=model, documents=documents, method=switch.method,
                             device=chosen.device, settings=settings, place=place)  # fmt: skip

            print(f"{name}, Llama {chosen.shape}, {switch.method}:")
            measure(switch, setup, chosen.pairs, chosen.steps)


if __name__ == "__main__":
    main()
