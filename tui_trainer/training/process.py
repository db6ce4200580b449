"""What a run sets for the whole process, in one list: put back when the run ends, so that the next finds what this one
found. And the memory of a run that is over.

torch's generators are not among it: each run seeds them, or restores those of its checkpoint.
"""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from tui_trainer.errors import ConfigError
from tui_trainer.hardware.environment import determinism_problems
from tui_trainer.planning.plan import Plan
from tui_trainer.training.device import device_of, use_device


@dataclass(frozen=True, slots=True)
class _Setting:
    """Of the process: how it is read, and how it is set."""

    read: Callable[[], Any]
    set: Callable[[Any], None]


def _variable(name: str) -> _Setting:
    def set_variable(value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return _Setting(lambda: os.environ.get(name), set_variable)


def _show_progress_bars(shown: bool) -> None:
    (transformers_logging.enable_progress_bar if shown else transformers_logging.disable_progress_bar)()


def _be_deterministic(strict: bool) -> None:
    # It loads the compiler's settings, which most runs do without.
    if strict != torch.are_deterministic_algorithms_enabled():
        # Not `warn_only`: then torch's attention kernels stay as they are, and the backward pass differs between runs.
        torch.use_deterministic_algorithms(strict)


_DETERMINISTIC = _Setting(torch.are_deterministic_algorithms_enabled, _be_deterministic)
_MATMULS = _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
_THREADS = _Setting(torch.get_num_threads, torch.set_num_threads)
_TOKENIZERS = _variable("TOKENIZERS_PARALLELISM")
# cuDNN's attention has no deterministic backward pass in torch. SDPA leaves it out by itself, attention by lengths does
# not: on Hopper and Blackwell it would take cuDNN's kernel. Source: pull request 182551 of pytorch and its varlen.py.
_CUDNN_ATTENTION = _Setting(torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp)
# flash-attn does not ask torch; transformers reads this at each call of it.
_FLASH = _variable("FLASH_ATTENTION_DETERMINISTIC")
# It looks for a device when transformers first asks whether a model is one of its own, and tells what it found.
_DEEPSPEED = _variable("DS_ACCELERATOR")
_VERBOSITY = _Setting(transformers_logging.get_verbosity, transformers_logging.set_verbosity)
_PROGRESS_BARS = _Setting(transformers_logging.is_progress_bar_enabled, _show_progress_bars)
_ALL = (
    _DETERMINISTIC, _MATMULS, _CUDNN_ATTENTION, _THREADS, _TOKENIZERS, _FLASH, _DEEPSPEED, _VERBOSITY, _PROGRESS_BARS,
)  # fmt: skip


@contextmanager
def settings_of(plan: Plan) -> Iterator[None]:
    """The process as the plan wants it, for the time of its run. Raises ConfigError where it cannot be that."""
    before = [(setting, setting.read()) for setting in _ALL]
    try:
        _set(plan)
        yield
    finally:
        for setting, value in before:
            setting.set(value)


def _set(plan: Plan) -> None:
    training, on_gpu = plan.config.training, plan.device == "cuda"
    strict = on_gpu and training.deterministic
    if strict and (problems := determinism_problems()):
        raise ConfigError(problems)
    # The number of threads is part of exactness: another one sums in another order.
    _THREADS.set(plan.threads.value)
    _TOKENIZERS.set("false")
    _DEEPSPEED.set(plan.device)
    _VERBOSITY.set(logging.ERROR)
    _PROGRESS_BARS.set(False)
    if on_gpu:
        # Where CUDA is at work already, as for a second run, the first has said so.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    _MATMULS.set("high" if on_gpu and training.tf32 and not strict else "highest")
    if strict:
        _FLASH.set("1")
        _CUDNN_ATTENTION.set(False)
    _DETERMINISTIC.set(strict)
    use_device(device_of(plan))


def kernel_threads() -> int:
    """Threads that torch's kernels get on the CPU: what was set, less where OMP_THREAD_LIMIT allows fewer."""
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    threads = int(torch.get_num_threads())
    return min(threads, int(limit)) if limit.isdigit() and int(limit) else threads


def give_memory_back() -> None:
    """Once nothing holds the model of a run any more: the next one has all the memory, and a peak of its own."""
    # Libraries may have made cycles.
    gc.collect()
    if torch.cuda.is_initialized():
        # A card that an error inside a kernel has broken refuses this too.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
