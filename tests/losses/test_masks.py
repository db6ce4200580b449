"""Masks that are built without asking the device are those that transformers builds by asking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import masking_utils

from tests.tiny_models import tiny_model
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.losses import micro_batch as masks
from tui_trainer.losses.micro_batch import MicroBatch, known_masks, micro_batch

DRAW = np.random.default_rng(3)
DOCUMENTS = [DRAW.integers(4, 380, size=length, dtype=np.int32) for length in (12, 7, 12, 9)]


def whole_rows(lengths):
    """As a model that reads whole rows takes them."""
    ids = torch.randint(4, 380, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return MicroBatch({"input_ids": ids, "attention_mask": mask}, ids, ids, len(lengths), sum(lengths))


@pytest.mark.versions
@pytest.mark.parametrize(
    ("family", "batch"),
    [
        ("llama", micro_batch(collate(DOCUMENTS, 0))),
        ("llama", micro_batch(collate_packed([DOCUMENTS[:2], DOCUMENTS[2:]], 0))),
        ("llama", micro_batch(collate_packed([[DOCUMENTS[0]], [DOCUMENTS[2]]], 0))),
        ("mistral", micro_batch(collate_packed([DOCUMENTS[:2], DOCUMENTS[2:]], 0))),
        ("llama", whole_rows([9, 5])),
        ("bert", whole_rows([9, 5])),
        ("bert", whole_rows([9, 9])),
        ("bart", whole_rows([9, 5])),
        ("bart", whole_rows([9, 9])),
        ("llama", whole_rows([9, 9])),
        ("modernbert", whole_rows([9, 9])),
    ],
    ids=[
        "padded", "packed", "packed alone", "in windows", "masked", "encoder", "encoder of full rows", "both",
        "both of full rows", "full rows", "encoder with windows",
    ],
)  # fmt: skip
def test_logits_are_those_of_masks_that_were_asked_for(family, batch, monkeypatch):
    model = tiny_model(family, **({"sliding_window": 6} if family == "mistral" else {})).eval()
    names = ("find_packed_sequence_indices", "is_tracing")
    before = [getattr(masking_utils, name) for name in names]
    monkeypatch.setattr(masks, "waits", lambda batch: True)
    with torch.no_grad():
        asked = model(**batch.inputs, use_cache=False).logits if family != "bert" else model(**batch.inputs).logits
        with known_masks(batch):
            # Nobody may ask: a mask's `all` would.
            monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: pytest.fail("the device was asked"))
            known = model(**batch.inputs, **({} if family == "bert" else {"use_cache": False})).logits
            monkeypatch.undo()
    seen = batch.inputs.get("attention_mask", torch.ones_like(batch.inputs["input_ids"])).bool()
    torch.testing.assert_close(known[seen], asked[seen], atol=1e-5, rtol=1e-5)
    assert [getattr(masking_utils, name) for name in names] == before


@pytest.mark.parametrize(("lengths", "masks_built"), [([9, 9], 0), ([9, 5], 2)], ids=["full", "padded"])
def test_rows_that_are_all_full_are_computed_without_a_mask(lengths, masks_built, monkeypatch):
    """Two layers: with a mask no flash kernel takes them."""
    model, batch, found = tiny_model("bert").eval(), whole_rows(lengths), []
    attend = torch.nn.functional.scaled_dot_product_attention

    def seen(*three, attn_mask=None, **more):
        found.append(attn_mask is not None)
        return attend(*three, attn_mask=attn_mask, **more)

    monkeypatch.setattr(masks, "waits", lambda batch: True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    with torch.no_grad(), known_masks(batch):
        model(**batch.inputs)
    assert (len(found), sum(found)) == (2, masks_built)
