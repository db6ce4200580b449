"""From texts to one row a document, with a tokenizer of the caller or one that is trained on the data."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tui_trainer.data.preparing import row_selection
from tui_trainer.data.preparing import tokenizing as text_readers
from tui_trainer.data.preparing.byte_bpe import BOS_ID, EOS_ID, TRAINED_HERE
from tui_trainer.data.preparing.cache import Cut, PreparedData, find_entry
from tui_trainer.data.preparing.prepare import prepare
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.data.sources.source import open_source, open_sources
from tui_trainer.errors import DataError

END = 1
CUT = Cut(rows="documents", max_length=8, eval_fraction=0.2, seed=42, tokenizer="words")
TRAINED = {"encode": None, "tokenizer": TRAINED_HERE, "eos_id": None, "vocabulary": 300}


def encode(texts: Sequence[str]) -> list[list[int]]:
    """One token a word: its number, and ten."""
    return [[10 + int(word) for word in re.findall(r"\d+", text)] for text in texts]


def text_of(*words: int) -> str:
    return " ".join(map(str, words))


def write(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def numbered(count: int, words: int = 5) -> list[str]:
    return [text_of(*range(words * start, words * start + words)) for start in range(count)]


@pytest.fixture
def data(tmp_path) -> Path:
    return write(tmp_path / "data.jsonl", numbered(30))


def prepared(path: Path, eval_path: Path | None = None, *, progress=None, **changes) -> PreparedData:
    sources = [open_source(str(one)) for one in (path, eval_path) if one]
    return prepare(sources, *asked(**changes), path.parent / "cache", progress)


def asked(*, encode=encode, eos_id: int | None = END, vocabulary: int = 1000, **changes) -> tuple[TextReader, Cut]:
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


def test_an_end_token_of_the_tokenizer_is_not_doubled(data):
    entry = prepared(data, encode=lambda texts: [[*ids, END] for ids in encode(texts)])
    assert all(row.count(END) == 1 for row in rows_of(entry.train_path))


def test_without_an_end_token_none_is_added(data):
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
    assert (entry.counts.cut_documents, entry.counts.pieces) == (5, sum(-(-n // 8) for n in lengths if n > 8))
    assert "5 of 9 documents are longer than 8 tokens and were cut into 16 pieces; nothing is dropped" in entry.notes


def test_documents_without_a_label_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", ["1 2", "no numbers", "3 4", "7", "  "])
    entry = prepared(path, eval_fraction=0, eos_id=None)
    assert rows_of(entry.train_path) == [[11, 12], [13, 14]]
    assert entry.counts.short_documents == 2
    assert "2 documents have fewer than two tokens and are left out" in entry.notes
    assert "1 documents hold only white space and are left out" in entry.notes


def test_data_of_no_labels_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a.jsonl .*no document for training has two tokens or more; give more"):
        prepared(write(tmp_path / "a.jsonl", ["words alone"] * 3))
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_source_is_held_out_whole(data):
    others = [text_of(900 + number, 901) for number in range(4)]
    entry = prepared(data, write(data.parent / "eval.jsonl", others))
    assert rows_of(entry.eval_path) == [[*ids, END] for ids in encode(others)]
    assert rows_of(entry.train_path) == [[*ids, END] for ids in encode(numbered(30))]
    assert "data.jsonl" in entry.source and "measured on eval.jsonl" in entry.source


def test_an_evaluation_source_without_labels_is_named(data):
    with pytest.raises(DataError, match=r"eval.jsonl .*no document for evaluation"):
        prepared(data, write(data.parent / "eval.jsonl", ["words"]))


def test_the_limit_of_characters_is_that_of_the_training_source(data):
    others = numbered(30)
    entry = prepared(data, write(data.parent / "eval.jsonl", others), max_chars=50)
    assert entry.counts.eval_documents == 30
    assert entry.counts.train_characters == 50


def test_the_column_that_was_taken_is_a_note(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("id;content\n" + "".join(f'{n};"{text_of(n, n + 1)}."\n' for n in range(9)))
    entry = prepared(path)
    assert "the text is in the column 'content' of train.csv (also there: id)" in entry.notes
    assert "train.csv: the columns are separated by ';'" in entry.notes
    assert prepared(path).notes == entry.notes


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 9},
        {"eval_fraction": 0.3},
        {"seed": 1},
        {"max_chars": 99},
        {"tokenizer": "other"},
        {"eos_id": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_setting_is_another_entry(data, change):
    assert prepared(data, **change).folder != prepared(data).folder


def test_another_evaluation_source_is_another_entry(data):
    folders = {prepared(data).folder}
    for number in range(2):
        folders.add(prepared(data, write(data.parent / f"{number}.jsonl", [text_of(number, 1)])).folder)
    assert len(folders) == 3


def test_a_second_call_finds_the_first_and_encodes_nothing(data):
    sources, cut, place = [open_source(str(data))], asked()[1], data.parent / "cache"
    assert find_entry(sources, cut, place, None) is None
    assert not place.exists()
    first = prepared(data)
    found = find_entry(sources, cut, place, None)
    again = prepared(data, encode=lambda texts: pytest.fail("encoded again"))
    assert found is not None and found.from_cache and again.from_cache
    assert (found.counts, found.lengths, found.notes) == (first.counts, first.lengths, first.notes)


@pytest.mark.parametrize("name", ["train.arrow", "eval.arrow", "manifest.json"])
def test_a_damaged_entry_is_made_again(data, name):
    path = prepared(data).folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert not prepared(data).from_cache
    assert path.read_bytes() == whole


def test_a_source_that_changes_meanwhile_is_refused(data):
    held_out = write(data.parent / "eval.jsonl", numbered(3))

    def meddling(texts: Sequence[str]) -> list[list[int]]:
        os.utime(held_out, ns=(1, 1))
        return encode(texts)

    with pytest.raises(DataError, match=r"eval.jsonl .*changed while it was read"):
        prepared(data, held_out, encode=meddling)
    assert list((data.parent / "cache").iterdir()) == []


class Cancelled(Exception):
    """What the caller's progress raises."""


