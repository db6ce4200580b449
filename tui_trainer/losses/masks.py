"""Attention masks that are built without a question to the device.

Before it builds a mask, transformers asks whether all of it would be ones, or whether rows hold one document each: the
host then waits for the GPU in every forward pass. Both are known of a batch before it goes there. On a CPU asking costs
nothing, and leaves a mask of ones out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tui_trainer.losses.micro_batch import MicroBatch


def waits(batch: MicroBatch) -> bool:
    """Whether a question about the batch's numbers is answered only once the device has done all before it."""
    return bool(batch.inputs["input_ids"].device.type != "cpu")


def _without_padding(ignore: Callable[..., Any], padding_mask: Any = None, *rest: Any, **more: Any) -> Any:
    """Whether a mask can be left out, for rows that are all full: windows and caches may need it still."""
    return ignore(None, *rest, **more)


@contextmanager
def known_masks(batch: MicroBatch) -> Iterator[None]:
    """Around a forward pass over this batch. Where something is padded or packed, its mask is built as it is, as
    transformers does while it traces; otherwise positions are not looked at for documents, and a mask of ones is left
    out: with one no flash kernel would be taken."""
    if not waits(batch):
        yield
        return
    from transformers import masking_utils

    is_packed = "position_ids" in batch.inputs
    known: dict[str, Callable[..., Any]] = {}
    if is_packed or any(name.endswith("attention_mask") for name in batch.inputs):
        is_full = not is_packed and batch.tokens == batch.positions
        # None stands for a mask that is left out, about which nothing has to be asked.
        known["is_tracing"] = lambda *asked: not is_full or asked != (None,)
        for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa") if is_full else ():
            if ignore := getattr(masking_utils, name, None):
                known[name] = partial(_without_padding, ignore)
    if not is_packed:
        known["find_packed_sequence_indices"] = lambda position_ids: None
    # Names of transformers 5.23; where another version lacks one, it asks the device.
    before = {name: getattr(masking_utils, name) for name in known if hasattr(masking_utils, name)}
    vars(masking_utils).update({name: known[name] for name in before})
    try:
        yield
    finally:
        vars(masking_utils).update(before)
