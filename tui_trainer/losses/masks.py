"""Attention masks that are built without a question to the device.

Before it builds a mask, transformers asks whether all of it would be ones, or whether rows hold one document each: the
host then waits for the GPU in every forward pass. Both are known of a batch before it goes there. On a CPU asking costs
nothing, and leaves a mask of ones out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tui_trainer.losses.micro_batch import MicroBatch


def waits(batch: MicroBatch) -> bool:
    """Whether a question about the batch's numbers is answered only once the device has done all before it."""
    return bool(batch.inputs["input_ids"].device.type != "cpu")


@contextmanager
def known_masks(batch: MicroBatch) -> Iterator[None]:
    """Around a forward pass over this batch. Where something is padded or packed, its mask is built as it is, as
    transformers does while it traces; otherwise positions are not looked at for documents."""
    if not waits(batch):
        yield
        return
    from transformers import masking_utils

    is_packed = "position_ids" in batch.inputs
    known: dict[str, Callable[..., Any]] = {}
    if is_packed or any(name.endswith("attention_mask") for name in batch.inputs):
        known["is_tracing"] = lambda *_: True
    if not is_packed:
        known["find_packed_sequence_indices"] = lambda position_ids: None
    # Names of transformers 5.23; where another version lacks one, it asks the device.
    before = {name: getattr(masking_utils, name) for name in known if hasattr(masking_utils, name)}
    vars(masking_utils).update({name: known[name] for name in before})
    try:
        yield
    finally:
        vars(masking_utils).update(before)
