"""Whether an error is that of memory which could not be had, of a card or of the machine, and what it has left behind.

No torch until it is asked.
"""

import errno
import gc
import traceback

# Of errors that have no class of their own. What may have another cause is not among them, such as
# CUBLAS_STATUS_NOT_INITIALIZED.
_WORDS = (
    # torch's allocator for the CPU
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    # the C++ library, through torch
    "std::bad_alloc",
    # CUDA, outside torch's allocator
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    # the system, through libraries written in Rust
    "(os error 12)",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less memory would have done: what was computed can be tried again in smaller parts."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    import torch

    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _WORDS)


def let_go(error: BaseException) -> None:
    """Empty the frames that an error has left, and those of the errors behind it: they hold all that was computed."""
    known: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in known:
            continue
        known.add(id(found))
        traceback.clear_frames(found.__traceback__)
        waiting += [found.__cause__, found.__context__]


def free_memory() -> None:
    """What nothing holds any more goes back: cycles, and what torch keeps of a card for later."""
    gc.collect()
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
