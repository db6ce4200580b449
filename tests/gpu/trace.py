"""Steps of a run under torch's profiler, by groups of kernels, and each wait of the host for the card.

Torch's sync debug mode warns of each operation that waits. It is counted at the innermost function of the program, and
waits that `tests/simulated_card/waits.py` does not list are given apart.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

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
            "largest": {name: round(value, 3) for name, value in times[group].most_common(8)},
        }
        for group in GROUPS
    }


@contextmanager
def counted_waits(waits: Counter[str]) -> Iterator[None]:
    """Count operations that wait for the card, by the innermost function of the program; without a card, none."""
    import torch

    def note(message: Warning | str, *_: Any, **_named: Any) -> None:
        # Switched on, the mode warns once that it is a prototype.
        if "synchroniz" in str(message) and "prototype" not in str(message):
            waits[_where()] += 1

    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def wait_figures(waits: Counter[str]) -> dict[str, Any]:
    from tests.simulated_card.waits import WAITS

    listed = {function for _, function in WAITS}
    return {
        "synchronisations": dict(waits.most_common()),
        "unexpected": sorted(where for where in waits if where not in listed),
    }


@contextmanager
def counted_in_loop(waits: Counter[str]) -> Iterator[None]:
    """Count the waits of a run from its first step to its last evaluation and checkpoint."""
    from tui_trainer.training.session import Session

    take, write = Session.take_step, Session.write_final_model
    with ExitStack() as counting:

        def take_step(session: Session, step: int) -> None:
            if not begun:
                begun.append(step)
                counting.enter_context(counted_waits(waits))
            take(session, step)

        def write_final_model(session: Session) -> Any:
            counting.close()
            return write(session)

        begun: list[int] = []
        with patch.multiple(Session, take_step=take_step, write_final_model=write_final_model):
            yield


@contextmanager
def traced_steps(first: int, last: int, found: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """Profile these steps of a run inside the block, and call `found` with their figures. Steps count from 1.

    The run saves nothing: a checkpoint of full tuning of 1.7 billion weights has 20 GB.
    """
    import torch

    from tui_trainer.training.session import Session

    take, on_card, waits = Session.take_step, torch.cuda.is_available(), Counter[str]()
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, *([kinds.CUDA] if on_card else [])]
    profiler: Any = torch.profiler.profile(activities=activities, with_flops=True)
    with ExitStack() as counting:

        def take_step(session: Session, step: int) -> None:
            nonlocal started
            if step == first:
                counting.enter_context(counted_waits(waits))
                profiler.start()
                started = perf_counter()
            take(session, step)
            if step == last:
                counting.close()
                if on_card:
                    torch.cuda.synchronize()
                seconds = perf_counter() - started
                profiler.stop()
                found(_figures(profiler.events(), last - first + 1, seconds, on_card=on_card) | wait_figures(waits))

        started = 0.0
        nothing = {"save": lambda *_: True, "write_final_model": lambda session: session.job.folder.model.mkdir()}
        with patch.multiple(Session, take_step=take_step, **nothing):
            yield


def _figures(events: Sequence[Any], steps: int, seconds: float, *, on_card: bool) -> dict[str, Any]:
    groups = group_table(timed_parts(events, on_card=on_card), steps)
    kernels = [event for event in events if str(event.device_type).endswith("CUDA")]
    device_seconds = sum(x.self_device_time_total for x in kernels if not x.is_user_annotation) / 1e6
    flops = sum(event.flops or 0 for event in events)
    products = groups["products"]["milliseconds"] * steps / 1000
    return {
        "traced_steps": steps,
        "traced_step_seconds": seconds / steps,
        "groups": groups,
        # Operations of compiled code have no count.
        "product_teraflops": flops / products / 1e12 if products else None,
        "device_busy_share": device_seconds / seconds if on_card else None,
    }


def _where() -> str:
    """The innermost function of the program on this thread's stack, as `waits.py` writes it."""
    for frame in reversed(traceback.extract_stack()):
        if "/tui_trainer/" in frame.filename:
            return f"{frame.filename.rpartition('/tui_trainer/')[2]} {frame.name}"
    return "outside the program"
