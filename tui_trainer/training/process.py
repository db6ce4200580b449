"""Set global state of the process for one run and restore it afterwards, and free the memory of a finished run.

The state of torch's random generators is not restored, because each run seeds or loads them.
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

# One process may carry out several runs on different GPUs, one after the other.
#
# CUDA reads CUDA_VISIBLE_DEVICES only when the process first asks for GPUs. The variable therefore keeps the user's
# value, and torch gets the number of the GPU.


def device_of(plan: Plan) -> torch.device:
    """Return the plan's device, a GPU by its number in torch. Raises RunError if CUDA does not list that GPU."""
    return torch.device("cpu") if plan.device != "cuda" else torch.device("cuda", card_index(plan.gpu_uuid))


def use_device(device: torch.device) -> None:
    """Make a GPU the current device of this thread, and reset its memory peak.

    bitsandbytes, some kernels and the memory statistics use the current device.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)


def reason_to_fall_back(error: Exception) -> str:
    """Return why a faster implementation failed, or raise `error` again if a fallback would fail as well.

    The fallback would fail if the device is broken or memory ran out. In the second case memory is freed first."""
    if breaks_the_device(error):
        raise error
    if is_out_of_memory(error):
        clear_error_frames(error)
        free_memory()
        raise error
    return one_line(f"{type(error).__name__}: {error}", 200)


def breaks_the_device(error: Exception) -> bool:
    """Return whether the GPU cannot be used any more by this process, because the error occurred inside a kernel."""
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)


_set_threads = torch.set_num_threads


@contextmanager
def replaced(names: MutableMapping[str, Any], **values: Any) -> Iterator[None]:
    """Return a context in which entries of `names`, a module's namespace or the environment, have these values."""
    old_values = {name: names[name] for name in values if name in names}
    names.update(values)
    try:
        yield
    finally:
        for name in values:
            names.pop(name, None)
        names.update(old_values)


def _show_progress_bars(is_shown: bool) -> None:
    (transformers_logging.enable_progress_bar if is_shown else transformers_logging.disable_progress_bar)()


def _be_deterministic(is_on: bool) -> None:
    # The call loads the compiler's settings, which most runs do not need.
    if is_on != torch.are_deterministic_algorithms_enabled():
        # `warn_only` would allow attention kernels of torch whose backward pass differs between runs.
        torch.use_deterministic_algorithms(is_on)


@contextmanager
def settings_of(plan: Plan) -> Iterator[None]:
    """Return a context with the global state that the plan requires. Raises ConfigError if it cannot be set."""
    training, is_on_gpu = plan.config.training, plan.device == "cuda"
    is_deterministic = is_on_gpu and training.deterministic
    if is_deterministic and (problems := determinism_problems()):
        raise ConfigError(problems)
    cuda, log = torch.backends.cuda, transformers_logging
    # Without DS_ACCELERATOR, DeepSpeed detects a device and prints it as soon as transformers imports it.
    variables = {"TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": plan.device}
    if is_deterministic:
        # flash-attn ignores torch's setting; transformers reads this variable at each call of flash-attn.
        variables["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    # Only fp32 runs have large fp32 products. In 16 bits the only fp32 product of most models computes rotary angles.
    uses_tf32 = is_on_gpu and training.tf32 and not is_deterministic and plan.precision.value == "fp32"
    matmul_precision = "high" if uses_tf32 else "highest"
    settings: list[tuple[Callable[[Any], None], Any, Any]] = [
        # The number of threads changes the order of sums, and so the last bits of results.
        (_set_threads, torch.get_num_threads(), plan.threads.value),
        (log.set_verbosity, log.get_verbosity(), logging.ERROR),
        (_show_progress_bars, log.is_progress_bar_enabled(), False),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), matmul_precision),
        # cuDNN's attention is on only if the plan chose it. Otherwise it lacks a deterministic backward pass, or builds
        # a plan of its own for nearly each pass of padded rows or of documents by their lengths, which torch hands to
        # it on Hopper and Blackwell. Source: pull request 182551 of pytorch, and its varlen.py.
        (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled(), cuda.cudnn_sdp_enabled() and plan.attention.kernel == CUDNN),
        (_be_deterministic, torch.are_deterministic_algorithms_enabled(), is_deterministic),
    ]
    with ExitStack() as stack:
        stack.enter_context(replaced(os.environ, **variables))
        if plan.attention.repeats_keys:
            # Otherwise transformers passes fewer key heads than the kernel supports, and torch computes all scores.
            stack.enter_context(replaced(vars(sdpa_attention), use_gqa_in_sdpa=lambda *_: False))
        for set_value, old_value, new_value in settings:
            stack.callback(set_value, old_value)
            set_value(new_value)
        if is_on_gpu:
            # The variable has an effect only before CUDA starts: the first run of the process sets it for all.
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        use_device(device_of(plan))
        yield


def kernel_threads() -> int:
    """Return the number of threads of torch's CPU kernels, which OMP_THREAD_LIMIT may limit."""
    limit_text = os.environ.get("OMP_THREAD_LIMIT", "")
    thread_count = int(torch.get_num_threads())
    return min(thread_count, int(limit_text)) if limit_text.isdigit() and int(limit_text) else thread_count


def free_run_memory() -> None:
    """Free the memory of a finished run and reset the memory peak. Nothing may refer to the run's model any more."""
    # After an error inside a kernel, the GPU refuses this too.
    with suppress(RuntimeError):
        free_memory()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
