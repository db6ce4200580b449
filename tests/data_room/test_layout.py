"""Which rows a step learns from and how they lie: without torch, and the same for training and for the preview."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from tui_trainer.data.batching.collate import collate
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.row_order import RowOrder, steps_per_epoch
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.training.batches import Layout

LENGTHS = [12, 7, 19, 4, 9, 15, 6, 2]


@pytest.fixture
def documents() -> list[TokenRow]:
    draw = np.random.default_rng(5)
    return [TokenRow(draw.integers(3, 380, size=length, dtype=np.int32)) for length in LENGTHS]


@pytest.mark.parametrize("packed_width", [0, 24])
@pytest.mark.parametrize("fixed_width", [0, 30])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_training_gets_the_batches_of_the_numpy_layout(documents, packed_width, fixed_width, rows):
    about = {"collate": partial(collate, pad_id=0), "pad_id": 0, "rows": rows}
    widths = {"packed_width": packed_width, "fixed_width": fixed_width}
    plain, tensors = RowLayout(**about, **widths), list(Layout(**about, **widths).window(documents))
    passes = list(plain.passes(documents))
    assert len(passes) == len(tensors) > 0
    laid = [id(document) for one in passes for row in one for document in row]
    assert sorted(laid) == sorted(map(id, documents)), "every document once"
    for one, tensor in zip(passes, tensors, strict=True):
        batch = plain.batch(one)
        assert torch.equal(tensor.inputs["input_ids"], torch.from_numpy(batch.input_ids))
        assert (len(one), tensor.tokens) == (len(batch.input_ids), batch.tokens)
        assert batch.input_ids.shape[1] >= max(fixed_width, sum(len(document) - 1 for document in one[0]))


@pytest.mark.parametrize(("rows", "effective"), [(1, 16), (16, 16), (17, 16), (100, 7)])
@pytest.mark.parametrize("grouped", [False, True])
def test_an_epoch_has_every_row_once_and_as_many_steps_as_planned(rows, effective, grouped):
    lengths = np.random.default_rng(0).integers(2, 50, rows)
    order = RowOrder(lengths, effective_batch=effective, seed=3, group_by_length=grouped)
    assert order.steps_per_epoch == steps_per_epoch(rows, min(effective, rows))
    for epoch in range(2):
        steps = [order.at(epoch * order.steps_per_epoch + step + 1) for step in range(order.steps_per_epoch)]
        assert sorted(np.concatenate(steps).tolist()) == list(range(rows))
    if not grouped:
        drawn = np.random.default_rng([3, 1]).permutation(rows)
        assert order.at(order.steps_per_epoch + 1).tolist() == drawn[: min(effective, rows)].tolist()


def test_what_makes_batches_for_the_preview_loads_no_torch():
    modules = "tui_trainer.data.previewing.preview, tui_trainer.launching.preview_words"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def halvings(layout, documents):
    """(rows of the largest pass, width of packed rows) of each layout, down to the last."""
    found = []
    while layout is not None:
        found.append((max(map(len, layout.passes(documents))), layout.packed_width))
        layout = layout.halved(documents)
    return found


def test_half_a_pass_is_half_its_rows_down_to_one(documents):
    layout = RowLayout(collate=partial(collate, pad_id=0), pad_id=0, rows=100)
    assert halvings(layout, documents) == [(8, 0), (4, 0), (2, 0), (1, 0)]
    assert halvings(layout, documents[:5]) == [(5, 0), (3, 0), (2, 0), (1, 0)]


def test_half_of_one_packed_row_is_half_its_width_down_to_the_longest_document(documents):
    about = {"collate": partial(collate, pad_id=0), "pad_id": 0, "rows": 4}
    found = halvings(RowLayout(**about, packed_width=66), documents)
    assert found[0] == (1, 66) and found[-1] == (1, max(LENGTHS) - 1)
    assert [width for _, width in found] == sorted({width for _, width in found}, reverse=True)
    assert halvings(RowLayout(**about, packed_width=24), documents)[:2] == [(3, 24), (2, 24)]
    # Rows that are filled up to one width take no less where fewer documents share them.
    assert halvings(RowLayout(**about, packed_width=66, fixed_width=66), documents) == [(1, 66)]


def test_a_document_that_is_longer_than_narrowed_rows_still_has_one(documents):
    layout = RowLayout(collate=partial(collate, pad_id=0), pad_id=0, rows=4, packed_width=8)
    passes = list(layout.passes(documents))
    assert max(sum(len(document) - 1 for document in row) for one in passes for row in one) == max(LENGTHS) - 1
    assert sum(len(row) for one in passes for row in one) == len(documents)
