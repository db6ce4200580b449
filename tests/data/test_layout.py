"""The rows of a step and their layout in batches: without torch, and the same for training and for the preview."""

import subprocess
import sys
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest

from tui_trainer.data.batching.collate import IGNORE, collate, collate_packed, round_packed_widths
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.batching.row_order import RowOrder, steps_per_epoch
from tui_trainer.data.preparing.token_rows import DOCUMENT_LENGTHS, INPUT_IDS, LABELS, Rows, RowWriter, TokenRow

LENGTHS = [12, 7, 19, 4, 9, 15, 6, 2]
ABOUT = {"collate": partial(collate, pad_id=0), "collate_packed": partial(collate_packed, pad_id=0)}


@pytest.fixture
def documents() -> list[TokenRow]:
    draw = np.random.default_rng(5)
    return [TokenRow(draw.integers(3, 380, size=length, dtype=np.int32)) for length in LENGTHS]


def test_training_gets_the_batches_of_the_numpy_layout(documents, subtests):
    from tui_trainer.training.batches import Layout

    for packed_width, fixed_width, rows in product([0, 24], [0, 30], [1, 3, 100]):
        with subtests.test(packed_width=packed_width, fixed_width=fixed_width, rows=rows):
            about = ABOUT | {"rows_per_pass": rows}
            widths = {"packed_width": packed_width, "fixed_width": fixed_width}
            plain, tensors = RowLayout(**about, **widths), list(Layout(**about, **widths).micro_batches(documents))
            passes = list(plain.passes(documents))
            assert len(passes) == len(tensors) > 0
            laid = [id(document) for one in passes for row in one for document in row]
            assert sorted(laid) == sorted(map(id, documents)), "every document once"
            for one, tensor in zip(passes, tensors, strict=True):
                batch = plain.batch(one)
                assert np.array_equal(tensor.inputs["input_ids"].numpy(), batch.input_ids)
                assert (len(one), tensor.token_count) == (len(batch.input_ids), batch.token_count)
                assert batch.input_ids.shape[1] >= max(fixed_width, sum(len(document) - 1 for document in one[0]))


def test_attention_by_lengths_gets_no_padding_unless_widths_are_fixed(documents, subtests):
    from tui_trainer.training.batches import Layout

    for fixed_width in (0, 30):
        with subtests.test(fixed_width=fixed_width):
            flat, padded = (
                Layout(**ABOUT, rows_per_pass=3, packed_width=24, fixed_width=fixed_width, by_lengths=by_lengths)
                for by_lengths in (True, False)
            )
            for mine, theirs in zip(
                flat.micro_batches(documents[:5]), padded.micro_batches(documents[:5]), strict=True
            ):
                assert (
                    mine.token_count == theirs.token_count < theirs.position_count
                    and mine.labels.tolist() == theirs.labels.tolist()
                )
                assert mine.position_count == (theirs.position_count if fixed_width else mine.token_count)
                for name in ("input_ids", "position_ids"):
                    at_labels = (
                        batch.inputs[name].flatten()[batch.label_positions].tolist() for batch in (mine, theirs)
                    )
                    assert len({*map(tuple, at_labels)}) == 1
                assert int(mine.inputs["cu_seq_lens_q"][-1]) == mine.position_count


def test_an_epoch_has_each_row_once_and_as_many_steps_as_planned(subtests):
    for (rows, effective), grouped in product([(1, 16), (16, 16), (17, 16), (100, 7)], [False, True]):
        with subtests.test(rows=rows, effective=effective, grouped=grouped):
            lengths = np.random.default_rng(0).integers(2, 50, rows)
            order = RowOrder(lengths, effective_batch=effective, seed=3, group_by_length=grouped)
            assert order.steps_per_epoch == steps_per_epoch(rows, min(effective, rows))
            for epoch in range(2):
                steps = [order.at(epoch * order.steps_per_epoch + step + 1) for step in range(order.steps_per_epoch)]
                assert sorted(np.concatenate(steps).tolist()) == list(range(rows))
            if not grouped:
                drawn = np.random.default_rng([3, 1]).permutation(rows)
                assert order.at(order.steps_per_epoch + 1).tolist() == drawn[: min(effective, rows)].tolist()


@pytest.mark.full
def test_the_preview_loads_no_torch():
    modules = "tui_trainer.data.preview, tui_trainer.launching.preview"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=1500).returncode == 0


def halvings(layout, documents):
    """Return the rows of the largest pass and the width of packed rows of each layout, down to the last."""
    found = []
    while layout is not None:
        found.append((max(map(len, layout.passes(documents))), layout.packed_width))
        layout = layout.halved(documents)
    return found


def test_halving_a_pass_halves_its_rows_down_to_one(documents):
    layout = RowLayout(**ABOUT, rows_per_pass=100)
    assert halvings(layout, documents) == [(8, 0), (4, 0), (2, 0), (1, 0)]
    assert halvings(layout, documents[:5]) == [(5, 0), (3, 0), (2, 0), (1, 0)]
    # Rows of coarse widths are halved as well.
    layout = RowLayout(
        rows_per_pass=4,
        packed_width=66,
        collate=ABOUT["collate"],
        collate_packed=round_packed_widths(ABOUT["collate_packed"], 66),
    )
    sizes = []
    while layout is not None:
        sizes.append(max(layout.batch(one).input_ids.size for one in layout.passes(documents)))
        layout = layout.halved(documents)
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] <= sizes[0] / 2
    assert all(size % 8 == 0 or size == 66 for size in sizes)


