"""Rows on disk: one document a row, and a sample of their lengths."""

from __future__ import annotations

import numpy as np
import pytest

from tui_trainer.data.preparing.cache import LENGTHS_KEPT, quantiles
from tui_trainer.data.preparing.token_rows import BATCH_ROWS, COLUMN, DocumentWriter, Rows


def test_a_writer_takes_many_documents_at_once(tmp_path, subtests):
    for number, many in enumerate([1, BATCH_ROWS - 1, BATCH_ROWS, 2 * BATCH_ROWS + 1]):
        with subtests.test(many=many):
            (folder := tmp_path / str(number)).mkdir()
            lengths = np.full(many, 12)
            with DocumentWriter(folder / "rows.arrow", max_length=8) as writer:
                writer.add({COLUMN: (np.arange(12 * many, dtype=np.int32), lengths)})
                writer.add({COLUMN: (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))})
            found = Rows(folder / "rows.arrow")
            rows = [found.row(index).tolist() for index in range(len(found))]
            starts = range(0, 12 * many, 12)
            assert rows == [list(range(s + a, s + b)) for s in starts for a, b in ((0, 9), (8, 12))]
            assert (writer.cut_documents, writer.pieces, writer.row_count, writer.longest_row) == (
                many,
                2 * many,
                2 * many,
                9,
            )


def test_lengths_are_kept_as_a_sample_of_all():
    assert quantiles([]) == ()
    assert quantiles([5, 3, 4]) == (3, 4, 5)
    kept = quantiles(np.arange(100_000))
    assert len(kept) == LENGTHS_KEPT
    assert np.mean(kept) == pytest.approx(50_000, rel=0.001)
