"""What a run sets for the whole process: put back when the run ends, so that the next finds what this one
found. And the memory of a run that is over.

torch's generators are not among it: each run seeds them, or restores those of its checkpoint.
"""

import logging
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from transformers.integrations import sdpa_attention
from transformers.utils import logging as transformers_logging

from tui_trainer.errors import ConfigError
from tui_trainer.hardware.environment import determinism_problems
from tui_trainer.hardware.out_of_memory import clear_error_frames, free_memory, is_out_of_memory
from tui_trainer.hardware.visible_gpus import card_index
from tui_trainer.planning.attention import CUDNN
from tui_trainer.planning.plan import Plan
from tui_trainer.terminal.safe_text import one_line

# Where a run computes, as torch names it. One program may carry out runs on several cards, one after the other.
#
# CUDA reads CUDA_VISIBLE_DEVICES once, when anything in the process first asks it for cards: to change it afterwards
# changes nothing, and the first card computes. So it stays as the user has set it, and the card is named to torch.


def device_of(plan: Plan) -> torch.device:
    """The CPU, or the plan's card by torch's own number. Raises RunError when CUDA does not show that card."""
    return torch.device("cpu") if plan.device != "cuda" else torch.device("cuda", card_index(plan.gpu_uuid))


def use_device(device: torch.device) -> None:
    """Make it the one that libraries mean that are told no device (bitsandbytes, kernels, memory statistics).

    It holds for the thread that asks, so each run asks in its own; its peak of memory begins anew.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)


def reason_to_fall_back(error: Exception) -> str:
    """What a faster way has failed with, where another one may do. Raises `error` where none would: it broke the
    device, or memory ran out, which is given back before."""
    if breaks_the_device(error):
        raise error
    if is_out_of_memory(error):
        clear_error_frames(error)
        free_memory()
        raise error
    return one_line(f"{type(error).__name__}: {error}", 200)


def breaks_the_device(error: Exception) -> bool:
    """Whether nothing more can be computed after it: an error inside a kernel stays with the process."""
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


_set_threads = torch.set_num_threads


@contextmanager
def replaced(names: MutableMapping[str, Any], **values: Any) -> Iterator[None]:
    """These values under their names, of a module or of the environment, until what was there before is put back."""
    before = {name: names[name] for name in values if name in names}
    names.update(values)
    try:
        yield
    finally:
        for name in values:
            names.pop(name, None)
        names.update(before)


def _show_progress_bars(shown: bool) -> None:
    (transformers_logging.enable_progress_bar if shown else transformers_logging.disable_progress_bar)()


def _be_deterministic(strict: bool) -> None:
    # It loads the compiler's settings, which most runs do without.
    if strict != torch.are_deterministic_algorithms_enabled():
        # Not `warn_only`: then torch's attention kernels stay as they are, and the backward pass differs between runs.
        torch.use_deterministic_algorithms(strict)


@contextmanager
def settings_of(plan: Plan) -> Iterator[None]:
    """The process as the plan wants it, for the time of its run. Raises ConfigError where it cannot be that."""
    training, on_gpu = plan.config.training, plan.device == "cuda"
    strict = on_gpu and training.deterministic
    if strict and (problems := determinism_problems()):
        raise ConfigError(problems)
    cuda, log = torch.backends.cuda, transformers_logging
    # DeepSpeed looks for a device when transformers first asks whether a model is one of its own, and tells what it
    # found.
    variables = {"TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": plan.device}
    if strict:
        # flash-attn does not ask torch; transformers reads this at each call of it.
        variables["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    # Only fp32 runs have large fp32 products. In 16 bits the only fp32 product of most models computes rotary angles.
    uses_tf32 = on_gpu and training.tf32 and not strict and plan.precision.value == "fp32"
    matmuls = "high" if uses_tf32 else "highest"
    settings: list[tuple[Callable[[Any], None], Any, Any]] = [
        # The number of threads is part of exactness: another one sums in another order.
        (_set_threads, torch.get_num_threads(), plan.threads.value),
        (log.set_verbosity, log.get_verbosity(), logging.ERROR),
        (_show_progress_bars, log.is_progress_bar_enabled(), False),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), matmuls),
        # On for runs whose plan chose it alone. Elsewhere it has no deterministic backward pass, or builds a plan of
        # its own for nearly each pass: of padded rows, and of documents by their lengths, which torch gives it as well
        # on Hopper and Blackwell. Source: pull request 182551 of pytorch, and its varlen.py.
        (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled(), cuda.cudnn_sdp_enabled() and plan.attention.kernel == CUDNN),
        (_be_deterministic, torch.are_deterministic_algorithms_enabled(), strict),
    ]
    with ExitStack() as before:
        before.enter_context(replaced(os.environ, **variables))
        if plan.attention.repeats_keys:
            # Else transformers hands fewer heads of keys to a kernel that refuses them, and torch computes all scores.
            before.enter_context(replaced(vars(sdpa_attention), use_gqa_in_sdpa=lambda *_: False))
        for put, now, then in settings:
            before.callback(put, now)
            put(then)
        if on_gpu:
            # Where CUDA is at work already, as for a second run, the first has said so.
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        use_device(device_of(plan))
        yield


def kernel_threads() -> int:
    """Threads that torch's kernels get on the CPU: what was set, less where OMP_THREAD_LIMIT allows fewer."""
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    threads = int(torch.get_num_threads())
    return min(threads, int(limit)) if limit.isdigit() and int(limit) else threads


def give_memory_back() -> None:
    """Once nothing holds the model of a run any more: the next one has all the memory, and a peak of its own."""
    # A card that an error inside a kernel has broken refuses this too.
    with suppress(RuntimeError):
        free_memory()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
