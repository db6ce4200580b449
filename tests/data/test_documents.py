"""Texts become one row for each document, with a given tokenizer or one that is trained on the data."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.data.readers import data_at, write
from tui_trainer.data.preparing import row_selection, tokenizing
from tui_trainer.data.preparing.byte_bpe import BOS_ID, EOS_ID, TRAINED_TOKENIZER_KEY
from tui_trainer.data.preparing.cache import PreparedData, RowSettings
from tui_trainer.data.preparing.prepare import prepare, read_cut_rows
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.errors import DataError

END = 1
CUT = RowSettings(rows="documents", max_length=8, eval_fraction=0.2, seed=42, tokenizer="words")
TRAINED = {"encode": None, "tokenizer": TRAINED_TOKENIZER_KEY, "eos_id": None, "vocabulary": 300}


def encode(texts: Sequence[str]) -> list[list[int]]:
    """Return one token for each word: its number plus ten."""
    return [[10 + int(word) for word in re.findall(r"\d+", text)] for text in texts]


def text_of(*words: int) -> str:
    return " ".join(map(str, words))


def numbered(count: int, words: int = 5) -> list[str]:
    return [text_of(*range(words * start, words * start + words)) for start in range(count)]


@pytest.fixture
def data(tmp_path) -> Path:
    return write(tmp_path / "data.jsonl", numbered(30))


def prepared(path: Path, eval_path: Path | None = None, *, progress=None, **changes) -> PreparedData:
    return prepare(data_at(path, eval_paths=[eval_path]), *asked(**changes), path.parent / "cache", progress)


def asked(
    *, encode=encode, eos_id: int | None = END, vocabulary: int = 1000, **changes
) -> tuple[TextReader, RowSettings]:
    cut = replace(CUT, reading=json.dumps([eos_id, vocabulary]), **changes)
    return TextReader(encode, eos_id=eos_id, vocabulary=vocabulary), cut


def rows_of(path: Path | None) -> list[list[int]]:
    assert path is not None
    rows = Rows(path)
    return [rows.row(index).tolist() for index in range(len(rows))]


def test_each_document_is_a_row_with_an_end_token(data):
    entry = prepared(data)
    train, held_out = rows_of(entry.train_path), rows_of(entry.eval_path)
    expected = [[*ids, END] for ids in encode(numbered(30))]
    assert [row for row in expected if row in train] == train
    assert sorted(train + held_out) == sorted(expected)
    counts = entry.counts
    assert (counts.eval_documents, counts.eval_rows) == (len(held_out), len(held_out))
    assert counts.train_tokens == sum(map(len, train))
    assert counts.train_labels == sum(len(row) - 1 for row in train)
    assert counts.eval_labels == sum(len(row) - 1 for row in held_out)
    assert (counts.longest_row, counts.cut_documents, counts.vocabulary) == (5, 0, 1000)
    assert entry.lengths == tuple(sorted(len(row) - 1 for row in train))


def test_an_end_token_is_neither_doubled_nor_invented(data):
    doubled = prepared(data, tokenizer="ends", encode=lambda texts: [[*ids, END] for ids in encode(texts)])
    assert all(row.count(END) == 1 for row in rows_of(doubled.train_path))
    assert all(END not in row for row in rows_of(prepared(data, eos_id=None).train_path))


def test_a_long_document_is_cut_without_losing_a_label(tmp_path):
    lengths = [1, 6, 7, 8, 9, 15, 16, 17, 50]
    path = write(tmp_path / "a.jsonl", [text_of(*range(length)) for length in lengths])
    entry = prepared(path, eval_fraction=0)
    rows = rows_of(entry.train_path)
    assert max(map(len, rows)) == 9 and min(map(len, rows)) >= 2
    labels = [row[1:] for row in rows]
    expected = [[*range(11, 10 + length), END] for length in lengths]
    joined: list[list[int]] = []
    for row, label in zip(rows, labels, strict=True):
        if row[0] == 10:
            joined.append(label)
        else:
            assert joined[-1][-1] == row[0]  # pieces overlap by one token
            joined[-1] += label
    assert joined == expected
    marks = read_cut_rows(entry.folder, len(rows))
    assert marks.tolist() == [False] * 3 + [length > 8 for length in lengths[3:] for _ in range(-(-length // 8))]
    assert (entry.counts.cut_documents, entry.counts.pieces) == (5, sum(-(-n // 8) for n in lengths if n > 8))
    assert "5 of 9 documents are longer than 8 tokens and are split into 16 pieces; no text is dropped" in entry.notes


def test_documents_without_a_label_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", ["1 2", "no numbers", "3 4", "7", "  "])
    entry = prepared(path, eval_fraction=0, eos_id=None)
    assert rows_of(entry.train_path) == [[11, 12], [13, 14]]
    assert entry.counts.short_documents == 2
    assert "2 documents have fewer than two tokens (skipped)" in entry.notes
    assert "1 document contains only white space (skipped)" in entry.notes
    with pytest.raises(DataError, match=r"b.jsonl .*no training document has two or more tokens; add more text"):
        prepared(write(tmp_path / "b.jsonl", ["words alone"] * 3))


def test_a_second_source_is_held_out_whole(data):
    others = [text_of(900 + number, 901) for number in range(4)]
    entry = prepared(data, write(data.parent / "eval.jsonl", others))
    assert rows_of(entry.eval_path) == [[*ids, END] for ids in encode(others)]
    assert rows_of(entry.train_path) == [[*ids, END] for ids in encode(numbered(30))]
    assert "data.jsonl" in entry.source and "evaluated on eval.jsonl" in entry.source
    others = numbered(30)
    entry = prepared(data, write(data.parent / "eval.jsonl", others), max_chars=50)
    assert entry.counts.eval_documents == 30
    assert entry.counts.train_characters == 50
    with pytest.raises(DataError, match=r"eval.jsonl .*no evaluation document"):
        prepared(data, write(data.parent / "eval.jsonl", ["words"]))


@pytest.mark.e2e
def test_batches_and_memory_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 100_000)
    monkeypatch.setattr(row_selection, "CHUNK_CHARACTERS", 400_000)
    text = text_of(*range(200))
    path = write(tmp_path / "a.jsonl", [text] * 40_000)
    sizes: list[int] = []

    def measured(texts: Sequence[str]) -> list[list[int]]:
        sizes.append(sum(map(len, texts)))
        return [[5] * 3 for _ in texts]

    prepared(write(tmp_path / "b.jsonl", [text]), encode=measured, eval_fraction=0)  # loads what is loaded once
    sizes.clear()
    tracemalloc.start()
    prepared(path, encode=measured)
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sizes) > 100 and max(sizes) <= 100_000
    assert largest < 12_000_000 < path.stat().st_size / 2


def test_a_tokenizer_is_trained_on_the_training_side_and_special_names_stay_text(tmp_path):
    secret = "zzqzzq " * 40
    path = write(tmp_path / "a.jsonl", ["the sheep of the hill " * 5] * 20)
    entry = prepared(path, write(tmp_path / "b.jsonl", [secret] * 5), **TRAINED)
    tokenizer = Tokenizer.from_file(str(entry.tokenizer_path))
    assert tokenizer.get_vocab_size() == entry.counts.vocabulary <= 300
    assert not any("zz" in token or "qz" in token for token in tokenizer.get_vocab())
    assert any("sheep" in token for token in tokenizer.get_vocab())
    row = rows_of(entry.train_path)[0]
    assert row[0] == BOS_ID and row[-1] != BOS_ID
    held_out = rows_of(entry.eval_path)
    assert held_out[0][0] == BOS_ID
    assert sum(row.count(EOS_ID) for row in held_out) == 5
    # Text that spells a special token stays text.
    path = write(tmp_path / "c.jsonl", ["say <eos> and <pad>"] * 20)
    entry = prepared(path, **{**TRAINED, "max_length": 100})
    assert all(row.count(EOS_ID) == 1 and 0 not in row for row in rows_of(entry.train_path))


def test_a_document_whose_end_is_held_out_leaks_through_its_repeats(tmp_path):
    path = write(tmp_path / "a.jsonl", [text_of(*range(500))] * 2)
    counts = prepared(path, eval_fraction=0.1, max_length=1000).counts
    assert (counts.leaked_rows, counts.train_documents, counts.eval_documents) == (1, 2, 1)


def test_repeated_and_leaked_documents_are_counted_and_removed_with_dedup(tmp_path):
    path = write(tmp_path / "a.jsonl", ["1 2", "3 4", "1  2 ", "5 6", "7 8"])
    held_out = write(tmp_path / "eval.jsonl", ["5 6", "9 9", "9 9"])
    kept = prepared(path, held_out)
    assert (kept.counts.documents_read, kept.counts.repeated_rows, kept.counts.leaked_rows) == (8, 2, 1)
    assert (kept.counts.train_rows, kept.counts.eval_rows) == (5, 3)
    assert any(note.startswith("2 duplicate rows are kept") for note in kept.notes)
    assert any(note.startswith("the training rows include 1 duplicate of held-out rows, so") for note in kept.notes)
    without = prepared(path, held_out, dedup=True)
    assert rows_of(without.train_path) == [[11, 12, END], [13, 14, END], [17, 18, END]]
    assert rows_of(without.eval_path) == [[15, 16, END], [19, 19, END]]
    assert (without.counts.repeated_rows, without.counts.leaked_rows) == (2, 1)
    same = write(tmp_path / "same.jsonl", ["5 6", "5 6"])
    with pytest.raises(DataError, match=r"no row is left to train on \(duplicates: 2; also held out: 1\)"):
        prepared(same, held_out, dedup=True)


def test_bad_documents_stop_the_preparation_or_are_listed_and_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "1 2"}\n{"text": 3}\n{"text": "4 5"}\n{"text": \n{"other": "x"}\n{"text": "6 7"}\n')
    with pytest.raises(DataError) as stopped:
        prepared(path, eval_fraction=0)
    assert {problem.where for problem in stopped.value.problems} == {f"a.jsonl, line {n}" for n in (2, 4, 5)}
    entry = prepared(path, eval_fraction=0, skip_bad_rows=True)
    assert rows_of(entry.train_path) == [[11, 12, END], [14, 15, END], [16, 17, END]]
    assert (entry.counts.bad_rows, entry.counts.documents_read) == (3, 6)
    assert {one["where"] for one in entry.details["bad_rows"]} == {f"a.jsonl, line {n}" for n in (2, 4, 5)}
    assert any(note.startswith("3 unusable rows were skipped: a.jsonl, line ") for note in entry.notes)


def test_skip_bad_rows_skips_neither_a_whole_file_nor_all_rows(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"body": "1 2", "note": "x"}\n' * 3)
    (folder / "b.jsonl").write_text('{"text": "1 2", "note": "x"}\n' * 3)
    with pytest.raises(DataError, match=r"b\.jsonl: there is no column 'body'"):
        prepare(data_at(folder, text_column="body"), *asked(skip_bad_rows=True), tmp_path / "cache")
    with pytest.raises(DataError, match=r"line 1 \(all 3 rows\): the column 'text' is a number"):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": 3}\n' * 3)
        prepared(path, skip_bad_rows=True)


def test_max_rows_takes_the_first_documents_of_each_source(tmp_path):
    paths = [write(tmp_path / name, numbered(20)) for name in ("a.jsonl", "b.jsonl")]
    entry = mixed(paths, eval_fraction=0, max_rows=7)
    assert rows_of(entry.train_path) == [[*ids, END] for ids in encode(numbered(7))] * 2
    assert "weights" not in "".join(entry.notes) and entry.counts.documents_read == 14


def mixed(paths: Sequence[Path], **changes) -> PreparedData:
    return prepare(data_at(*paths), *asked(**changes), paths[0].parent / "cache")


def two_sources(tmp_path: Path) -> list[Path]:
    """Write a table of 30 documents, and one of 41 with the text in another column."""
    other = tmp_path / "b.csv"
    other.write_text("n,body\n" + "".join(f'{n},"{text_of(n, n, 500)} and more words."\n' for n in range(200, 241)))
    return [write(tmp_path / "a.jsonl", numbered(30)), other]


def test_weights_repeat_and_thin_the_training_rows_only(tmp_path):
    paths = two_sources(tmp_path)
    entry = mixed(paths, weights=(2.0, 0.5))
    train, held_out = rows_of(entry.train_path), rows_of(entry.eval_path)
    first = [[*ids, END] for ids in encode(numbered(30))]
    second = [[10 + n, 10 + n, 510, END] for n in range(200, 241)]
    held_first, held_second = (sum(row in held_out for row in rows) for rows in (first, second))
    assert (held_first, held_second) == (6, 8), "of each source its share"
    assert len(held_out) == held_first + held_second
    assert all(train.count(row) == (0 if row in held_out else 2) for row in first)
    used = [train.count(row) for row in second]
    assert set(used) == {0, 1} and sum(used) == round(0.5 * (41 - held_second))
    assert len(train) == entry.counts.train_rows == 2 * 24 + sum(used)
    assert "a.jsonl (850 B): 30 rows, 48 per training epoch (data.weights 2)" in entry.notes
    assert f"b.csv (1.4 KiB): 41 rows, {sum(used)} per training epoch (data.weights 0.5)" in entry.notes
    assert "the text is in the column 'body' of b.csv (other candidates: n)" in entry.notes


def test_weighted_rows_depend_on_the_seed_alone(tmp_path):
    paths, changes = two_sources(tmp_path), {"weights": (1.0, 0.3), "eval_fraction": 0.0}
    first = mixed(paths, **changes)
    rows = first.train_path.read_bytes()
    (first.folder / "manifest.json").unlink()
    again = mixed(paths, **changes)
    assert not again.from_cache and again.train_path.read_bytes() == rows
    other = mixed(paths, **{**changes, "seed": 7})
    assert other.counts.train_rows == again.counts.train_rows == 30 + 12
    assert rows_of(other.train_path) != rows_of(again.train_path)
    message = r"b\.csv .*a weight of 0.01, none of the 41 rows of this source is trained on; raise"
    with pytest.raises(DataError, match=message):
        mixed(paths, weights=(1.0, 0.01))


def test_repeats_across_sources_are_counted_and_those_of_weights_are_not(tmp_path):
    paths = [write(tmp_path / name, numbered(30)) for name in ("a.jsonl", "b.jsonl")]
    entry = mixed(paths, eval_fraction=0, weights=(3.0, 1.0))
    assert (entry.counts.repeated_rows, entry.counts.train_rows) == (30, 120)
    without = mixed(paths, eval_fraction=0, dedup=True, weights=(3.0, 1.0))
    assert rows_of(without.train_path) == [[*ids, END] for ids in encode(numbered(30)) for _ in range(3)]


def test_a_tokenizer_is_trained_on_the_weighted_rows(tmp_path):
    paths = [write(tmp_path / "a.jsonl", ["qu xq"] * 20), write(tmp_path / "b.jsonl", ["zw zw wz"] * 60)]
    merges = {}
    for weights in ((), (50.0, 0.05)):
        entry = mixed(paths, **{**TRAINED, "vocabulary": 262, "weights": weights})
        merges[weights] = set(Tokenizer.from_file(str(entry.tokenizer_path)).get_vocab())
    assert merges[()] != merges[50.0, 0.05]
