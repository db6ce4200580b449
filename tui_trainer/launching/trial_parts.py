"""Tries what a machine has, part by part: in a worker, which alone loads torch, sees the cards and computes on them.
Whoever asks goes on when it dies of a driver.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from tui_trainer.hardware.nvml import session
from tui_trainer.hardware.storage import read_rate, write_rate
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB
from tui_trainer.worker.questions import Report

_SECONDS = {"cpu": 0.4, "cuda": 0.6}
_LONG_SECONDS = 1.5
# Large enough that a card is busy, small enough for a core.
_SIDE = {"cpu": 1024, "cuda": 8192}
_TRIAL_BYTES = 128 * MIB
_HEADS, _LENGTH, _HEAD_SIZE = 8, 1024, 64
_PRECISIONS = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_KERNELS = {"flash": "FLASH_ATTENTION", "memory-efficient": "EFFICIENT_ATTENTION", "cuDNN": "CUDNN_ATTENTION",
            "plain": "MATH"}  # fmt: skip


def try_parts(question: dict[str, Any], report: Report) -> None:
    """Reports each part that begins, and again what was found. `question` has device, threads, uuid, places,
    attention_packages."""
    parts: dict[str, Callable[[dict[str, Any]], Any]] = {
        "disks": disks,
        "loader": loader,
        "precisions": precisions,
        "memory": memory,
        "attention": attention,
        "long": long_load,
    }
    for name, attempt in parts.items():
        report(part=name)
        try:
            found = attempt(question)
        except Exception as error:  # whatever a driver, torch or a disk raises: the other parts are tried all the same
            found = {"reason": _words(error)}
        report(part=name, found=found)


def disks(question: dict[str, Any]) -> list[dict[str, Any]]:
    """Bytes a second, written until they are safe and then read again, of each file system once."""
    found, seen = [], set()
    for label, path in question["places"].items():
        folder = next((one for one in (Path(path), *Path(path).parents) if one.is_dir()), Path("/"))
        if (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        written, read = write_rate(folder, most_bytes=_TRIAL_BYTES), None
        with suppress(OSError), TemporaryDirectory(dir=folder, prefix=".tui-trainer-") as place:
            file = Path(place, "trial")
            file.write_bytes(bytes(range(256)) * (64 * MIB // 256))
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            read = read_rate(file, seconds=1.0)
        found.append(
            {
                "label": label,
                "path": str(folder),
                "read_bytes_per_second": read.bytes_per_second if read else None,
                "write_bytes_per_second": written,
            }
        )
    return found


def loader(_: dict[str, Any]) -> dict[str, float]:
    """Tokens a second that are cut out of a memory-mapped file into batches, as a run does between its steps."""
    import numpy as np

    with TemporaryDirectory(prefix="tui-trainer-") as place:
        path = Path(place, "tokens")
        np.arange(4 << 20, dtype=np.int32).tofile(path)
        tokens = np.memmap(path, dtype=np.int32, mode="r")
        rows = len(tokens) // _LENGTH
        order = np.random.default_rng(0).permutation(rows)
        count, started = 0, perf_counter()
        while perf_counter() - started < _SECONDS["cpu"]:
            chosen = order[count % rows : count % rows + 8]
            batch = np.stack([tokens[row * _LENGTH : (row + 1) * _LENGTH] for row in chosen]).astype(np.int64)
            count += len(batch)
        return {"tokens_per_second": count * _LENGTH / (perf_counter() - started)}


def precisions(question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """10^12 operations a second of a large matmul in each precision; `reason` where it cannot be computed."""
    return {name: _tried(partial(_matmul_rate, question, name)) for name in _PRECISIONS} | (
        {"fp8": _tried(lambda: _fp8_rate(question))} if question["device"] == "cuda" else {}
    )


def memory(question: dict[str, Any]) -> dict[str, float]:
    """10^9 bytes a second that a copy of a large tensor reads and writes."""
    torch = _torch(question)
    on_card = question["device"] == "cuda"
    source = torch.ones((1024 if on_card else 64) * MIB // 4, device=question["device"])
    target = torch.empty_like(source)
    seconds = _best(question, lambda: target.copy_(source))
    return {"gigabytes_per_second": 2 * source.numel() * 4 / seconds / 1e9}


def attention(question: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Seconds of attention, forward and backward, by each kernel of torch; and what of libraries can be imported."""
    torch = _torch(question)
    from torch.nn.attention import SDPBackend

    dtype = torch.bfloat16 if question["device"] == "cuda" else torch.float32
    found = {
        name: _tried(partial(_attention_seconds, question, dtype, getattr(SDPBackend, backend)))
        for name, backend in _KERNELS.items()
        if hasattr(SDPBackend, backend)
    }
    return found | {package: _tried(partial(_imported, package)) for package in question["attention_packages"]}


