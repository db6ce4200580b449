"""Packing: every document once, no row too full, little padding, and no label across a boundary."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tui_trainer.data.batching.collate import IGNORE, collate, collate_packed
from tui_trainer.data.batching.pack import expected_packed_rows, narrowest_width, pack_batch, pack_rows, padding_shares


def case(seed: int) -> tuple[list[int], int]:
    """Return lengths and a capacity: few or many, equal or not, around powers of two."""
    chance = random.Random(seed)
    capacity = chance.choice([1, 2, 7, 64, 1000, 1023, 1024, 1025, 4096, 70_000])
    count = chance.choice([0, 1, 2, 10, 300])
    longest = chance.choice([1, max(1, capacity // 3), capacity])
    return [chance.randint(1, longest) for _ in range(count)], capacity


def one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Return the free space of each row after the textbook algorithm of best-fit decreasing."""
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(space, place) for place, space in enumerate(spaces) if space >= length]
        if fitting:
            spaces[min(fitting)[1]] -= length
        else:
            spaces.append(capacity - length)
    return sorted(spaces)


def test_rows_are_those_of_best_fit_decreasing(subtests):
    for seed in range(60):
        with subtests.test(seed=seed):
            lengths, capacity = case(seed)
            rows = pack_rows(lengths, capacity)
            assert sorted(place for row in rows for place in row) == list(range(len(lengths)))
            assert sorted(capacity - sum(lengths[place] for place in row) for row in rows) == one_by_one(
                lengths, capacity
            )
            assert rows == sorted(sorted(row) for row in rows)
            assert rows == pack_rows(np.array(lengths, dtype=np.int32), capacity)
    # Lengths that do not fit are refused.
    for lengths in ([0, 5], [11], [-1]):
        with pytest.raises(ValueError, match="do not fit"):
            pack_rows(lengths, 10)
    # Many varied documents fill their rows.
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, 100_000).astype(int), 1, 1024)
    assert lengths.sum() / (1024 * len(pack_rows(lengths, 1024))) > 0.999


def test_a_narrower_width_needs_no_more_rows(subtests):
    for seed in range(60):
        with subtests.test(seed=seed):
            lengths, capacity = case(seed)
            width = narrowest_width(lengths, capacity)
            assert width <= capacity
            assert len(pack_rows(lengths, width)) <= len(pack_rows(lengths, capacity))
    # The width is the least possible.
    assert narrowest_width([6, 6], 10) == 6
    assert narrowest_width([4, 4, 3, 3], 10) == 7
    assert narrowest_width([10, 1], 10) == 10
    assert narrowest_width([], 10) == 10


def documents_of(lengths: list[int]) -> list[np.ndarray]:
    """Return documents with `lengths` inputs, in which no token occurs twice."""
    first = 10
    documents = []
    for length in lengths:
        documents.append(np.arange(first, first + length + 1, dtype=np.int32))
        first += length + 1
    return documents


def test_a_packed_batch_has_the_labels_of_its_documents_and_no_others(subtests):
    for seed in range(40):
        lengths, capacity = case(seed)
        if not lengths:
            continue
        with subtests.test(seed=seed):
            documents = documents_of(lengths)
            rows = pack_batch(documents, capacity)
            batch = collate_packed(rows, pad_id=3)
            alone = collate(documents, pad_id=3)

            def pairs(inputs, labels):
                return sorted(zip(inputs[labels != IGNORE].tolist(), labels[labels != IGNORE].tolist(), strict=True))

            assert pairs(batch.input_ids, batch.labels) == pairs(alone.input_ids, alone.labels)
            assert batch.token_count == alone.token_count == (batch.labels != IGNORE).sum()
            assert batch.row_count == alone.row_count == len(lengths)
            assert batch.input_ids.shape[1] <= capacity
            assert batch.input_ids.shape[0] == len(pack_rows(lengths, capacity))
            assert alone.position_ids is None and alone.document_lengths is None
            assert batch.position_ids is not None and batch.document_lengths is not None
            starts = np.concatenate(([0], np.cumsum(batch.document_lengths)))
            assert starts[-1] == batch.input_ids.size
            assert np.flatnonzero(batch.position_ids.ravel() == 0).tolist() == starts[:-1].tolist()


def test_positions_restart_with_each_document_and_in_the_padding():
    batch = collate_packed([documents_of([3, 2]), documents_of([1])], pad_id=0, width=6)
    assert batch.input_ids.tolist() == [[10, 11, 12, 14, 15, 0], [10, 0, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [
        [11, 12, 13, 15, 16, IGNORE],
        [11, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE],
    ]
    assert batch.position_ids is not None and batch.document_lengths is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]
    assert batch.document_lengths.tolist() == [3, 2, 1, 1, 5]
    assert batch.document_lengths.dtype == np.int32
    assert batch.position_ids.dtype == batch.input_ids.dtype == batch.labels.dtype == np.int64


def test_expected_padding_is_close_to_that_of_real_batches():
    chance = np.random.default_rng(1)
    lengths = np.clip(chance.lognormal(4, 1, 20_000).astype(int), 1, 512)
    expected = padding_shares(lengths.tolist(), capacity=512, documents=64, micro_batch=8)
    batches = chance.permutation(lengths)[: 64 * 300].reshape(300, 64)
    rows = [len(pack_rows(batch, 512)) for batch in batches]
    assert expected_packed_rows(lengths.tolist(), 512, 64) == pytest.approx(np.mean(rows), rel=0.05)
    padded = np.sort(batches, axis=1).reshape(300, 8, 8).max(axis=2).sum() * 8
    assert expected.padded == pytest.approx(1 - batches.sum() / padded, abs=0.03)
    ordered = np.sort(batches[:16].ravel()).reshape(-1, 8)
    grouped = 1 - ordered.sum() / (ordered.max(axis=1).sum() * 8)
    assert expected.grouped == pytest.approx(grouped, abs=0.01)
    assert 0 <= expected.packed < 0.1 < expected.padded and expected.grouped < 0.03
    assert expected == padding_shares(lengths.tolist(), capacity=512, documents=64, micro_batch=8)
    # Documents of one length need no packing.
    expected = padding_shares([512] * 10, capacity=512, documents=32, micro_batch=8)
    assert (expected.packed, expected.padded) == (0, 0)
    assert expected_packed_rows([512] * 10, 512, 32) == 32
    assert expected_packed_rows([512], 512, 100_000) == 100_000
    assert expected_packed_rows([512], 512, 1) == 1 and expected_packed_rows([512], 512, 0) == 0