@pytest.mark.parametrize("stage", ["reading the data", "training the tokenizer", "tokenising"])
def test_an_exception_of_progress_ends_it_and_leaves_nothing(data, monkeypatch, stage):
    monkeypatch.setattr("tui_trainer.data.progress.REPORT_SECONDS", 0)

    def progress(what, done, total, unit):
        if what == stage:
            raise Cancelled

    with pytest.raises(Cancelled):
        prepared(data, progress=progress, **(TRAINED if "tokenizer" in stage else {}))
    assert list((data.parent / "cache").iterdir()) == []


def _prepare_in_a_child(path: str) -> tuple[str, int]:
    entry = prepared(Path(path))
    return str(entry.folder), len(Rows(entry.train_path))


def test_two_processes_that_prepare_at_once_both_succeed(data):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(_prepare_in_a_child, [str(data)] * 4, chunksize=1)
    assert len(results) == 4
    assert len(set(results)) == 1


def test_tokenising_tells_how_far_it_is(data):
    told: list[tuple[str, float, float | None, str]] = []
    entry = prepared(data, progress=lambda *report: told.append(report))
    total = entry.counts.train_characters + entry.counts.eval_characters
    assert told[-1] == ("tokenising", total, total, "characters")


@pytest.mark.e2e
def test_batches_hold_about_a_megabyte_and_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text_readers, "BATCH_CHARACTERS", 100_000)
    for module in (row_selection,):
        monkeypatch.setattr(module, "CHUNK_CHARACTERS", 400_000)
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


def test_a_tokenizer_is_trained_on_the_training_side_alone(tmp_path):
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


def test_another_vocabulary_is_another_tokenizer(tmp_path):
    path = write(tmp_path / "a.jsonl", ["the sheep of the hill"] * 20)
    first = prepared(path, **TRAINED)
    assert prepared(path, **TRAINED).from_cache
    assert prepared(path, **{**TRAINED, "vocabulary": 270}).folder != first.folder