def long_load(question: dict[str, Any]) -> dict[str, Any]:
    """The rate of matmuls at the beginning and at the end of a second and more, and whether the card was slowed."""
    torch, on_cpu = _torch(question), question["device"] == "cpu"
    side, dtype = (_SIDE["cpu"] // 2, torch.float32) if on_cpu else (_SIDE["cuda"], torch.float16)
    one = torch.ones(side, side, device=question["device"], dtype=dtype)
    seconds = _timed(question, lambda: one @ one, _LONG_SECONDS)
    quarter = len(seconds) // 4 or 1
    slower = median(seconds[-quarter:]) / median(seconds[:quarter])
    if on_cpu:
        return {"slower_at_the_end": slower, "slowed_by": ""}
    nvml = session()
    found = nvml.in_use(question["uuid"], 0) if nvml else None
    return {
        "slower_at_the_end": slower,
        "slowed_by": (found[0].slowed_by if found else None) or "",
        "clock_share": found[0].clock_share if found else None,
        "temperature_celsius": found[0].temperature_celsius if found else None,
    }


def _torch(question: dict[str, Any]) -> Any:
    import torch

    if question["device"] == "cpu":
        torch.set_num_threads(question["threads"])
    else:
        from tui_trainer.models.cards import card_index

        torch.cuda.set_device(card_index(question["uuid"]))
    return torch


def _matmul_rate(question: dict[str, Any], precision: str) -> dict[str, float]:
    torch = _torch(question)
    device, side = question["device"], _SIDE[question["device"]]
    if precision == "tf32" and device == "cpu":
        raise RuntimeError("only on a card")
    if precision != "fp32" and device == "cpu":
        side //= 2  # emulated ones are slow
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    one = torch.randn(side, side, device=device).to(getattr(torch, _PRECISIONS[precision]))
    seconds = _best(question, lambda: one @ one)
    if not bool(torch.isfinite((one @ one).float()).all()):
        raise RuntimeError("the product is not finite")
    return {"teraflops": 2 * side**3 / seconds / 1e12}


def _fp8_rate(question: dict[str, Any]) -> dict[str, float]:
    torch, side = _torch(question), _SIDE["cuda"]
    one = torch.randn(side, side, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.ones((), device="cuda")
    seconds = _best(
        question,
        lambda: torch._scaled_mm(one, one.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16),
    )
    return {"teraflops": 2 * side**3 / seconds / 1e12}


def _attention_seconds(question: dict[str, Any], dtype: Any, backend: Any) -> dict[str, float]:
    torch = _torch(question)
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    attend: Any = scaled_dot_product_attention
    rows = 4 if question["device"] == "cuda" else 1
    shape = (rows, _HEADS, _LENGTH, _HEAD_SIZE)
    q, k, v = (torch.randn(shape, device=question["device"], dtype=dtype, requires_grad=True) for _ in range(3))

    def both() -> None:
        attend(q, k, v, is_causal=True).sum().backward()

    with sdpa_kernel(backend):
        return {"seconds": _best(question, both)}


def _imported(package: str) -> dict[str, Any]:
    import_module(package)
    return {}


def _tried(attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return attempt()
    except Exception as error:  # what a kernel, a card or a library cannot do, each says in its own way
        return {"reason": _words(error)}


def _words(error: Exception) -> str:
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0], 160)


def _best(question: dict[str, Any], work: Callable[[], Any]) -> float:
    """Other programs only ever make it slower."""
    return min(_timed(question, work, _SECONDS[question["device"]]))


def _timed(question: dict[str, Any], work: Callable[[], Any], seconds: float) -> list[float]:
    finish = _torch(question).cuda.synchronize if question["device"] == "cuda" else lambda: None
    work()
    finish()
    found, started = [], perf_counter()
    while perf_counter() - started < seconds:
        before = perf_counter()
        work()
        finish()
        found.append(perf_counter() - before)
    return found
