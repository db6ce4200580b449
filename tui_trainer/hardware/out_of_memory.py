"""Recognize out-of-memory errors of a GPU or the machine, and free the memory that they leave behind.

torch is imported only inside functions."""

import errno
import gc
import traceback

# Messages of errors without a class of their own. Those that may have other causes, such as
# CUBLAS_STATUS_NOT_INITIALIZED, are not included.
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
    """Return whether the error is a lack of memory, so that the work can be tried again in smaller parts."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    import torch

    return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in _WORDS)


def clear_error_frames(error: BaseException) -> None:
    """Clear the frames of an error and of its causes, which keep alive all that was computed."""
    seen_ids: set[int] = set()
    errors_to_clear: list[BaseException | None] = [error]
    while errors_to_clear:
        current = errors_to_clear.pop()
        if current is None or id(current) in seen_ids:
            continue
        seen_ids.add(id(current))
        traceback.clear_frames(current.__traceback__)
        errors_to_clear += [current.__cause__, current.__context__]


def free_memory() -> None:
    """Collect reference cycles, and return the GPU memory that torch caches to the driver."""
    gc.collect()
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
