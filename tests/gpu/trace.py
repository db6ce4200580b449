"""Some steps of a run under torch's profiler: device time by groups, attention kernels, and every wait of the host.

The run is the program's own, but for what it would save: nothing is written beside its journal. With torch's sync debug
mode each operation that waits is counted at the innermost function of the program; waits that
`tests/simulated_card/waits.py` does not list are given apart. Graphs that the compiler made are counted for the start,
each step, evaluation and text.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

# Calls of CUDA that return when the card has come so far, and operations of torch that read a number from it.
_WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "aten::item",
            "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")  # fmt: skip
_LARGEST = 8
GROUPS = ("products", "attention", "elementwise", "loss", "optimizer")
# Attention comes first: its kernels are CUTLASS's too, and its fallback is made of products. Inductor's kernels have
# the names of all operations that they are fused of, and compute none of these three.
_FUSED = re.compile(r"^triton_")
_ATTENTION = re.compile(r"attention|attn|flash|fmha|sdpa", re.IGNORECASE)
_PRODUCTS = re.compile(r"gemm|gemv|nvjet|xmma|cutlass|splitk|_mm\b|aten::(addmm|mm|bmm|baddbmm)\b", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optimizer|adam|_foreach_|multi_tensor|_amp_", re.IGNORECASE)
_LOSS = re.compile(r"loss|softmax|cross_?entropy|logsumexp", re.IGNORECASE)


def group_of(name: str, around: Sequence[str]) -> str:
    """One of GROUPS for a kernel, or on a CPU an operation, by its name and those of the operations around it.

    The head's product counts as a product, not as loss.
    """
    names = [*([] if _FUSED.match(name) else [name]), *around]
    for pattern, group in ((_ATTENTION, "attention"), (_PRODUCTS, "products"), (_OPTIMIZER, "optimizer")):
        if any(map(pattern.search, names)):
            return group
    return "loss" if any(map(_LOSS.search, names)) else "elementwise"


def timed_parts(events: Iterable[Any], *, on_card: bool) -> Iterator[tuple[str, list[str], float]]:
    """(name, operations around it, microseconds) of each kernel; without a card of each operation's own part."""
    for event in events:
        if str(event.device_type).endswith("CUDA"):
            continue
        around, parent = [], event if on_card else event.cpu_parent
        while parent is not None:
            around.append(parent.name)
            parent = parent.cpu_parent
        if on_card:
            # A kernel belongs to the innermost operation that started it; a range of the same name is no kernel.
            for kernel in event.kernels:
                if kernel.name != event.name:
                    yield kernel.name, around, float(kernel.duration)
        else:
            yield event.name, around, float(event.self_cpu_time_total)


def group_table(parts: Iterable[tuple[str, list[str], float]], steps: int) -> dict[str, dict[str, Any]]:
    """Milliseconds and kernels a step of each group, with the largest of it in milliseconds a step."""
    times: dict[str, Counter[str]] = defaultdict(Counter)
    counts: Counter[str] = Counter()
    for name, around, microseconds in parts:
        group = group_of(name, around)
        times[group][name[:120]] += microseconds / 1000 / steps
        counts[group] += 1
    return {
        group: {
            "milliseconds": round(sum(times[group].values()), 3),
            "kernels": round(counts[group] / steps),
            "largest": {name: round(value, 3) for name, value in times[group].most_common(_LARGEST)},
        }
        for group in GROUPS
    }


class Watch:
    """Profiles the steps of the program from `after + 1` to `after + steps`."""

    def __init__(self, after: int, steps: int, found: Callable[[Mapping[str, Any]], None]) -> None:
        import torch

        self.first, self.last = after + 1, after + steps
        self.waits: Counter[str] = Counter()
        self._torch, self._found = torch, found
        self._on_card = torch.cuda.is_available()
        self._started = 0.0
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if self._on_card else [])]
        self._profiler: Any = torch.profiler.profile(activities=activities, with_flops=True)

    def install(self) -> None:
        from tui_trainer.training.session import Session

        take = Session.take_step

        def take_step(session: Session, step: int) -> None:
            if step == self.first:
                self._begin()
            take(session, step)
            if step == self.last:
                self._end()

        Session.take_step = take_step
        # A checkpoint of a full run of 1.7 billion weights has 20 GB.
        Session.save = lambda *_: True
        Session.write_final_model = lambda session: session.job.folder.model.mkdir()

    def _begin(self) -> None:
        if self._on_card:
            self._torch.cuda.synchronize()
            warnings.simplefilter("always")
            warnings.showwarning = self._note
            self._torch.cuda.set_sync_debug_mode("warn")
        self._profiler.start()
        self._started = perf_counter()

    def _note(self, message: Warning | str, *_: Any) -> None:
        # Switched on, the mode says once of itself that it is a prototype.
        if "synchroniz" in str(message) and "prototype" not in str(message):
            self.waits[_where()] += 1

    def _end(self) -> None:
        if self._on_card:
            self._torch.cuda.set_sync_debug_mode("default")
            self._torch.cuda.synchronize()
        seconds = perf_counter() - self._started
        self._profiler.stop()
        self._found(self._read(seconds))

    def export(self, file: Path) -> None:
        """Write the trace for chrome://tracing or Perfetto, gzipped where the name ends so."""
        self._profiler.export_chrome_trace(str(file))

    def _read(self, seconds: float) -> dict[str, Any]:
        from tests.simulated_card.waits import WAITS

        steps, events = self.last - self.first + 1, self._profiler.events()
        parts = list(timed_parts(events, on_card=self._on_card))
        groups = group_table(parts, steps)
        kernels = [event for event in events if str(event.device_type).endswith("CUDA")]
        device_seconds = sum(x.self_device_time_total for x in kernels if not x.is_user_annotation) / 1e6
        listed = {function for _, function in WAITS}
        flops = sum(event.flops or 0 for event in events)
        products = groups["products"]["milliseconds"] * steps / 1000
        return {
            "traced_steps": steps,
            "traced_step_seconds": seconds / steps,
            "groups": groups,
            # Operations of compiled code have no count.
            "product_teraflops": flops / products / 1e12 if products else None,
            "device_busy_share": device_seconds / seconds if self._on_card else None,
            # Kernels whose operation the profiler did not find are in no group.
            "grouped_share": sum(time for *_, time in parts) / 1e6 / device_seconds if device_seconds else None,
            "synchronisations": dict(self.waits.most_common()),
            "unexpected": sorted(where for where in self.waits if where not in listed),
            "waiting_calls": dict(Counter(event.name for event in events if event.name in _WAITING)),
        }


def _where() -> str:
    """The innermost function of the program on this thread's stack, as `waits.py` writes it."""
    for frame in reversed(traceback.extract_stack()):
        if "/tui_trainer/" in frame.filename:
            return f"{frame.filename.rpartition('/tui_trainer/')[2]} {frame.name}"
    return "outside the program"


def traced_run(
    arguments: Sequence[str], *, after: int, steps: int, found: Callable[[Mapping[str, Any]], None]
) -> tuple[int, Watch]:
    """The exit code of a run of the program with these arguments, and what still has the trace. `found` is called with
    the figures of the steps, and with the graphs at the end."""
    from tui_trainer.hardware.environment import prepare_environment

    prepare_environment()
    watch = Watch(after, steps, found)
    watch.install()
    from tests.compilations import counted_compilations
    from tui_trainer.cli import main as tui_trainer

    with counted_compilations() as graphs:
        code = tui_trainer(["--no-ui", *arguments])
    found({"graphs": graphs})
    return code, watch