def test_halving_a_packed_row_halves_its_width_down_to_the_longest_document(documents):
    about = ABOUT | {"rows_per_pass": 4}
    found = halvings(RowLayout(**about, packed_width=66), documents)
    assert found[0] == (1, 66) and found[-1] == (1, max(LENGTHS) - 1)
    assert [width for _, width in found] == sorted({width for _, width in found}, reverse=True)
    assert halvings(RowLayout(**about, packed_width=24), documents)[:2] == [(3, 24), (2, 24)]
    # Rows that are filled up to one width take no less where fewer documents share them.
    assert halvings(RowLayout(**about, packed_width=66, fixed_width=66), documents) == [(1, 66)]
    # A document longer than a narrowed row gets its own row.
    layout = RowLayout(**ABOUT, rows_per_pass=4, packed_width=8)
    passes = list(layout.passes(documents))
    assert max(sum(len(document) - 1 for document in row) for one in passes for row in one) == max(LENGTHS) - 1
    assert sum(len(row) for one in passes for row in one) == len(documents)


def rows_of_two_documents(documents: list[TokenRow]) -> list[TokenRow]:
    """Return rows of two documents each. The second one has labels for its last half only."""
    found = []
    for one, two in zip(documents[::2], documents[1::2], strict=True):
        labels = np.where(np.arange(len(two)) < len(two) // 2, IGNORE, two.tokens).astype(np.int32)
        found.append(
            TokenRow(
                np.concatenate([one.tokens, two.tokens]),
                np.concatenate([one.tokens, labels]),
                document_lengths=np.array([len(one), len(two)], dtype=np.int32),
            )
        )
    return found


def labels_with_inputs(layout, rows):
    """Return the labels of the two documents of each row in the batches, with the inputs before them."""
    found = []
    for batch in layout.micro_batches(rows):
        assert len(batch.document_labels) == 2 * batch.sample_count and batch.document_labels.sum() == batch.label_count
        inputs = batch.inputs["input_ids"].flatten()[batch.label_positions]
        for first in range(0, 2 * batch.sample_count, 2):
            of_row = [
                tuple(zip(inputs[own].tolist(), batch.labels[own].tolist(), strict=True))
                for own in (batch.documents == first, batch.documents == first + 1)
            ]
            found.append(tuple(of_row))
    return sorted(found)


def test_rows_of_several_documents_stay_whole_and_labels_keep_their_document(documents):
    from tui_trainer.training.batches import Layout

    rows = rows_of_two_documents(documents)
    alone = labels_with_inputs(Layout(**ABOUT, rows_per_pass=1), rows)
    assert [len(one) + len(two) for one, two in alone] and len(alone) == len(rows) == 4
    assert alone == sorted(
        tuple(
            tuple((int(a), int(b)) for a, b in zip(part.tokens[:-1], part.labels[1:], strict=True) if b != IGNORE)
            for part in row.documents
        )
        for row in rows
    )
    for layout in (
        Layout(**ABOUT, rows_per_pass=3),
        Layout(**ABOUT, rows_per_pass=2, fixed_width=30),
        Layout(**ABOUT, rows_per_pass=4, packed_width=40),
        Layout(**ABOUT, rows_per_pass=4, packed_width=40, by_lengths=True),
    ):
        assert labels_with_inputs(layout, rows) == alone
    assert halvings(RowLayout(**ABOUT, rows_per_pass=4), rows) == [(4, 0), (2, 0), (1, 0)]
    inputs = [row.input_count for row in rows]
    assert inputs == [len(row) - 2 for row in rows]
    found = halvings(RowLayout(**ABOUT, rows_per_pass=4, packed_width=sum(inputs)), rows)
    assert found[0] == (1, sum(inputs)) and found[-1] == (1, max(inputs)), "no narrower than a whole row"


def test_the_largest_pass_counts_each_document_of_a_row_as_wide_as_the_longest(documents, tmp_path):
    from tui_trainer.training.batches import Batches, Layout
    from tui_trainer.training.ranks import SINGLE_PROCESS
    from tui_trainer.training.rehearsal import largest_pass

    rows = rows_of_two_documents(documents)
    with RowWriter(tmp_path / "train.arrow", (INPUT_IDS, LABELS, DOCUMENT_LENGTHS)) as writer:
        for row in rows:
            columns = {INPUT_IDS: row.tokens, LABELS: row.labels, DOCUMENT_LENGTHS: row.document_lengths}
            writer.add({name: (values, np.array([len(values)])) for name, values in columns.items()})
    read = Rows(tmp_path / "train.arrow")
    for number, row in enumerate(rows):
        again = read.example(number)
        assert not again.model_arguments
        for mine, theirs in zip(again.documents, row.documents, strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist() and mine.labels.tolist() == theirs.labels.tolist()
    assert read.lengths.tolist() == [19, 23, 24, 8] and read.longest.tolist() == [12, 19, 15, 6]
    assert read.documents.tolist() == [2] * 4
    order = RowOrder(read.lengths, effective_batch=4, seed=0)
    # [9, 15] has the most tokens, [19, 4] the largest pass.
    step, chosen = largest_pass(Batches(read, Layout(**ABOUT, rows_per_pass=1), order, SINGLE_PROCESS), 1)
    assert (step, chosen.tolist()) == (1, [1])
    _, chosen = largest_pass(Batches(read, Layout(**ABOUT, rows_per_pass=2), order, SINGLE_PROCESS), 1)
    batches = {
        two: next(Layout(**ABOUT, rows_per_pass=2).micro_batches([rows[place] for place in two])).position_count
        for two in combinations(range(4), 2)
    }
    assert batches[tuple(sorted(chosen.tolist()))] == max(batches.values())