def test_text_that_spells_a_special_token_stays_text(tmp_path):
    path = write(tmp_path / "a.jsonl", ["say <eos> and <pad>"] * 20)
    entry = prepared(path, **{**TRAINED, "max_length": 100})
    assert all(row.count(EOS_ID) == 1 and 0 not in row for row in rows_of(entry.train_path))


def test_repeats_and_leaks_of_documents_are_counted_and_leave_only_when_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", ["1 2", "3 4", "1  2 ", "5 6", "7 8"])
    held_out = write(tmp_path / "eval.jsonl", ["5 6", "9 9", "9 9"])
    kept = prepared(path, held_out)
    assert (kept.counts.documents_read, kept.counts.repeated_rows, kept.counts.leaked_rows) == (8, 2, 1)
    assert (kept.counts.train_rows, kept.counts.eval_rows) == (5, 3)
    assert any(note.startswith("2 rows repeat the text of an earlier one and are used") for note in kept.notes)
    assert any(note.startswith("1 training rows have the text of a held-out one and make") for note in kept.notes)
    without = prepared(path, held_out, dedup=True)
    assert rows_of(without.train_path) == [[11, 12, END], [13, 14, END], [17, 18, END]]
    assert rows_of(without.eval_path) == [[15, 16, END], [19, 19, END]]
    assert (without.counts.repeated_rows, without.counts.leaked_rows) == (2, 1)
    same = write(tmp_path / "same.jsonl", ["5 6", "5 6"])
    with pytest.raises(DataError, match="no row is left to train on: 2 are repeats, 1 are held out as well"):
        prepared(same, held_out, dedup=True)


