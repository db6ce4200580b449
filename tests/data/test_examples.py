"""Rows of a table become rows of tokens and labels: what is read, left out, held out and counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.readers import Characters, data_at, write
from tui_trainer.data.columns.reader import Example
from tui_trainer.data.preparing.cache import RowSettings
from tui_trainer.data.preparing.prepare import prepare as prepare_rows
from tui_trainer.data.preparing.prepare import read_cut_rows
from tui_trainer.data.preparing.row_selection import split_rows
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.sources.source import open_sources
from tui_trainer.errors import DataError


def cut(**changes) -> RowSettings:
    plain = {"rows": "examples", "max_length": 8, "eval_fraction": 0.0, "seed": 1, "tokenizer": "characters"}
    return RowSettings(**(plain | changes))


@pytest.fixture
def prepare(tmp_path):
    def run(rows, eval_rows=None, reader=None, **changes):
        paths = [write(tmp_path / "train.jsonl", rows)]
        if eval_rows is not None:
            paths.append(write(tmp_path / "eval.jsonl", eval_rows))
        data = data_at(paths[0], eval_paths=paths[1:])
        return prepare_rows(data, reader or Characters(), cut(**changes), tmp_path / "cache")

    return run


def texts_of(path: Path) -> list[str]:
    rows = Rows(path)
    return ["".join(map(chr, rows.row(index))) for index in range(len(rows))]


def test_rows_keep_their_order_and_their_labels(prepare):
    rows = [{"text": f"row {index}", "label": index % 3} for index in range(2500)]
    data = prepare(rows)
    found = Rows(data.train_path)
    assert [found.example(index).labels.tolist() for index in (0, 1, 999, 1000, 2499)] == [[0], [1], [0], [1], [0]]
    assert texts_of(data.train_path) == [row["text"] for row in rows]
    assert data.counts.train_rows == data.counts.rows_read == 2500
    assert data.counts.train_tokens == sum(len(row["text"]) for row in rows)
    assert data.counts.train_labels == 2500 and data.counts.longest_row == 8
    assert data.details["classes"] == 2 and data.eval_path is None
    assert data.details["class_rows"] == {"0": 834, "1": 833, "2": 833}


def test_each_class_gives_its_share_to_the_evaluation(prepare):
    rows = [{"text": f"{index}", "label": 0 if index % 10 else 1} for index in range(400)]
    data = prepare(rows, eval_fraction=0.2)
    labels = [Rows(data.eval_path).example(index).labels[0] for index in range(data.counts.eval_rows)]
    assert (len(labels), sum(labels)) == (80, 8)
    assert set(texts_of(data.train_path)).isdisjoint(texts_of(data.eval_path))
    assert len(set(texts_of(data.train_path) + texts_of(data.eval_path))) == 400


def test_a_split_keeps_the_share_of_each_class(subtests):
    for seed in range(30):
        with subtests.test(seed=seed):
            draw = np.random.default_rng(seed)
            strata = np.sort(draw.integers(0, draw.integers(1, 12), size=draw.integers(1, 300)))
            share = float(draw.uniform(0, 0.9))
            shuffled = draw.permutation(strata)
            held_out = split_rows(shuffled, share, seed)
            assert len(set(held_out.tolist())) == len(held_out)
            classes, sizes = np.unique(shuffled, return_counts=True)
            held = np.array([(shuffled[held_out] == one).sum() for one in classes])
            assert (held < sizes).all(), "one of each class stays"
            assert (np.abs(held - share * sizes) <= 2).all()
            assert np.array_equal(held_out, split_rows(shuffled, share, seed))


def test_repeated_and_leaked_rows_are_counted_and_removed_with_dedup(prepare):
    rows = [{"text": text} for text in ("a b", "a  b ", "c", "a b", "e\u0301", "\u00e9")]
    kept = prepare(rows)
    assert (kept.counts.repeated_rows, kept.counts.train_rows) == (3, 6)
    assert any("set data.dedup = true to remove duplicates" in note for note in kept.notes)
    without = prepare(rows, dedup=True)
    assert texts_of(without.train_path) == ["a b", "c", "e\u0301"]
    # Repeats on both sides of a split are leaks.
    rows = [{"text": str(index // 2)} for index in range(200)]
    assert prepare(rows, eval_fraction=0.3).counts.leaked_rows > 10
    assert prepare(rows, eval_fraction=0.3, dedup=True).counts.leaked_rows == 0


def test_bad_rows_can_be_skipped_but_not_the_rest_of_a_file(prepare, tmp_path):
    data = prepare([{"text": "a"}, {"text": None}, {"text": "b"}], skip_bad_rows=True)
    assert texts_of(data.train_path) == ["a", "b"]
    assert (data.counts.bad_rows, data.counts.rows_read) == (1, 3)
    assert any("1 unusable row was skipped: train.jsonl, line 2" in note for note in data.notes)
    # `skip_bad_rows` does not skip the rest of a file.
    path = tmp_path / "train.jsonl.gz"
    whole = gzip.compress("".join(json.dumps({"text": str(n) * n}) + "\n" for n in range(1, 300)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="truncated"):
        prepare_rows(data_at(path), Characters(), cut(skip_bad_rows=True), tmp_path / "cache")


def of_lengths(lengths: list[int]) -> list[dict]:
    return [{"text": f"{number:03}".ljust(length, "x")[-length:], "label": 1} for number, length in enumerate(lengths)]


def test_rows_are_marked_if_they_were_cut(prepare):
    data = prepare(of_lengths([3, 20, 8, 9, 1]))
    assert read_cut_rows(data.folder, 5).tolist() == [False, True, False, True, False]
    assert data.counts.truncated_rows == 2
    (data.folder / "cut_rows.npy").write_bytes(b"nothing")
    assert read_cut_rows(data.folder, 5) is None is read_cut_rows(data.folder / "elsewhere", 5)
    data = prepare(of_lengths([12] * 10 + [3] * 30), eval_fraction=0.3)
    rows = Rows(data.train_path)
    marks = read_cut_rows(data.folder, len(rows))
    assert len(rows) == 28 and marks.tolist() == (rows.lengths == 8).tolist() and 0 < marks.sum() < 10


def test_the_length_that_keeps_99_percent_of_the_rows_whole_is_estimated(prepare):
    lengths = [4] * 180 + list(range(9, 29))
    found = prepare(of_lengths(lengths)).details["length_for_99_percent"]
    assert found == pytest.approx(np.quantile(lengths, 0.99, method="higher"), rel=0.2)
    assert prepare(of_lengths([4] * 50)).details["length_for_99_percent"] == 4
    assert "length_for_99_percent" not in prepare(of_lengths([9] * 5)).details, "no row is whole"


def test_a_table_without_rows_labels_or_its_column_is_refused(prepare, mix):
    data = prepare([{"text": "- a"}, {"text": "b"}, {"text": "c" * 9}])
    assert (data.counts.untrained_rows, data.counts.truncated_rows, data.counts.train_rows) == (1, 1, 2)
    with pytest.raises(DataError, match="none of the 2 training rows has a token to train on"):
        prepare([{"text": "- a"}, {"text": "- b"}])
    # A table without rows or without its column is refused.
    with pytest.raises(DataError, match="there are no rows to train on"):
        prepare([])
    with pytest.raises(DataError, match=r"eval\.jsonl"):
        prepare([{"text": "a"}], [])
    # A missing column is reported once.
    with pytest.raises(DataError, match=r"b\.jsonl .*there are no rows to train on"):
        mix(labelled(1, 5), [])
    with pytest.raises(DataError) as stopped:
        prepare([{"words": "a"}] * 5)
    assert len(stopped.value.problems) == 1


def test_every_format_gives_the_same_rows(tmp_path, subtests):
    for form in ["parquet", "arrow", "json", "csv"]:
        with subtests.test(form=form):
            rows = [{"text": f"row {index}", "label": index % 2} for index in range(30)]
            path = tmp_path / f"rows.{form}"
            table = pa.Table.from_pylist(rows)
            if form == "parquet":
                pq.write_table(table, path, row_group_size=7)
            elif form == "arrow":
                with pa.ipc.new_file(str(path), table.schema) as file:
                    file.write_table(table, max_chunksize=4)
            elif form == "json":
                path.write_text(json.dumps(rows))
            else:
                path.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
            data = prepare_rows(data_at(path), Characters(), cut(), tmp_path / "cache")
            found = Rows(data.train_path)
            assert texts_of(data.train_path) == [row["text"] for row in rows]
            assert [found.example(index).labels[0] for index in range(30)] == [row["label"] for row in rows]


def test_class_numbers_are_read_as_their_names(tmp_path):
    feature = {"_type": "ClassLabel", "names": ["no", "yes"]}
    tags = {"_type": "List", "feature": {"_type": "ClassLabel", "names": ["O", "B-X"]}}
    features = {"info": {"features": {"label": feature, "tags": tags, "text": {"_type": "Value"}}}}
    table = pa.table({"label": [1, 0, -1], "tags": [[0, 1], [], []], "text": ["a", "b", "c"]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, tmp_path / "rows.parquet")
    reader = Characters()
    reader.read = lambda row: Example(str(row.values), (str(row.values), 0))
    prepare_rows(data_at(tmp_path / "rows.parquet"), reader, cut(), tmp_path / "cache")
    assert [row.values["label"] for row in reader.heads[0]] == ["yes", "no", None]  # -1: it has no label
    assert [row.values["tags"] for row in reader.heads[0]] == [["O", "B-X"], [], []]


@pytest.fixture
def mix(tmp_path):
    """`mix(rows, rows, ...)` prepares several sources, each in its own file."""

    def run(*tables, reader=None, **changes):
        paths = [write(tmp_path / f"{'abc'[place]}.jsonl", rows) for place, rows in enumerate(tables)]
        return prepare_rows(data_at(*paths), reader or Characters(), cut(**changes), tmp_path / "cache")

    return run


def labelled(start: int, count: int) -> list[dict]:
    return [{"text": str(start + index), "label": index % 2} for index in range(count)]


def test_weights_repeat_and_thin_the_rows_of_each_source(mix):
    rows = labelled(1000, 2300)
    data = mix(rows, labelled(5000, 30), weights=(1.25, 0.5))
    train = texts_of(data.train_path)
    counted = [train.count(row["text"]) for row in rows[:400]]
    assert set(counted) == {1, 2} and len(train) == 2300 + 575 + 15
    assert data.counts.repeated_rows == data.counts.leaked_rows == 0
    assert sum(data.details["class_rows"].values()) == data.counts.train_rows == len(train)
    assert [source["rows_per_epoch"] for source in data.details["sources"]] == [2875, 15]


def test_each_source_has_its_own_columns(mix):
    class Either(Characters):
        def begin(self, head):
            self.name = "text" if "text" in head[0].values else "body"
            self.heads.append(list(head))

        def read(self, row):
            return Example(row.values[self.name], (row.values[self.name], 0))

    reader = Either()
    bodies = [{"body": f"b {index}"} for index in range(150)]
    data = mix([{"text": "a"}], bodies, [{"text": "c"}], reader=reader)
    assert texts_of(data.train_path) == ["a", *(row["body"] for row in bodies), "c"]
    assert [len(head) for head in reader.heads] == [1, 100, 1]
    assert data.source.startswith("a.jsonl (14 B), b.jsonl (")


def test_only_leaks_among_the_weighted_rows_are_counted(tmp_path):
    rows = [{"text": str(index)} for index in range(40)]
    both = data_at(write(tmp_path / "a.jsonl", rows), eval_paths=[write(tmp_path / "eval.jsonl", rows)])
    data = prepare_rows(both, Characters(), cut(weights=(0.25,)), tmp_path / "cache")
    assert (data.counts.train_rows, data.counts.leaked_rows, data.counts.eval_rows) == (10, 10, 40)


def test_missing_and_broken_files_are_reported_together(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.jsonl", [{"text": None}])
    data = data_at(*(tmp_path / name / "train.jsonl" for name in ("one", "two")))
    with pytest.raises(DataError) as stopped:
        prepare_rows(data, Characters(), cut(), tmp_path / "cache")
    assert [one.where for one in stopped.value.problems] == ["one/train.jsonl, line 1 (all 2 rows of several files)"]
    # All missing files are reported.
    with pytest.raises(DataError) as stopped:
        open_sources([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert len(stopped.value.problems) == 2


def test_progress_ends_at_the_size_of_all_sources(tmp_path):
    reports: list[tuple] = []
    source = open_sources([str(write(tmp_path / f"{name}.jsonl", labelled(1, 9))) for name in "xy"])
    for part, progress in source.each(lambda *report: reports.append(report)):
        list(part.documents(progress))
    ends = [done for what, done, total, _ in reports if what == "reading the data" and total == source.bytes_on_disk]
    assert ends[-1] == source.bytes_on_disk == sum(part.bytes_on_disk for part in source.parts)
