"""Masks that are built without asking the device equal those that transformers builds by asking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import masking_utils

from tests.tiny_models import tiny_model
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.losses import micro_batch as masks
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch, skip_mask_checks

DRAW = np.random.default_rng(3)
DOCUMENTS = [DRAW.integers(4, 380, size=length, dtype=np.int32) for length in (12, 7, 12, 9)]
PACKED = [DOCUMENTS[:2], DOCUMENTS[2:]]


def whole_rows(lengths):
    """Return padded rows with an attention mask, for a model that reads whole rows."""
    ids = torch.randint(4, 380, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return MicroBatch({"input_ids": ids, "attention_mask": mask}, ids, ids, len(lengths), sum(lengths))


BATCHES = {
    "padded": ("llama", micro_batch(collate(DOCUMENTS, 0))),
    "packed": ("llama", micro_batch(collate_packed(PACKED, 0))),
    "one document a row": ("llama", micro_batch(collate_packed([[DOCUMENTS[0]], [DOCUMENTS[2]]], 0))),
    "packed, with a sliding window": ("mistral", micro_batch(collate_packed(PACKED, 0))),
    "decoder with a mask": ("llama", whole_rows([9, 5])),
    "decoder of full rows": ("llama", whole_rows([9, 9])),
    "encoder": ("bert", whole_rows([9, 5])),
    "encoder of full rows": ("bert", whole_rows([9, 9])),
    "encoder with windows": ("modernbert", whole_rows([9, 9])),
    "encoder-decoder": ("bart", whole_rows([9, 5])),
    "encoder-decoder of full rows": ("bart", whole_rows([9, 9])),
}


@pytest.mark.versions
def test_logits_equal_those_with_the_masks_of_transformers(monkeypatch, subtests):
    monkeypatch.setattr(masks, "is_off_host", lambda batch: True)
    names = ("find_packed_sequence_indices", "is_tracing")
    before = [getattr(masking_utils, name) for name in names]
    for case, (family, batch) in BATCHES.items():
        model = tiny_model(family, **({"sliding_window": 6} if family == "mistral" else {})).eval()
        inputs = batch.inputs if family == "bert" else {**batch.inputs, "use_cache": False}
        with subtests.test(case), torch.no_grad():
            asked = model(**inputs).logits
            with skip_mask_checks(batch), monkeypatch.context() as patch:
                # The `all` of a mask would wait for the device.
                patch.setattr(torch.Tensor, "__bool__", lambda tensor: pytest.fail("the device was asked"))
                known = model(**inputs).logits
            seen = batch.inputs.get("attention_mask", torch.ones_like(batch.inputs["input_ids"])).bool()
            torch.testing.assert_close(known[seen], asked[seen], atol=1e-5, rtol=1e-5)
            assert [getattr(masking_utils, name) for name in names] == before


@pytest.mark.parametrize(("lengths", "masks_built"), [([9, 9], 0), ([9, 5], 2)], ids=["full", "padded"])
def test_full_rows_are_computed_without_a_mask(lengths, masks_built, monkeypatch):
    """The model has two layers. With a mask no flash kernel would take them."""
    model, batch, has_mask = tiny_model("bert").eval(), whole_rows(lengths), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(*three, attn_mask=None, **more):
        has_mask.append(attn_mask is not None)
        return attend(*three, attn_mask=attn_mask, **more)

    monkeypatch.setattr(masks, "is_off_host", lambda batch: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with torch.no_grad(), skip_mask_checks(batch):
        model(**batch.inputs)
    assert (len(has_mask), sum(has_mask)) == (2, masks_built)