def test_repeated_documents_that_a_split_tears_apart_are_leaks(tmp_path):
    path = write(tmp_path / "a.jsonl", [text_of(number // 2, number // 2) for number in range(200)])
    assert prepared(path, eval_fraction=0.3).counts.leaked_rows > 10
    alone = prepared(path, eval_fraction=0.3, dedup=True)
    assert (alone.counts.leaked_rows, alone.counts.repeated_rows) == (0, 100)
    assert alone.counts.train_rows + alone.counts.eval_rows == 100


def test_a_document_whose_end_is_held_out_leaks_by_its_repeats(tmp_path):
    long = text_of(*range(500))
    path = write(tmp_path / "a.jsonl", [long, long])
    counts = prepared(path, eval_fraction=0.1, max_length=1000).counts
    assert (counts.leaked_rows, counts.train_documents, counts.eval_documents) == (1, 2, 1)


def test_documents_that_cannot_be_used_stop_the_preparation_or_are_listed_and_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "1 2"}\n{"text": 3}\n{"text": "4 5"}\n{"text": \n{"other": "x"}\n{"text": "6 7"}\n')
    with pytest.raises(DataError) as stopped:
        prepared(path, eval_fraction=0)
    assert {problem.where for problem in stopped.value.problems} == {f"a.jsonl, line {n}" for n in (2, 4, 5)}
    entry = prepared(path, eval_fraction=0, skip_bad_rows=True)
    assert rows_of(entry.train_path) == [[11, 12, END], [14, 15, END], [16, 17, END]]
    assert (entry.counts.bad_rows, entry.counts.documents_read) == (3, 6)
    assert {one["where"] for one in entry.details["bad_rows"]} == {f"a.jsonl, line {n}" for n in (2, 4, 5)}
    assert any(note.startswith("3 rows that cannot be used are left out: a.jsonl, line ") for note in entry.notes)


def test_a_whole_file_is_not_passed_over_as_one_row(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"body": "1 2", "note": "x"}\n' * 3)
    (folder / "b.jsonl").write_text('{"text": "1 2", "note": "x"}\n' * 3)
    with pytest.raises(DataError, match=r"b\.jsonl: there is no column 'body'"):
        source = open_source(str(folder), "body")
        prepare([source], *asked(skip_bad_rows=True), tmp_path / "cache")


def test_nothing_but_documents_that_cannot_be_used_is_refused_with_them(tmp_path):
    with pytest.raises(DataError, match=r"line 1 \(all 3 rows\): the column 'text' is a number"):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": 3}\n' * 3)
        prepared(path, skip_bad_rows=True)


def test_the_first_documents_of_each_source_can_be_enough(tmp_path):
    paths = [write(tmp_path / name, numbered(20)) for name in ("a.jsonl", "b.jsonl")]
    entry = mixed(paths, eval_fraction=0, max_rows=7)
    assert rows_of(entry.train_path) == [[*ids, END] for ids in encode(numbered(7))] * 2
    assert "weights" not in "".join(entry.notes) and entry.counts.documents_read == 14


def mixed(paths: Sequence[Path], **changes) -> PreparedData:
    source = open_sources([str(path) for path in paths])
    return prepare([source], *asked(**changes), paths[0].parent / "cache")


def two_sources(tmp_path: Path) -> list[Path]:
    """A table of 30 documents, and one of 41 with the text in another column."""
    other = tmp_path / "b.csv"
    other.write_text("n,body\n" + "".join(f'{n},"{text_of(n, n, 500)} and more words."\n' for n in range(200, 241)))
    return [write(tmp_path / "a.jsonl", numbered(30)), other]


def test_weights_repeat_and_thin_the_training_rows_alone(tmp_path):
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
    assert "a.jsonl (850 B): 30 rows, 48 in an epoch of training (data.weights 2)" in entry.notes
    assert f"b.csv (1.4 KiB): 41 rows, {sum(used)} in an epoch of training (data.weights 0.5)" in entry.notes
    assert "the text is in the column 'body' of b.csv (also there: n)" in entry.notes


def test_the_same_weights_give_the_same_rows_and_another_seed_takes_others(tmp_path):
    paths, asked = two_sources(tmp_path), {"weights": (1.0, 0.3), "eval_fraction": 0.0}
    first = mixed(paths, **asked)
    rows = first.train_path.read_bytes()
    assert mixed(paths, **asked).from_cache
    (first.folder / "manifest.json").unlink()
    again = mixed(paths, **asked)
    assert not again.from_cache and again.train_path.read_bytes() == rows
    other = mixed(paths, **{**asked, "seed": 7})
    assert other.counts.train_rows == again.counts.train_rows == 30 + 12
    assert rows_of(other.train_path) != rows_of(again.train_path)
    assert mixed(paths, **{**asked, "weights": (1.0, 0.4)}).folder != again.folder


def test_what_repeats_over_sources_is_found_and_what_weights_repeat_is_not(tmp_path):
    paths = [write(tmp_path / name, numbered(30)) for name in ("a.jsonl", "b.jsonl")]
    entry = mixed(paths, eval_fraction=0, weights=(3.0, 1.0))
    assert (entry.counts.repeated_rows, entry.counts.train_rows) == (30, 120)
    without = mixed(paths, eval_fraction=0, dedup=True, weights=(3.0, 1.0))
    assert rows_of(without.train_path) == [[*ids, END] for ids in encode(numbered(30)) for _ in range(3)]


def test_a_source_that_a_weight_leaves_nothing_of_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"b\.csv .*none of its 41 rows is left to train on with a weight of 0.01; raise"
    ):
        mixed(two_sources(tmp_path), weights=(1.0, 0.01))


def test_a_tokenizer_is_trained_on_what_weights_use(tmp_path):
    paths = [write(tmp_path / "a.jsonl", ["qu xq"] * 20), write(tmp_path / "b.jsonl", ["zw zw wz"] * 60)]
    merges = {}
    for weights in ((), (50.0, 0.05)):
        entry = mixed(paths, **{**TRAINED, "vocabulary": 262, "weights": weights})
        merges[weights] = set(Tokenizer.from_file(str(entry.tokenizer_path)).get_vocab())
    assert merges[()] != merges[50.0, 0.05]


def test_one_source_of_which_a_weight_takes_a_half(tmp_path):
    path = write(tmp_path / "a.jsonl", numbered(30))
    entry = mixed([path], eval_fraction=0, weights=(0.5,))
    rows = rows_of(entry.train_path)
    everything = [[*ids, END] for ids in encode(numbered(30))]
    assert len(rows) == 15 and [row for row in everything if row in rows] == rows
